"""What an audit can say of a live mail, and what it said of one."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Where a live mail is, as far as it can be proved."""

    WAITING = "waiting"
    """Its message is in the work queue."""
    DELAYED = "delayed"
    """Its message is in a delay level, until the due time in mailslice's own table."""
    HELD = "held"
    """Set aside by a person, or in quarantine."""
    IN_FLIGHT = "in flight"
    """A worker that lives holds its message."""
    DEAD_LETTERED = "dead-lettered"
    LOST = "lost"
    """No message anywhere, on a queue that is mailslice's alone."""
    LOST_OR_GHOST = "lost or ghost"
    """No message, on a shared queue: a James that died before its mark may have delivered it."""
    GHOST = "ghost"
    """A worker's own record says that it was handed out and done, and its mark is missing."""
    BARE = "bare"
    """A blob of its content is missing: nobody can deliver it."""
    UNKNOWN = "unknown"
    """Not provable; the reason is told with it."""


@dataclass(frozen=True, slots=True)
class MailVerdict:
    """One mail of an audit: its verdict and why. The fields are the columns of an audit's files.

    Times are milliseconds since the epoch. `decision`: which earlier decision to publish it again
    the audit knew of; empty without one, or where it does not matter. `delayed_us`: when the delay
    was written that it knew of, or 0.
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
