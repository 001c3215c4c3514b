"""What a handler returns.

`answer`: the remote server's words, for the log of mail events, which redacts addresses. Neither
`answer` nor `why` is compared: they explain an outcome. None means `Complete()`. An exception means
`Retry(back_off=True)`, a `DeadLetter` means `Reject`.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from mailslice.codec.reports import Failure


class Disposition(StrEnum):
    """The end of a settled mail, which may differ from the requested outcome."""

    COMPLETED = "completed"
    RETRIED = "retried"
    REJECTED = "rejected"
    BOUNCED = "bounced"
    GIVEN_BACK = "given_back"
    """Another worker has the mail, by its stage marks."""
    DROPPED = "dropped"
    """It was deleted or closed while in a handler, or all remaining recipients are in doubt."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The mail is done: deleted mark, ack, then its blobs are deleted."""

    answer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """Hand the mail out again: at once, `after` a delay, or (`back_off`) after the queue's growing
    pause; with both, after the longer one. `recipients` are those that remain (None: all).

    A retry that waits is a failed attempt unless `counted` is False. After
    MAILSLICE_WORKER_ATTEMPTS of them the mail is given up, for the reason `why` (no mail address in
    it). `throttled`: it waits for destinations (`worker.io.destination_throttle`) and never counts.
    """

    after: timedelta | None = None
    recipients: tuple[str, ...] | None = None
    back_off: bool = False
    counted: bool = True
    throttled: bool = False
    why: str = field(default="", compare=False)
    answer: str = field(default="", compare=False)
    """The remote server's words to the recipients that it took."""


@dataclass(frozen=True, slots=True)
class Reject:
    """The mail goes to the dead letter queue. The reason is logged: no mail address in it."""

    reason: str
    answer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Bounce:
    """The recipients will not get the mail: its sender gets a report (RFC 3464), or it is rejected.
    `failures`: one for each remaining recipient. No mail address in the reason.
    """

    reason: str
    failures: tuple[Failure, ...]
    answer: str = field(default="", compare=False)


Outcome = Complete | Retry | Reject | Bounce
