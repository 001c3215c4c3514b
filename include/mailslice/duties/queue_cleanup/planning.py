"""The plan: which slices are dead, and where browseStart may go. Changes nothing in the stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from mailslice.admin.queues import require
from mailslice.codec import message
from mailslice.duties.queue_cleanup import candidates, decide
from mailslice.duties.queue_cleanup.decide import Counts, SliceRows
from mailslice.duties.queue_cleanup.orphan_rows import orphan_rows_of
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan import WHY, CleanupPlan, PlannedPartition, Reads, RowKey
from mailslice.duties.queue_cleanup.repair_risk import unrepaired_tables
from mailslice.duties.queue_cleanup.view import (
    Starts,
    micros,
    range_of,
    rows_of,
    slices_before,
    slices_to_read,
    starts_of,
    tables_of,
)
from mailslice.engine.partition_scan import PartitionScan, Scan, millis, scan
from mailslice.engine.row_files import Digest
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.clocks import require_clock
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId
from mailslice.model.names import QueueTable
from mailslice.model.slices import is_live
from mailslice.view.configuration import Shape, view_shape

_SAMPLED_PARTITIONS, _SAMPLED_ROWS = 5, 20
_LIVE_PARTITIONS, _LIVE_IDS = 200, 20
"""Of so many partitions with live rows a plan names so many ids, of the others one."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The partitions that were read, and what was true when they were.

    `swept`: slices before contentStart, for a sweep. `browse`: browseStart as it was read after the
    marks; what lies behind it proves nothing by having no mark.
    """

    shape: Shape
    open_for: timedelta
    tables: tuple[QueueTable, ...]
    starts: Starts
    now: datetime
    requested: int
    swept: frozenset[datetime]
    partitions: Sequence[PartitionScan]
    slices: Sequence[SliceRows]
    marks_read: datetime
    browse: datetime | None

    @property
    def oldest_live(self) -> datetime | None:
        """The slice of the oldest live row."""
        if self.browse is None:
            return None
        return decide.oldest_live(self.slices, self.browse, self.shape.window)

    @property
    def counts(self) -> Counts:
        """Rows as seen from browseStart."""
        return decide.counts(self.slices, self.browse, self.shape.window)

    def new_browse_start(self, grace: timedelta) -> datetime | None:
        """Where browseStart may go; None: it stays."""
        if self.browse is None:
            return None
        highest = decide.highest_browse_start(self.open_for, now=self.now, grace=grace)
        window = self.shape.window
        return decide.new_browse_start(self.browse, self.oldest_live, window, highest)

    def live_rows(self) -> Iterator[RowKey]:
        """Some rows of each partition with live ones, oldest first."""
        if self.browse is None:
            return
        live = [
            partition
            for partition in sorted(self.partitions, key=_key)
            if partition.unmarked and is_live(partition.slice_start, self.browse, self.shape.window)
        ]
        for number, partition in enumerate(live):
            ids = partition.survivors[: _LIVE_IDS if number < _LIVE_PARTITIONS else 1]
            table = QueueTable(partition.table)
            for one in ids:
                yield RowKey(table, partition.slice_ms, partition.bucket, EnqueueId(UUID(one)))


def make_plan(run: Run) -> CleanupPlan:
    """Raises UnknownQueue, ClockSkew, ConfigurationDiffers, StoreUnavailable."""
    params = run.params(Params)
    grace = params.grace_or(run.settings.duty.grace)
    require(run.stores, run.queue)
    require_clock(run, grace)
    reading = _read(run, grace)
    partitions = reading.partitions
    strays = orphan_rows_of(partitions, reading.swept) if reading.browse is not None else ()
    planned = sorted((PlannedPartition.of(one) for one in partitions if one.planned), key=_key)
    plan = CleanupPlan(
        run=run.request.run,
        queue=run.queue,
        made_at=reading.now,
        marks_read=reading.marks_read,
        grace=grace,
        shape=reading.shape,
        open_for=reading.open_for,
        tables=reading.tables,
        ranged=params.ranged,
        browse_start=reading.browse,
        new_browse_start=None if params.ranged else reading.new_browse_start(grace),
        rows=sum((one.digest for one in partitions), Digest()),
        row_files=tuple(sorted({one.file for one in planned})),
        partitions=run.write_rows("partitions", planned, PlannedPartition),
        live=run.write_rows("live", reading.live_rows(), RowKey),
        strays=strays if params.aside else (),
        candidates=None if params.ranged else candidates.recorded(run),
        reads=Reads(
            reading.requested, len(partitions), len(partitions) - len({*map(_key, partitions)})
        ),
    )
    _expect_marks(run, plan)
    counts = reading.counts
    run.report(
        unproven=counts.unproven,
        undated=sum(one.undated for one in partitions),
        before={
            "browseStart": iso(plan.browse_start),
            "contentStart": iso(reading.starts.content),
            "live": counts.live,
            "dead": counts.dead,
        },
        newBrowseStart=iso(plan.new_browse_start),
        bytes=round(plan.planned * _bytes_a_row(run, planned)),
        unrepaired=unrepaired_tables(run, plan, planned),
        strays=[
            {"slice": iso(row.slice_start), "enqueueId": str(row.enqueue_id)} for row in strays
        ],
        message="; ".join(_words(plan, planned, reading, len(strays) if not params.aside else 0)),
    )
    return plan


def _key(partition: PartitionScan | PlannedPartition) -> tuple[int, str, int]:
    return partition.slice_ms, partition.table, partition.bucket


def _read(run: Run, grace: timedelta) -> _Reading:
    params, stores, queue = run.params(Params), run.stores, run.queue
    shape, tables = view_shape(stores, checked=True), tables_of(stores)
    starts, now = starts_of(stores, queue), run.clock()
    if params.restarted is not None and params.restarted > now:
        raise BadInput(
            f"restarted={iso(params.restarted)} lies ahead; allowed: the time at which the last "
            "node of James or worker of mailslice was restarted"
        )
    open_for = decide.open_for(shape, params.restarted, now=now, grace=grace)
    slices, buckets = _slices(run, shape, now) if starts.browse is not None else ([], 1)
    swept: list[datetime] = []
    if params.sweep and slices:
        swept, needed = slices_before(stores, queue, slices[0])
        slices, buckets = [*swept, *slices], max(buckets, needed)
    location, folder = run.folder.artifacts, run.folder.file(PLAN_FOLDER)
    spec = Scan(run.settings, queue, tables, buckets, location, folder, WHY, micros(now))
    keys = [
        (millis(start), decide.closed(start, open_for, now=now, grace=grace)) for start in slices
    ]
    partitions = scan(run.spark(), spec, keys) if keys else []
    crash.point("plan:after-scan")
    return _Reading(
        shape,
        open_for,
        tables,
        starts,
        now,
        len(keys) * buckets * len(tables),
        frozenset(swept),
        partitions,
        decide.by_slice(partitions),
        marks_read=run.clock(),
        browse=starts_of(stores, queue).browse,
    )


def _slices(run: Run, shape: Shape, now: datetime) -> tuple[list[datetime], int]:
    """The slices to read, oldest first, and how many buckets each has."""
    params = run.params(Params)
    first, last = range_of(run.stores, run.queue, now, shape)
    first = max(first, params.slices_from or first)
    last = min(last, params.slices_before or last)
    if first > last:
        return [], shape.buckets
    slices, buckets = slices_to_read(run.stores, run.queue, shape, first, last)
    return [start for start in slices if params.covers(start)], buckets


def _expect_marks(run: Run, plan: CleanupPlan) -> None:
    """A sweep lists all marks, and the run after it drops them: many marks are no small work."""
    if run.engine is not None:
        listed = plan.candidates.marks if plan.candidates else 0
        swept = candidates.estimated_marks(run) if run.params(Params).sweep else 0
        run.engine.expect(listed + swept)


def _words(
    plan: CleanupPlan, planned: Sequence[PlannedPartition], reading: _Reading, stray_count: int
) -> Iterator[str]:
    """What the plan comes to, in words. `stray_count`: those that stay."""
    if reading.starts.browse is None:
        yield "nothing to do: the queue has no browseStart, so no mail was ever put into it"
        return
    browse, oldest, unproven = iso(plan.browse_start), reading.oldest_live, reading.counts.unproven
    slices = len({one.slice_ms for one in planned})
    yield f"{plan.planned} dead rows in {slices} slices can go" if planned else "no dead row can go"
    if plan.ranged:
        yield "the starts stay, as the run is held to a range of slices"
    elif plan.new_browse_start is not None:
        yield f"browseStart can go to {iso(plan.new_browse_start)}"
    elif oldest is not None:
        yield f"browseStart stays at {browse} for the live row in slice {iso(oldest)}"
    if unproven:
        yield (
            f"{unproven} rows without a mark lie behind browseStart: they are kept, and nothing is "
            "said of them"
        )
    if plan.browse_start and not decide.aligned(plan.browse_start, plan.shape.window):
        yield f"browseStart {browse} is no multiple of the window: James finds no slice from it"
    if stray_count:
        yield (
            f"{stray_count} rows without a mark lie before contentStart: `--sweep --aside` sets "
            "them "
            "aside, from where `mailslice stuck release` puts them back"
        )


def _bytes_a_row(run: Run, planned: Sequence[PlannedPartition]) -> float:
    """About how many bytes a planned row holds: the mean of a few, as James' message has them.

    0 when none could be read.
    """
    step = max(1, len(planned) // _SAMPLED_PARTITIONS)
    sizes = [
        len(message.encode(row.item))
        for partition in planned[::step][:_SAMPLED_PARTITIONS]
        for row in islice(
            rows_of(run.stores, partition.table).rows(run.queue, partition.partition), _SAMPLED_ROWS
        )
    ]
    return sum(sizes) / len(sizes) if sizes else 0.0
