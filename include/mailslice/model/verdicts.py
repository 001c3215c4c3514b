"""The verdicts of an audit on live mails."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Where a live mail is, as far as the audit can prove it."""

    WAITING = "waiting"
    """Its message is in the work queue."""
    DELAYED = "delayed"
    """Its message is in a delay level, until the due time in mailslice's own table."""
    HELD = "held"
    """A person set it aside, or it is in quarantine."""
    IN_FLIGHT = "in flight"
    """A live worker has its message."""
    DEAD_LETTERED = "dead-lettered"
    LOST = "lost"
    """It has no message anywhere, on a queue that is not shared."""
    LOST_OR_GHOST = "lost or ghost"
    """No message, on a shared queue: a James that died before the mark may have delivered it."""
    GHOST = "ghost"
    """A worker's record says that the mail was completed, and its deleted mark is missing."""
    BARE = "bare"
    """A blob of its content is missing: nobody can deliver it."""
    UNKNOWN = "unknown"
    """The audit could not prove any of these. `why` has the reason."""


@dataclass(frozen=True, slots=True)
class MailVerdict:
    """One mail of an audit: its verdict and why. The fields are the columns of an audit's files.

    Times in `_ms` are milliseconds since the epoch. `decision`: the earlier decision to republish
    the mail that the audit read; empty without one, or if it does not matter. `delayed_us`: the
    write time of the delay that the audit read, in microseconds, or 0.
    """

    enqueue_id: str
    name: str
    verdict: str
    why: str
    table: str
    slice_ms: int
    bucket: int
    enqueued_ms: int
    decision: str
    delayed_us: int = 0

    def line(self) -> dict[str, object]:
        which = {"enqueueId": self.enqueue_id, "name": self.name}
        return {**which, "verdict": self.verdict, "why": self.why}
