"""The two reads of an apply: right before the first change, and after the deletes.

The first read tells which slices are still as planned. The second reads all remaining rows of both
tables once. Its result is stored in the run's folder for verify and report. If the time limit ends
a read, the unread slices are unknown: nothing is deleted there, and no start passes them.
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
END_OF_TIME = datetime.max.replace(tzinfo=UTC)
_ROUND_S, _SLICES_A_SLOT = 10.0, 16
"""After a round of less than `_ROUND_S` the next has twice as many slices, up to this limit."""
P = TypeVar("P", bound=PartitionKey)
Read: TypeAlias = Callable[[Session, RemainingSpec, list[PlanKey]], list[P]]
Planned: TypeAlias = Sequence[PlannedPartition]


@dataclass(frozen=True)
class SecondRead:
    """Every partition of every planned slice, and of all slices that browseStart would pass.

    `low`: the lower of the plan's browseStart and the one stored at the beginning of the read. If
    James lowered it, rows from there on are live again. `unread_from`: the first unread slice.
    """

    plan: CleanupPlan
    low: datetime | None
    partitions: Mapping[PartitionName, PartitionNow]
    unread_from: datetime

    def skipped(self, planned: Planned) -> dict[datetime, str]:
        """Slices that stay: unread, with unplanned rows, or with a planned row without a mark."""
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
        """The number of planned rows that another run or James deleted, by partition."""
        return {part.name: part.rows - self.partitions[part.name].matched for part in planned}

    def browse_start(self, stored: datetime | None) -> datetime | None:
        """The planned browseStart, but not past the oldest live row or the first unread slice.

        None if browseStart stays: the result is not after `stored`, or `stored` was lowered below
        the slices of this read.
        """
        target, window = self.plan.new_browse_start, self.plan.shape.window
        if target is None or stored is None or self.low is None or stored < self.low:
            return None
        unmarked = (now.slice_start for now in self.partitions.values() if now.unmarked)
        live = (start for start in unmarked if is_live(start, stored, window))
        target = min(target, *(slice_start(start, window) for start in (self.unread_from, *live)))
        return target if target > stored else None


def second_read(run: Run, plan: CleanupPlan, planned: Planned) -> SecondRead:
    """Read the slices again. It leaves a quarter of the remaining time for the deletes.

    Raises PlanRefused if the view's configuration or the rows in the plan's files changed.
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
    digest = sum((partition.digest for partition in now.values()), Digest())
    digests = (part.digest for part in planned if part.slice_start < unread_from)
    if digest != (expected := sum(map(Digest.parse, digests), Digest())):
        raise PlanRefused(
            f"the files of the plan were changed: their rows have the digest {digest}, "
            f"the plan says {expected}; plan again"
        )
    return SecondRead(plan, low, now, unread_from)


def _in_time(
    run: Run, plan: CleanupPlan, keys: list[PlanKey], read: Read[P], *, spare: float, least: int = 0
) -> tuple[dict[PartitionName, P], datetime]:
    """Read the keys in rounds of whole slices. Gives the partitions, and the first unread slice.

    Always reads the first `least` slices. Then it stops before a round that, by the time of the
    last round, would leave less than `spare` seconds. Both kinds of slices have their own rounds.
    """
    files = (run.settings, run.queue, run.folder.artifacts, run.folder.file(PLAN_FOLDER))
    spec, session = RemainingSpec(*files, epoch_us(plan.made_at)), run.session()
    slices = [list(group) for _, group in groupby(keys, attrgetter("slice_ms"))]
    partitions: dict[PartitionName, P] = {}
    at, seconds, slots = 0, 0.0, slots_of(session)
    count, least = (slots, least) if run.time_left() < inf else (len(slices), len(slices))
    while at < len(slices):
        if at == least:
            seconds, count = 0.0, slots
        time_left = run.time_left()
        if time_left - seconds < spare and at >= least:
            return partitions, slices[at][0].slice_start
        end = min(at + count, least if at < least else len(slices))
        batch = [*chain.from_iterable(slices[at:end])]
        results = {partition.name: partition for partition in read(session, spec, batch)}
        if len(results) != len(batch):
            raise PlanRefused(
                f"a read gave {len(results)} of {len(batch)} partitions: nothing is known of the "
                "others; the next run goes on"
            )
        partitions |= results
        at, seconds = end, time_left - run.time_left()
        if seconds < _ROUND_S:
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
    """Partitions as they were read after the deletes; the read began at `read_at`.

    In slices from `unread_from` on, only those with deletes were read.
    """

    partitions: Mapping[PartitionName, UnmarkedPartition]
    read_at: datetime
    unread_from: datetime = END_OF_TIME

    @property
    def is_whole(self) -> bool:
        return self.unread_from == END_OF_TIME

    def planned_in(self, partition: PlannedPartition) -> int:
        """The number of planned rows left in a partition that was read."""
        match = self.partitions.get(partition.name)
        return match.matched if match else 0

    def oldest_row(self, at_or_after: datetime | None) -> datetime:
        """The oldest slice that has a row or was not read, of those not before `at_or_after`."""
        starts = (one.slice_start for one in self.partitions.values() if one.rows)
        later = (start for start in starts if at_or_after is None or start >= at_or_after)
        return min((self.unread_from, *later))

    def ids(self) -> Halves:
        """The low halves of the ids of all remaining rows, sorted."""
        return halves_of([partition.ids for partition in self.partitions.values()])

    def slices(self) -> list[SliceRows]:
        return by_slice(self.partitions.values())

    def save(self, run: Run) -> None:
        """Write the partitions that have rows, without their ids, to the run's folder."""
        rows = [astuple(partition)[:-1] for partition in self.partitions.values() if partition.rows]
        times = {"readAt": iso(self.read_at), "unreadFrom": iso(self.unread_from)}
        run.folder.write_json(_READ_BACK_FILE, {**times, "places": rows})

    @classmethod
    def load(cls, run: Run, otherwise: datetime) -> Self:
        """What `save` wrote. Without a file (apply had nothing to do): empty, as of `otherwise`."""
        value: Mapping[str, Any] | None = run.folder.read_json(_READ_BACK_FILE)
        if value is None:
            return cls({}, otherwise)
        rows = [UnmarkedPartition(*[*row[:-1], tuple(row[-1]), b""]) for row in value["places"]]
        times = (value["readAt"], value.get("unreadFrom") or iso(END_OF_TIME))
        return cls({row.name: row for row in rows}, *map(datetime.fromisoformat, times))


def read_remaining(run: Run, second: SecondRead, planned: Planned, deleted: Planned) -> Remaining:
    """Read slices with deletes back at quorum, and the other slices while there is time.

    If `second` was cut off by the time limit no other slice is read. Raises PlanRefused if a
    partition is missing in the result.
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
    """The partitions from contentStart to now; all, if this run sweeps or drops a sweep's marks."""
    first, last = range_of(run.stores, run.queue, run.clock(), plan.shape)
    slices, buckets = slices_to_read(run.stores, run.queue, plan.shape, first, last)
    names = {(epoch_ms(start), bucket) for start in slices for bucket in range(buckets)}
    if plan.candidates is not None or run.params(Params).sweep:
        everywhere = partitions_in_use(run.stores.tables, run.queue)
        names |= {(epoch_ms(partition.slice_start), partition.bucket) for partition in everywhere}
    return {(table.value, *name) for name in names for table in plan.tables}
