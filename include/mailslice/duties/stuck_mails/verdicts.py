"""What is to be done with a stuck mail: by the mode, and in mode recover by its stage marks."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from mailslice.codec import message as codec
from mailslice.duties.stuck_mails.seen import Stuck
from mailslice.model.mail import QueuedMail, QueueName
from mailslice.model.settings import StuckMode
from mailslice.model.stages import Decision, Verdict, decide

if TYPE_CHECKING:
    from mailslice.stores import Stores


class Action(StrEnum):
    """What was done with a mail."""

    CLOSED = "closed"
    RELEASED = "released"
    FAILED = "failed"
    COMPLETED = "completed"


_ACTIONS = {
    Verdict.HANDLE: Action.RELEASED,
    Verdict.FAIL: Action.FAILED,
    Verdict.COMPLETE: Action.COMPLETED,
}


def would(
    stores: Stores, queue: QueueName, found: Stuck, mode: StuckMode, *, by: str, now: datetime
) -> str:
    """The action, as the plan shows it. Shadow mode says what the queue's own mode would be: recover where its workers write stage marks."""
    by_stage = mode is StuckMode.RECOVER or (
        mode is StuckMode.SHADOW and queue in stores.settings.queue.stage_marks
    )
    if not by_stage or not found.record.stage_marks:
        return Action.CLOSED
    item = item_of(stores, queue, found)
    return (
        _ACTIONS[stages_of(stores, queue, item, by=by, now=now).verdict]
        if item is not None
        else Action.CLOSED
    )


def is_superseded(stores: Stores, queue: QueueName, found: Stuck) -> bool:
    """Whether the mail was given to another attempt since: the holder's own marks are refused, and its handler may hang for as long as it likes."""
    if not found.record.stage_marks:
        return False
    read = stores.own.mail_stages.read(queue, found.mail.enqueue_id)
    return read is not None and read.attempt > found.mail.attempt


def stages_of(
    stores: Stores, queue: QueueName, item: QueuedMail, *, by: str, now: datetime
) -> Decision:
    """What the stage marks say of a mail whose holder hangs."""
    read = stores.own.mail_stages.read(queue, item.enqueue_id)
    return decide(read, item.enqueue_id, item.mail.recipients, by=by, now=now)


def item_of(stores: Stores, queue: QueueName, found: Stuck) -> QueuedMail | None:
    """The mail with its envelope: the message that the worker's record has, else the row, where the record says where that is. None when neither is there."""
    mail = found.mail
    if mail.message is not None:
        return codec.decode(mail.message)
    if mail.place is None:
        return None
    rows = (table.read(queue, mail.place, mail.enqueue_id) for table in stores.tables.existing)
    return next((row.item for row in rows if row is not None), None)
