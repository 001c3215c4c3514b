"""What a plan holds: stuck mails with their holders, records of dead workers; no address."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.plan import QueuePlan
from mailslice.maintenance.row_file import RowFile
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import StuckMode


@dataclass(frozen=True, slots=True)
class PlannedMail:
    """A stuck mail that `worker` holds; `action` is what the plan is to do with it."""

    enqueue_id: EnqueueId
    name: str
    worker: str
    stage: str
    attempt: int
    since: datetime
    age_seconds: float
    action: str

    def as_json(self) -> dict[str, Any]:
        """As the report shows it."""
        return {
            "enqueueId": str(self.enqueue_id),
            "name": self.name,
            "worker": self.worker,
            "stage": self.stage,
            "attempt": self.attempt,
            "since": iso(self.since),
            "ageSeconds": self.age_seconds,
            "action": self.action,
        }


class DeadRecord(NamedTuple):
    """The record of a dead worker, by its last beat."""

    worker: str
    beat: int
    mails: int


class StuckPlan(QueuePlan):
    """What one run may do."""

    mode: StuckMode
    lock_timeout: timedelta
    mails: RowFile
    """PlannedMail."""
    dead: tuple[DeadRecord, ...]

    @property
    def planned(self) -> int:
        """Mails to decide about."""
        return self.mails.rows

    @property
    def has_work(self) -> bool:
        """Every run finishes what killed runs left."""
        return True
