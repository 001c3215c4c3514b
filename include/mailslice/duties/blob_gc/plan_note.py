"""plan.json: what a plan says, typed, and the digest over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.blob_gc.plan_files import CANDIDATE, DELETE, Group
from mailslice.duty.artifacts import iso
from mailslice.duty.plans import digest_of, reading, require_same


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do: delete the blobs of `deletes`, record those of `candidates`, put the kept copies `restores` back. `blobs` are in the bucket."""

    run: str
    bucket: str
    made_at: datetime
    grace: timedelta
    keep: timedelta
    blobs: int
    deletes: tuple[Group, ...]
    candidates: tuple[Group, ...]
    restores: tuple[str, ...]
    sources: Mapping[str, int]
    """References of each source."""

    @property
    def planned(self) -> int:
        """Blobs that are to go."""
        return sum(group.rows for group in self.deletes)

    @property
    def waiting(self) -> int:
        """Blobs that are to be recorded as candidates."""
        return sum(group.rows for group in self.candidates)

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values in a stable order."""
        return {
            "run": self.run,
            "bucket": self.bucket,
            "madeAt": iso(self.made_at),
            "graceSeconds": self.grace.total_seconds(),
            "keepSeconds": self.keep.total_seconds(),
            "blobs": self.blobs,
            DELETE: [
                [group.file, group.number, group.rows, group.digest] for group in self.deletes
            ],
            CANDIDATE: [
                [group.file, group.number, group.rows, group.digest] for group in self.candidates
            ],
            "restores": list(self.restores),
            "sources": dict(sorted(self.sources.items())),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`, which holds the digests of all rows."""
        return digest_of(self.decided())


def read_plan(summary: Mapping[str, Any], run: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run):
        value = summary["decided"]
        plan = Plan(
            value["run"],
            value["bucket"],
            datetime.fromisoformat(value["madeAt"]),
            timedelta(seconds=value["graceSeconds"]),
            timedelta(seconds=value["keepSeconds"]),
            value["blobs"],
            tuple(Group(*each) for each in value[DELETE]),
            tuple(Group(*each) for each in value[CANDIDATE]),
            tuple(value["restores"]),
            dict(value["sources"]),
        )
        digest = plan.digest
    require_same(digest, summary, (plan.run, None), run)
    return plan
