"""The two reads of an apply: right before anything is changed, and after the deletes.

The first says what of the plan is still true. The second gives every row that is left, in both
tables, read once. It is kept in the run's folder: verify and report build on the same read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any, Self

from mailslice.codec.row import epoch_ms, epoch_us
from mailslice.duties.queue_cleanup.decide import SliceRows, by_slice
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan import CleanupPlan, PlannedPartition
from mailslice.duties.queue_cleanup.view import range_of, slices_to_read, starts_of, tables_of
from mailslice.engine.mark_deletion import Halves, halves_of
from mailslice.engine.partition_scan import PartitionName
from mailslice.engine.plan_comparison import (
    PartitionNow,
    PlanKey,
    RemainingSpec,
    UnmarkedPartition,
    compare,
    read_after,
)
from mailslice.engine.row_files import NO_PART, Digest, PlanFiles
from mailslice.maintenance.artifacts import PLAN_FOLDER, iso
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.model.slices import is_live, slice_start
from mailslice.view.configuration import view_shape
from mailslice.view.partitions import partitions_in_use

CHANGED, MARK_MISSING = "changed since plan", "live again"
_READ_BACK_FILE = "left.json"
"""In the run's folder."""


@dataclass(frozen=True)
class SecondRead:
    """Every partition of every planned slice, and of all slices that browseStart would pass.

    `low`: the lower of the planned browseStart and the one stored when it began. Had James lowered
    it, the rows from there on would be live again.
    """

    plan: CleanupPlan
    low: datetime | None
    partitions: Sequence[PartitionNow]

    def skipped(self, planned: Sequence[PlannedPartition]) -> dict[datetime, str]:
        """Slices left alone, whole, and why: unknown rows, or a planned row that lost its mark."""
        slices = {partition.slice_start for partition in planned}
        skipped: dict[datetime, str] = {}
        for now in self.partitions:
            if now.slice_start in slices:
                if now.unmarked_planned:
                    skipped[now.slice_start] = MARK_MISSING
                elif now.foreign:
                    skipped.setdefault(now.slice_start, CHANGED)
        return skipped

    def deleted_rows(self, planned: Sequence[PlannedPartition]) -> dict[PartitionName, int]:
        """Planned rows that another run, or James, has deleted already."""
        matched = {now.name: now.matched for now in self.partitions}
        return {one.name: one.rows - matched[one.name] for one in planned}

    def browse_start(self, stored: datetime | None) -> datetime | None:
        """The planned browseStart, or up to the oldest live row of this read.

        None, it stays: when that is not beyond the stored one, or when the stored one was lowered
        below what this read covers.
        """
        target, window = self.plan.new_browse_start, self.plan.shape.window
        if target is None or stored is None or self.low is None or stored < self.low:
            return None
        unmarked = (now.slice_start for now in self.partitions if now.unmarked)
        live = [slice_start(one, window) for one in unmarked if is_live(one, stored, window)]
        target = min([target, *live])
        return target if target > stored else None


def second_read(run: Run, plan: CleanupPlan, planned: Sequence[PlannedPartition]) -> SecondRead:
    """Raises PlanRefused when the view has another shape by now, or the plan's files other rows."""
    _require_same_shape(run, plan)
    stored = starts_of(run.stores, run.queue).browse
    low = min(plan.browse_start, stored) if stored and plan.browse_start else None
    now = _compared(run, _keys(run, plan, planned, low))
    digest = sum((partition.digest for partition in now), Digest())
    if digest != plan.rows:
        raise PlanRefused(
            f"the files of the plan were changed: their rows have the digest {digest}, "
            f"plan.json says {plan.rows}; plan again"
        )
    return SecondRead(plan, low, now)


def _require_same_shape(run: Run, plan: CleanupPlan) -> None:
    shape, tables = view_shape(run.stores, checked=True), tables_of(run.stores)
    if (shape, tables) != (plan.shape, plan.tables):
        raise PlanRefused(
            "the configuration of the queue view changed since the plan was made: it was "
            f"{plan.shape} in {plan.tables}, it is {shape} in {tables}; plan again"
        )


def _keys(
    run: Run, plan: CleanupPlan, planned: Sequence[PlannedPartition], low: datetime | None
) -> list[PlanKey]:
    slices = {partition.slice_start for partition in planned}
    if plan.new_browse_start is not None and low is not None:
        last = plan.new_browse_start - plan.shape.window
        passed, _ = slices_to_read(run.stores, run.queue, plan.shape, low, last)
        slices |= {start for start in passed if start < plan.new_browse_start}
    parts = {partition.name: partition.part for partition in planned}
    buckets = range(plan.buckets(planned))
    names = [
        (table.value, epoch_ms(start), bucket)
        for start in sorted(slices)
        for bucket in buckets
        for table in plan.tables
    ]
    if outside := parts.keys() - set(names):
        raise PlanRefused(
            f"the plan names {len(outside)} partitions outside the view's tables and buckets, "
            f"such as {next(iter(outside))}; plan again"
        )
    return [PlanKey(*name, parts.get(name, NO_PART)) for name in names]


def _compared(run: Run, keys: Sequence[PlanKey]) -> list[PartitionNow]:
    """Every key once; none is asked of Spark where there is none."""
    if not keys:
        return []
    folder = run.folder.file(PLAN_FOLDER)
    spec = PlanFiles(run.settings, run.queue, run.folder.artifacts, folder)
    partitions = compare(run.spark(), spec, keys)
    if len(partitions) != len(keys):
        raise PlanRefused(
            f"the second read gave {len(partitions)} of {len(keys)} partitions: nothing is known "
            "of the others; plan again"
        )
    return partitions


@dataclass(frozen=True)
class Remaining:
    """Partitions as they were read after the deletes, from `read_at` on."""

    partitions: Mapping[PartitionName, UnmarkedPartition]
    read_at: datetime

    @classmethod
    def of(cls, partitions: Iterable[UnmarkedPartition], read_at: datetime) -> Self:
        """Each partition once."""
        return cls({one.name: one for one in partitions}, read_at)

    @property
    def planned(self) -> int:
        return sum(partition.matched for partition in self.partitions.values())

    def planned_in(self, partition: PlannedPartition) -> int:
        """How many planned rows of a partition are left; 0 where it has no row at all."""
        match = self.partitions.get(partition.name)
        return match.matched if match else 0

    def oldest_row(self, at_or_after: datetime | None) -> datetime | None:
        """The oldest slice with a row, not before `at_or_after`."""
        starts = (one.slice_start for one in self.partitions.values() if one.rows)
        return min(
            (one for one in starts if at_or_after is None or one >= at_or_after), default=None
        )

    def ids(self) -> Halves:
        """The low halves of the ids of all rows that are left, sorted."""
        return halves_of([partition.ids for partition in self.partitions.values()])

    def slices(self) -> list[SliceRows]:
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
    spec = RemainingSpec(run.settings, run.queue, location, folder, epoch_us(plan.made_at))
    remaining = Remaining.of(read_after(run.spark(), spec, keys), read_at)
    if remaining.partitions.keys() != names:
        raise PlanRefused(
            f"the read after the deletes gave {len(remaining.partitions)} of {len(names)} "
            "partitions: marks and contentStart stay, the next run goes on"
        )
    return remaining


def _names(run: Run, plan: CleanupPlan) -> set[PartitionName]:
    """From contentStart to now; for a sweep, and where a sweep's marks are to go, everywhere."""
    first, last = range_of(run.stores, run.queue, run.clock(), plan.shape)
    slices, buckets = slices_to_read(run.stores, run.queue, plan.shape, first, last)
    names = {(epoch_ms(start), bucket) for start in slices for bucket in range(buckets)}
    if plan.candidates is not None or run.params(Params).sweep:
        everywhere = partitions_in_use(run.stores.tables, run.queue)
        names |= {(epoch_ms(partition.slice_start), partition.bucket) for partition in everywhere}
    return {(table.value, *name) for name in names for table in plan.tables}
