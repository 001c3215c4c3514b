"""What a handler says of a mail. None means `Complete()`; an exception means `Retry(back_off=True)`, a `DeadLetter` means `Reject`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from mailslice.codec.reports import Failure


@dataclass(frozen=True, slots=True)
class Complete:
    """The mail is done: mark, ack, blobs."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Hand the mail out again: at once, `after` a delay, or (`back_off`) after the consumer's own growing delay.

    `recipients` are those that remain; None leaves them as they are.
    """

    after: timedelta | None = None
    recipients: tuple[str, ...] | None = None
    back_off: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """The mail goes to the dead letter queue. The reason is logged: no mail address in it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Bounce:
    """The mail's recipients will not have it: its sender is told (RFC 3464), and it is done. A Reject where nobody can be told.

    `failures` are all the recipients that the mail still has. The reason is logged: no mail address in it.
    """

    reason: str
    failures: tuple[Failure, ...]


Outcome = Complete | Retry | Reject | Bounce
