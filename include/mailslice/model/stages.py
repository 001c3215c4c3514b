"""How far a mail has come, for each recipient, and what that decides. Pure: asked by the worker at
each delivery, by a duty for mails whose holder hangs.

A mail without a record was never begun. `received` and `loaded` are not worth a write of their own:
they ride on the worker's periodic record, and mean the same as no record. `sending` is written
before the first step that cannot be taken back, `sent` right after it. Who died in between leaves a
recipient of whom nobody can say whether they have the mail: such a recipient is failed and told,
never tried again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Self

from mailslice.model.mail import EnqueueId


class Stage(StrEnum):
    """Of a mail, or of one of its recipients (these are only ever sending, sent or failed)."""

    RECEIVED = "received"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"


class DeliveryVerdict(StrEnum):
    """What becomes of a delivery."""

    HANDLE = "handle"
    """Some recipients were not begun, and nobody is in doubt: to them."""
    FAIL = "fail"
    """Some were being sent to by one who is gone: tell, write `after`, handle the others."""
    COMPLETE = "complete"
    """Each recipient was served or has failed. (Without any, the handler decides.)"""
    WAIT = "wait"
    """The one who is sending may be alive: look again later."""


@dataclass(frozen=True, slots=True)
class MailStage:
    """A record of mail_stages. `remaining` are the recipients that were not begun; the others are
    in `recipients`, as sending, sent or failed.

    `owner` is the worker (or the run of a duty) that wrote it; `attempt` counts from 1; `step`
    counts the writes, so that no state comes back unseen.
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
        """Of the mail as a whole: the least settled of its recipients decides."""
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

    def those(self, stage: Stage) -> tuple[str, ...]:
        """The recipients at a stage."""
        return tuple(recipient for recipient, at in self.recipients.items() if at is stage)

    def moved(self, recipients: Iterable[str], stage: Stage, *, by: str, now: datetime) -> Self:
        """The next record: these recipients at this stage, written by `by`."""
        states = {**self.recipients, **dict.fromkeys(recipients, stage)}
        remaining = tuple(recipient for recipient in self.remaining if recipient not in states)
        return replace(
            self, owner=by, step=self.step + 1, remaining=remaining, recipients=states, updated=now
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What a delivery finds.

    `record` is what was read, made to fit the message (step 0: there was none); `left` are the
    recipients that were not begun, `failed` those in doubt, which fail by this. `after` is what to
    write, conditionally on `record`, for FAIL, or when the mail is taken from a holder that hangs:
    it is one attempt more, so that the old holder is refused.
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
    """What the record that was `read` says of a mail that is delivered (or held too long) with
    these `recipients`, to `by`.

    The recipients are the message's: an older copy may name some who were served since, a younger
    one leaves out who was served while nothing was recorded. `holder_lives`: whoever wrote
    `sending` may still be at it.
    """
    requested = tuple(dict.fromkeys(recipients))
    unmarked = MailStage(enqueue_id, "", 1, 0, requested)
    record = unmarked if read is None else _fitted(read, requested)
    failed = record.those(Stage.SENDING)
    after = next_attempt(record, record.remaining, failed, by=by, now=now)
    if failed:
        verdict = DeliveryVerdict.WAIT if holder_lives else DeliveryVerdict.FAIL
    else:
        is_complete = record.recipients and not record.remaining
        verdict = DeliveryVerdict.COMPLETE if is_complete else DeliveryVerdict.HANDLE
    return Decision(verdict, record, record.remaining, failed, after)


def next_attempt(
    record: MailStage, left: Iterable[str], failed: Iterable[str] = (), *, by: str, now: datetime
) -> MailStage:
    """The record of a retry: one attempt more, for those `left`. Others were served or failed."""
    left = tuple(dict.fromkeys(left))
    states = {
        recipient: Stage.FAILED if at is Stage.FAILED else Stage.SENT
        for recipient, at in record.recipients.items()
    }
    states.update(dict.fromkeys(record.remaining, Stage.SENT))
    states.update(dict.fromkeys(failed, Stage.FAILED))
    for recipient in left:
        states.pop(recipient, None)
    return MailStage(record.enqueue_id, by, record.attempt + 1, record.step + 1, left, states, now)


def _fitted(read: MailStage, requested: tuple[str, ...]) -> MailStage:
    named = frozenset(requested)
    served = (recipient for recipient in read.remaining if recipient not in named)
    states = {**read.recipients, **dict.fromkeys(served, Stage.SENT)}
    remaining = tuple(recipient for recipient in requested if recipient not in states)
    return replace(read, remaining=remaining, recipients=states)
