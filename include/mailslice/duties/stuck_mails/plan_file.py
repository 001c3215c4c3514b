"""plan.json of stuck_mails: which mails are stuck, with whom, and which records are of dead workers; typed, with a digest. No address is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from mailslice.duty.artifacts import iso
from mailslice.duty.plans import digest_of, reading, require_same
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import StuckMode

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class PlannedMail:
    """A stuck mail as it was found: held by `worker`; `action` is what the plan is to do with it."""

    enqueue_id: EnqueueId
    name: str
    worker: str
    stage: str
    attempt: int
    since: datetime
    age: timedelta
    action: str

    def as_json(self) -> dict[str, Any]:
        """As the plan and the report show it."""
        return {
            "enqueueId": str(self.enqueue_id),
            "name": self.name,
            "worker": self.worker,
            "stage": self.stage,
            "attempt": self.attempt,
            "since": iso(self.since),
            "ageSeconds": self.age / timedelta(seconds=1),
            "action": self.action,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PlannedMail:
        """What `as_json` gave."""
        return cls(
            EnqueueId(UUID(value["enqueueId"])),
            value["name"],
            value["worker"],
            value["stage"],
            value["attempt"],
            datetime.fromisoformat(value["since"]),
            timedelta(seconds=value["ageSeconds"]),
            value["action"],
        )


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """The record of a dead worker, by its last beat."""

    worker: str
    beat: int
    mails: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do."""

    run: str
    queue: str
    made_at: datetime
    mode: StuckMode
    timeout: timedelta
    mails: tuple[PlannedMail, ...]
    dead: tuple[DeadRecord, ...]

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values in a stable order."""
        return {
            "run": self.run,
            "queue": self.queue,
            "madeAt": iso(self.made_at),
            "mode": self.mode.value,
            "lockTimeoutMs": self.timeout // _MILLISECOND,
            "mails": [mail.as_json() for mail in self.mails],
            "dead": [[record.worker, record.beat, record.mails] for record in self.dead],
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`."""
        return digest_of(self.decided())


def read_plan(summary: Mapping[str, Any], run: str, queue: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run, queue):
        value = summary["decided"]
        plan = Plan(
            value["run"],
            value["queue"],
            datetime.fromisoformat(value["madeAt"]),
            StuckMode(value["mode"]),
            value["lockTimeoutMs"] * _MILLISECOND,
            tuple(PlannedMail.from_json(mail) for mail in value["mails"]),
            tuple(DeadRecord(*record) for record in value["dead"]),
        )
    require_same(plan.digest, summary, (plan.run, plan.queue), run, queue)
    return plan
