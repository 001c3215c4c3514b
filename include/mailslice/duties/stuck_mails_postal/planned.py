"""The plan: stuck, lost and gone messages of Postal's queue, and what each mode does with them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import AwareDatetime

from mailslice.duties.stuck_mails_postal.rules import PostalStage, PostalState
from mailslice.duties.stuck_mails_postal.survey import SurveyedRow
from mailslice.engine.row_files import RowFile
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.plan import Plan
from mailslice.model.settings import PostalMode
from mailslice.stores.postal.rows import NO_TIME, QueuedMessage


class PostalAction(StrEnum):
    """What is done with a message. The value is the report field that counts it."""

    CLOSED = "closed"
    RETRIED = "retried"
    COMPLETED = "completed"
    LOST = "lost"


LOCK_CHANGED = "lock changed"
BATCH_IN_PROGRESS = "batch in progress"
HOLDER_MAY_LIVE = "holder may live"
SERVER_UNREADABLE = "server unreadable"
_NO_TIME = NO_TIME.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of Postal's queue. Times are UTC by Postal's databases; `age_seconds` is the lock's."""

    queued_message: int
    server: int
    message: int
    locked_by: str | None
    locked_at: datetime | None
    created_at: datetime | None
    state: PostalState
    stage: PostalStage | None
    age_seconds: float | None

    @classmethod
    def of(cls, surveyed: SurveyedRow) -> Self:
        """As the survey saw it."""
        row, age = surveyed.row, surveyed.age
        lock = row.locked_by, _aware(row.locked_at)
        seconds = None if age is None else age.total_seconds()
        ids = row.id, row.server, row.message
        return cls(*ids, *lock, _aware(row.created_at), surveyed.state, surveyed.stage, seconds)

    @property
    def lock(self) -> tuple[str | None, datetime | None]:
        """Holder and time of the lock: the rows of one batch share them."""
        return self.locked_by, self.locked_at

    @property
    def is_locked(self) -> bool:
        return self.locked_at is not None

    def is_still(self, row: QueuedMessage | None) -> bool:
        """Whether Postal's row has the same lock, or none, as when it was planned."""
        return row is not None and (
            (row.server, row.message, row.locked_by, _aware(row.locked_at))
            == (self.server, self.message, *self.lock)
        )

    def as_json(self) -> dict[str, Any]:
        """The entry in reports. It has no address."""
        return {
            "queuedMessage": self.queued_message,
            "server": self.server,
            "message": self.message,
            "lockedBy": self.locked_by,
            "lockedAt": iso(self.locked_at),
            "age": self.age_seconds,
            "state": self.state.value,
            "stage": self.stage and self.stage.value,
        }


class PostalPlan(Plan):
    """What one run may do. `surveyed_at` is by the clock of Postal's main database."""

    mode: PostalMode
    lock_timeout: timedelta
    p99: timedelta | None
    surveyed_at: AwareDatetime
    limit: int
    restarted: AwareDatetime | None
    accept_duplicates: bool
    rows: RowFile
    """PlannedRow, the oldest lock first, those without a lock last. Apply acts on `limit`."""

    @property
    def planned(self) -> int:
        """All planned rows, also those beyond `limit`."""
        return self.rows.rows

    @property
    def has_work(self) -> bool:
        """The next run in mode close or retry finishes what killed runs left."""
        return self.mode is not PostalMode.SHADOW

    def by_mode(self, row: PlannedRow) -> dict[str, str]:
        """Mode -> its action on a row as it was planned, or the reason to leave it alone."""
        modes = (PostalMode.CLOSE, PostalMode.RETRY)
        return {mode.value: str(self.action(row, mode)) for mode in modes}

    def action(self, row: PlannedRow, mode: PostalMode) -> PostalAction | str:
        """The action on a message, or the reason to leave it alone."""
        if row.state is PostalState.UNKNOWN:
            return SERVER_UNREADABLE
        if row.state is not PostalState.STUCK:
            return PostalAction.LOST
        if row.stage is PostalStage.ANSWERED:
            return PostalAction.COMPLETED
        if mode is not PostalMode.RETRY:
            return PostalAction.CLOSED
        accept = self.accept_duplicates
        if row.stage is PostalStage.MAYBE_SENT:
            return PostalAction.RETRIED if accept else PostalAction.CLOSED
        return PostalAction.RETRIED if accept or self.holder_is_dead(row) else HOLDER_MAY_LIVE

    def holder_is_dead(self, row: PlannedRow) -> bool:
        """Whether a person said so: every worker was restarted since the lock."""
        at, restarted = row.locked_at, self.restarted
        return at is not None and restarted is not None and _NO_TIME < at < restarted


def _aware(read: datetime | None) -> datetime | None:
    return None if read is None else read.replace(tzinfo=UTC)
