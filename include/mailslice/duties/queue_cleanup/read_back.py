"""What is in the view after the deletes: every row that is left, in both tables, read once.

From contentStart to now; for a sweep, and where a sweep's marks are to go, in every partition there
is. Kept in the run's folder: verify and report build on the same read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from mailslice.duties.queue_cleanup.decide import SliceRows, by_slice
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan import CleanupPlan, PartitionName, PlannedPartition
from mailslice.duties.queue_cleanup.view import (
    existing_partitions,
    micros,
    range_of,
    slices_to_read,
)
from mailslice.engine.mark_deletion import halves_of
from mailslice.engine.partition_scan import instant, millis
from mailslice.engine.plan_comparison import PlanKey
from mailslice.engine.row_files import NO_PART
from mailslice.engine.unmarked_rows import Leftover, UnmarkedPartition, read_left
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused

if TYPE_CHECKING:
    from mailslice.engine.mark_deletion import Halves

_READ_BACK_FILE = "left.json"
"""In the run's folder."""


@dataclass(frozen=True)
class Remaining:
    """Partitions as they were read after the deletes, from `read_at` on."""

    partitions: Mapping[PartitionName, UnmarkedPartition]
    read_at: datetime

    @classmethod
    def of(cls, partitions: Iterable[UnmarkedPartition], read_at: datetime) -> Self:
        """Each partition once."""
        return cls({(one.table, one.slice_ms, one.bucket): one for one in partitions}, read_at)

    @property
    def planned(self) -> int:
        """Planned rows that are left."""
        return sum(partition.matched for partition in self.partitions.values())

    def planned_in(self, partition: PlannedPartition) -> int:
        """How many planned rows of a partition are left; 0 where it has no row at all."""
        match = self.partitions.get(partition.name)
        return match.matched if match else 0

    def oldest_row(self, at_or_after: datetime | None) -> datetime | None:
        """The oldest slice with a row, not before `at_or_after`."""
        starts = (instant(one.slice_ms) for one in self.partitions.values() if one.rows)
        return min(
            (start for start in starts if at_or_after is None or start >= at_or_after), default=None
        )

    def ids(self) -> Halves:
        """The low halves of the ids of all rows that are left, sorted."""
        return halves_of([partition.ids for partition in self.partitions.values()])

    def slices(self) -> list[SliceRows]:
        """Slices that have rows, oldest first."""
        return by_slice(self.partitions.values())

    def save(self, run: Run) -> None:
        """Write down the partitions that have rows, without their ids."""
        rows = [astuple(one)[:-1] for one in self.partitions.values() if one.rows]
        run.folder.write_json(_READ_BACK_FILE, {"readAt": iso(self.read_at), "places": rows})

    @classmethod
    def load(cls, run: Run, otherwise: datetime) -> Self:
        """What `save` wrote; nothing, as of `otherwise`, where apply had nothing to do."""
        value: Mapping[str, Any] | None = run.folder.read_json(_READ_BACK_FILE)
        if value is None:
            return cls({}, otherwise)
        rows = [UnmarkedPartition(*[*row[:-1], tuple(row[-1]), b""]) for row in value["places"]]
        return cls.of(rows, datetime.fromisoformat(value["readAt"]))


def read_remaining(run: Run, plan: CleanupPlan, planned: Iterable[PlannedPartition]) -> Remaining:
    """Read back at quorum. Raises PlanRefused when a partition was not read."""
    read_at = run.clock()
    parts = {partition.name: partition.part for partition in planned}
    names = _names(run, plan) | parts.keys()
    keys = [PlanKey(*name, parts.get(name, NO_PART)) for name in sorted(names)]
    location, folder = run.folder.artifacts, run.folder.file(PLAN_FOLDER)
    spec = Leftover(run.settings, run.queue, location, folder, micros(plan.made_at))
    remaining = Remaining.of(read_left(run.spark(), spec, keys), read_at)
    if remaining.partitions.keys() != names:
        raise PlanRefused(
            f"the read after the deletes gave {len(remaining.partitions)} of {len(names)} "
            "partitions: "
            "marks and contentStart stay, the next run goes on"
        )
    return remaining


def _names(run: Run, plan: CleanupPlan) -> set[PartitionName]:
    first, last = range_of(run.stores, run.queue, run.clock(), plan.shape)
    slices, buckets = slices_to_read(run.stores, run.queue, plan.shape, first, last)
    names = {(millis(start), bucket) for start in slices for bucket in range(buckets)}
    if plan.candidates is not None or run.params(Params).sweep:
        everywhere = existing_partitions(run.stores, run.queue)
        names |= {(millis(partition.slice_start), partition.bucket) for partition in everywhere}
    return {(table.value, *name) for name in names for table in plan.tables}
