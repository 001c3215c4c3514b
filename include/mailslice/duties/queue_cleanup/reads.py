"""The two reads of an apply: right before anything is changed, and after the deletes.

The first says what of the plan is still true. The second gives every row that is left, in both
tables, read once. It is kept in the run's folder: verify and report build on the same read.
What the time limit leaves of either is unknown: nothing there is deleted, and no start passes it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from math import inf
from operator import attrgetter
from typing import Any, Self, TypeAlias, TypeVar

from mailslice.codec.row import epoch_ms, epoch_us
from mailslice.duties.queue_cleanup.decide import SliceRows, by_slice
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan import CleanupPlan, PlannedPartition
from mailslice.duties.queue_cleanup.view import range_of, slices_to_read, starts_of, tables_of
from mailslice.engine.frames import Session, slots_of
from mailslice.engine.mark_deletion import Halves, halves_of
from mailslice.engine.partition_scan import PartitionKey, PartitionName
from mailslice.engine.plan_comparison import (
    PartitionNow,
    PlanKey,
    RemainingSpec,
    UnmarkedPartition,
    compare,
    read_after,
)
from mailslice.engine.row_files import NO_PART, Digest
from mailslice.maintenance.artifacts import PLAN_FOLDER, iso
from mailslice.maintenance.result import TIME_LIMIT
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.model.slices import is_live, slice_start
from mailslice.view.configuration import view_shape
from mailslice.view.partitions import partitions_in_use

CHANGED, MARK_MISSING = "changed since plan", "live again"
_READ_BACK_FILE = "left.json"
"""In the run's folder."""
END_OF_TIME = datetime.max.replace(tzinfo=UTC)
_ROUND_S, _SLICES_A_SLOT = 10.0, 16
"""A quicker round is followed by one of twice as many slices, of no more than these."""
P = TypeVar("P", bound=PartitionKey)
Read: TypeAlias = Callable[[Session, RemainingSpec, list[PlanKey]], list[P]]
Planned: TypeAlias = Sequence[PlannedPartition]


@dataclass(frozen=True)
class SecondRead:
    """Every partition of every planned slice, and of all slices that browseStart would pass.

    `low`: the lower of the planned browseStart and the one stored when it began. Had James lowered
    it, the rows from there on would be live again. `unread_from`: the first slice that it left.
    """

    plan: CleanupPlan
    low: datetime | None
    partitions: Mapping[PartitionName, PartitionNow]
    unread_from: datetime

    def skipped(self, planned: Planned) -> dict[datetime, str]:
        """Slices left alone, whole: not read, unknown rows, or a planned row that lost its mark."""
        slices = {partition.slice_start for partition in planned}
        skipped = {start: TIME_LIMIT for start in slices if start >= self.unread_from}
        for now in self.partitions.values():
            if now.slice_start in slices:
                if now.unmarked_planned:
                    skipped[now.slice_start] = MARK_MISSING
                elif now.foreign:
                    skipped.setdefault(now.slice_start, CHANGED)
        return skipped

    def deleted_rows(self, planned: Planned) -> dict[PartitionName, int]:
        """Planned rows that another run, or James, has deleted already."""
        return {one.name: one.rows - self.partitions[one.name].matched for one in planned}

    def browse_start(self, stored: datetime | None) -> datetime | None:
        """The planned browseStart, or up to the oldest live row, or the end, of this read.

        None, it stays: when that is not beyond the stored one, or when the stored one was lowered
        below what this read covers.
        """
        target, window = self.plan.new_browse_start, self.plan.shape.window
        if target is None or stored is None or self.low is None or stored < self.low:
            return None
        unmarked = (now.slice_start for now in self.partitions.values() if now.unmarked)
        live = (one for one in unmarked if is_live(one, stored, window))
        target = min(target, *(slice_start(one, window) for one in (self.unread_from, *live)))
        return target if target > stored else None


def second_read(run: Run, plan: CleanupPlan, planned: Planned) -> SecondRead:
    """Raises PlanRefused when the view has another shape by now, or the plan's files other rows.

    It leaves a quarter of the time for the deletes.
    """
    shape, tables = view_shape(run.stores, checked=True), tables_of(run.stores)
    if (shape, tables) != (plan.shape, plan.tables):
        raise PlanRefused(
            "the configuration of the queue view changed since the plan was made: it was "
            f"{plan.shape} in {plan.tables}, it is {shape} in {tables}; plan again"
        )
    stored = starts_of(run.stores, run.queue).browse
    low = min(plan.browse_start, stored) if stored and plan.browse_start else None
    keys, spare = _keys(run, plan, planned, low), run.time_left() / 4
    now, unread_from = _in_time(run, plan, keys, compare, spare=spare)
    digest = sum((one.digest for one in now.values()), Digest())
    parts = (one.digest for one in planned if one.slice_start < unread_from)
    if digest != (expected := sum(map(Digest.parse, parts), Digest())):
        raise PlanRefused(
            f"the files of the plan were changed: their rows have the digest {digest}, "
            f"the plan says {expected}; plan again"
        )
    return SecondRead(plan, low, now, unread_from)


def _in_time(
    run: Run, plan: CleanupPlan, keys: list[PlanKey], read: Read[P], *, spare: float, least: int = 0
) -> tuple[dict[PartitionName, P], datetime]:
    """What `read` makes of the keys, slice by slice, and the first slice that it left.

    After `least` slices it ends while `spare` seconds of the time limit are left, as far as the
    time of one round tells that of the next. No round goes across, and none tells that of others.
    """
    files = (run.settings, run.queue, run.folder.artifacts, run.folder.file(PLAN_FOLDER))
    spec, spark = RemainingSpec(*files, epoch_us(plan.made_at)), run.spark()
    slices = [list(group) for _, group in groupby(keys, attrgetter("slice_ms"))]
    partitions: dict[PartitionName, P] = {}
    at, took, slots = 0, 0.0, slots_of(spark)
    count, least = (slots, least) if run.time_left() < inf else (len(slices), len(slices))
    while at < len(slices):
        if at == least:
            took, count = 0.0, slots
        left = run.time_left()
        if left - took < spare and at >= least:
            return partitions, slices[at][0].slice_start
        end = min(at + count, least if at < least else len(slices))
        some = [*chain.from_iterable(slices[at:end])]
        results = {one.name: one for one in read(spark, spec, some)}
        if len(results) != len(some):
            raise PlanRefused(
                f"a read gave {len(results)} of {len(some)} partitions: nothing is known of the "
                "others; the next run goes on"
            )
        partitions |= results
        at, took = end, left - run.time_left()
        if took < _ROUND_S:
            count = min(2 * count, _SLICES_A_SLOT * slots)
    return partitions, END_OF_TIME


def _keys(run: Run, plan: CleanupPlan, planned: Planned, low: datetime | None) -> list[PlanKey]:
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


@dataclass(frozen=True)
class Remaining:
    """Partitions as they were read after the deletes, from `read_at` on.

    From `unread_from` on only those of slices with deletes were read.
    """

    partitions: Mapping[PartitionName, UnmarkedPartition]
    read_at: datetime
    unread_from: datetime = END_OF_TIME

    @property
    def is_whole(self) -> bool:
        return self.unread_from == END_OF_TIME

    def planned_in(self, partition: PlannedPartition) -> int:
        """How many planned rows of a partition that was read are left; 0 where it has no row."""
        match = self.partitions.get(partition.name)
        return match.matched if match else 0

    def oldest_row(self, at_or_after: datetime | None) -> datetime:
        """The oldest slice with a row, not before `at_or_after`, or that was not read."""
        starts = (one.slice_start for one in self.partitions.values() if one.rows)
        later = (one for one in starts if at_or_after is None or one >= at_or_after)
        return min((self.unread_from, *later))

    def ids(self) -> Halves:
        """The low halves of the ids of all rows that are left, sorted."""
        return halves_of([partition.ids for partition in self.partitions.values()])

    def slices(self) -> list[SliceRows]:
        return by_slice(self.partitions.values())

    def save(self, run: Run) -> None:
        """Write down the partitions that have rows, without their ids."""
        rows = [astuple(one)[:-1] for one in self.partitions.values() if one.rows]
        times = {"readAt": iso(self.read_at), "unreadFrom": iso(self.unread_from)}
        run.folder.write_json(_READ_BACK_FILE, {**times, "places": rows})

    @classmethod
    def load(cls, run: Run, otherwise: datetime) -> Self:
        """What `save` wrote; nothing, as of `otherwise`, where apply had nothing to do."""
        value: Mapping[str, Any] | None = run.folder.read_json(_READ_BACK_FILE)
        if value is None:
            return cls({}, otherwise)
        rows = [UnmarkedPartition(*[*row[:-1], tuple(row[-1]), b""]) for row in value["places"]]
        times = (value["readAt"], value.get("unreadFrom") or iso(END_OF_TIME))
        return cls({one.name: one for one in rows}, *map(datetime.fromisoformat, times))


def read_remaining(run: Run, second: SecondRead, planned: Planned, deleted: Planned) -> Remaining:
    """Read back at quorum; slices without deletes while there is time, where `second` was whole.

    Raises PlanRefused when a partition was not read.
    """
    read_at, plan = run.clock(), second.plan
    parts = {partition.name: partition.part for partition in planned}
    names, first = _names(run, plan) | parts.keys(), {partition.slice_ms for partition in deleted}
    keys = [PlanKey(*name, parts.get(name, NO_PART)) for name in names]
    keys.sort(key=lambda key: (key.slice_ms not in first, key.slice_ms))
    spare = 0.0 if second.unread_from == END_OF_TIME else inf
    partitions, unread_from = _in_time(run, plan, keys, read_after, spare=spare, least=len(first))
    return Remaining(partitions, read_at, unread_from)


def _names(run: Run, plan: CleanupPlan) -> set[PartitionName]:
    """From contentStart to now; for a sweep, and where a sweep's marks are to go, everywhere."""
    first, last = range_of(run.stores, run.queue, run.clock(), plan.shape)
    slices, buckets = slices_to_read(run.stores, run.queue, plan.shape, first, last)
    names = {(epoch_ms(start), bucket) for start in slices for bucket in range(buckets)}
    if plan.candidates is not None or run.params(Params).sweep:
        everywhere = partitions_in_use(run.stores.tables, run.queue)
        names |= {(epoch_ms(partition.slice_start), partition.bucket) for partition in everywhere}
    return {(table.value, *name) for name in names for table in plan.tables}
