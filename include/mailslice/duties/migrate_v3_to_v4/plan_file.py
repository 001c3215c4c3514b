"""plan.json and plan/: which places of V3 have rows to copy, and the digest over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.duty.artifacts import iso
from mailslice.duty.plans import digest_of, reading, require_same
from mailslice.model.errors import PlanRefused
from mailslice.spark.plan_files import Digest, PlanPart

PARTS = "plan"
"""The folder of the Parquet files, in the run's folder."""


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """A place of V3, how many of its rows are to be copied, and where their ids are."""

    slice_ms: int
    bucket: int
    rows: int
    part: PlanPart

    def as_json(self) -> list[object]:
        """Short: there is one a partition."""
        return [
            self.slice_ms,
            self.bucket,
            self.rows,
            self.part.file,
            self.part.first,
            self.part.groups,
        ]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may copy."""

    run: str
    queue: str
    made_at: datetime
    rows: Digest
    places: tuple[PlannedPlace, ...]
    to_read: int = 0
    """Partitions of V3 that were to be read; of those `read` were, and `read_twice` more than once."""
    read: int = 0
    read_twice: int = 0

    @property
    def planned(self) -> int:
        """Rows that are to be copied."""
        return self.rows.count

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values in a stable order."""
        places = [place.as_json() for place in self.places]
        return {
            "run": self.run,
            "queue": self.queue,
            "madeAt": iso(self.made_at),
            "rows": str(self.rows),
            "places": places,
            "reads": [self.to_read, self.read, self.read_twice],
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`, which holds the digest of the rows."""
        return digest_of(self.decided())


def read_plan(summary: Mapping[str, Any], run: str, queue: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run, queue):
        value = summary["decided"]
        places = tuple(
            PlannedPlace(start, bucket, rows, PlanPart(file, first, groups))
            for start, bucket, rows, file, first, groups in value["places"]
        )
        plan = Plan(
            value["run"],
            value["queue"],
            datetime.fromisoformat(value["madeAt"]),
            Digest.parse(value["rows"]),
            places,
            *value["reads"],
        )
    require_same(plan.digest, summary, (plan.run, plan.queue), run, queue)
    if sum(place.rows for place in plan.places) != plan.planned:
        raise PlanRefused(
            f"plan.json of run {run}: its places hold {sum(place.rows for place in plan.places)} rows, its digest {plan.planned}"
        )
    return plan
