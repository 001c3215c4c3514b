"""Stage marks: how far a mail has come for each recipient, and what a delivery does with it (ADR
20). Pure. The worker asks at each delivery; stuck_mails asks for mails whose holder hangs.

A mail without a record was never begun: `received` and `loaded` are in the worker's periodic record
alone. The worker writes `sending` before the first step that cannot be undone, and `sent` right
after it. After a death in between the recipient is in doubt, fails and is never tried again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Self

from mailslice.model.mail import EnqueueId


class Stage(StrEnum):
    """The stage of a mail or of a recipient. A recipient is only sending, sent or failed."""

    RECEIVED = "received"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"


class DeliveryVerdict(StrEnum):
    """What to do with a delivery."""

    HANDLE = "handle"
    """No recipient is in doubt: deliver to those that were not begun."""
    FAIL = "fail"
    """Recipients are in doubt: report them as failed, write `after`, deliver to the others."""
    COMPLETE = "complete"
    """Each recipient was served or has failed. (A mail without recipients is for the handler.)"""
    WAIT = "wait"
    """The worker that is sending may be alive: look again later."""


@dataclass(frozen=True, slots=True)
class MailStage:
    """A row of mail_stages. `remaining`: recipients that were not begun. `recipients`: the others,
    each as sending, sent or failed.

    `owner`: the worker (or the run of a duty) that wrote it. `attempt` counts from 1. `step` counts
    the writes: a conditional write notices if the row changed and then changed back.
    """

    enqueue_id: EnqueueId
    owner: str
    attempt: int
    step: int
    remaining: tuple[str, ...]
    recipients: Mapping[str, Stage] = field(default_factory=dict)
    updated: datetime | None = None

    @property
    def stage(self) -> Stage:
        """The stage of the whole mail: that of its least settled recipient."""
        at = set(self.recipients.values())
        if Stage.SENDING in at:
            return Stage.SENDING
        if self.remaining or not at:
            return Stage.RECEIVED
        return Stage.FAILED if Stage.FAILED in at else Stage.SENT

    @property
    def closed(self) -> bool:
        """Whether no recipient is left or in doubt."""
        return self.stage in {Stage.SENT, Stage.FAILED}

    def recipients_at(self, *stages: Stage) -> tuple[str, ...]:
        return tuple(recipient for recipient, at in self.recipients.items() if at in stages)

    def moved(self, recipients: Iterable[str], stage: Stage, *, by: str, now: datetime) -> Self:
        """The next record: `recipients` at `stage`, with owner `by`."""
        states = {**self.recipients, **dict.fromkeys(recipients, stage)}
        remaining = tuple(recipient for recipient in self.remaining if recipient not in states)
        return replace(
            self, owner=by, step=self.step + 1, remaining=remaining, recipients=states, updated=now
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a delivery, and by which records.

    `record`: the row that was read, fitted to the message (step 0: there was none). `left`: the
    recipients that were not begun. `failed`: those in doubt, which fail now. `after`: the next row,
    written conditionally on `record` for FAIL, or when the mail is taken from a holder that hangs.
    It has one attempt more, so that writes of the old holder are refused.
    """

    verdict: DeliveryVerdict
    record: MailStage
    left: tuple[str, ...]
    failed: tuple[str, ...]
    after: MailStage


def decide(
    read: MailStage | None,
    enqueue_id: EnqueueId,
    recipients: Iterable[str],
    *,
    by: str,
    now: datetime,
    holder_lives: bool = False,
) -> Decision:
    """The decision for a mail that is delivered to `by` (or is held too long), by its row `read`.

    `recipients` are the message's. An older copy may name some that were served since. A younger
    copy leaves out those that were served while nothing was recorded. `holder_lives`: the worker
    that wrote `sending` may still be sending.
    """
    requested = tuple(dict.fromkeys(recipients))
    unmarked = MailStage(enqueue_id, "", 1, 0, requested)
    record = unmarked if read is None else _fitted(read, requested)
    failed = record.recipients_at(Stage.SENDING)
    after = next_attempt(record, record.remaining, by=by, now=now)
    if failed:
        verdict = DeliveryVerdict.WAIT if holder_lives else DeliveryVerdict.FAIL
    else:
        is_complete = record.recipients and not record.remaining
        verdict = DeliveryVerdict.COMPLETE if is_complete else DeliveryVerdict.HANDLE
    return Decision(verdict, record, record.remaining, failed, after)


def next_attempt(record: MailStage, left: Iterable[str], *, by: str, now: datetime) -> MailStage:
    """The record of a retry: one more attempt, for `left`. Of the others, those in doubt fail."""
    left = tuple(dict.fromkeys(left))
    states = {
        recipient: Stage.SENT if at is Stage.SENT else Stage.FAILED
        for recipient, at in record.recipients.items()
    }
    states.update(dict.fromkeys(record.remaining, Stage.SENT))
    for recipient in left:
        states.pop(recipient, None)
    return MailStage(record.enqueue_id, by, record.attempt + 1, record.step + 1, left, states, now)


def _fitted(read: MailStage, requested: tuple[str, ...]) -> MailStage:
    named = frozenset(requested)
    served = (recipient for recipient in read.remaining if recipient not in named)
    states = {**read.recipients, **dict.fromkeys(served, Stage.SENT)}
    remaining = tuple(recipient for recipient in requested if recipient not in states)
    return replace(read, remaining=remaining, recipients=states)
