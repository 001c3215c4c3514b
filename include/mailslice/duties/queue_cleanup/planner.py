"""Plans which slices are emptied and where browseStart may go. Changes nothing in the stores."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice

from mailslice.admin.queues import require
from mailslice.codec import message
from mailslice.codec.row import epoch_ms, epoch_us
from mailslice.duties.queue_cleanup import candidates, decide, view
from mailslice.duties.queue_cleanup.decide import RowCounts, SliceRows
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan import CleanupPlan, PlannedPartition, RowKey
from mailslice.duties.queue_cleanup.view import Starts
from mailslice.engine.partition_scan import PartitionKey, PartitionScan, Scan, scan
from mailslice.engine.row_files import Digest
from mailslice.maintenance.artifacts import PLAN_FOLDER, iso
from mailslice.maintenance.gates import Reads
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.names import DELETED_MAILS, QueueTable
from mailslice.model.slices import is_live
from mailslice.stores.cassandra.repairs import table_repairs
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.sharing import is_alone

MAX_ORPHAN_ROWS = 100
"""The most rows of a run. The next sweep takes more."""
_SAMPLED_PARTITIONS, _SAMPLED_ROWS = 5, 20
_LIVE_PARTITIONS, _LIVE_IDS = 200, 20
"""A plan names `_LIVE_IDS` live rows of each of the first partitions, one of each other."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The partitions that were read, and the state of the view at that time.

    `swept`: slices whose unmarked rows a sweep reports. `browse`: browseStart, read after the
    marks. A row before it may have no mark because James dropped the mark.
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
        return self.browse and decide.oldest_live(self.slices, self.browse, self.shape.window)

    @property
    def counts(self) -> RowCounts:
        return decide.counts(self.slices, self.browse, self.shape.window)

    def new_browse_start(self, grace: timedelta) -> datetime | None:
        highest = decide.highest_browse_start(self.open_for, now=self.now, grace=grace)
        stored, oldest, window = self.browse, self.oldest_live, self.shape.window
        return stored and decide.new_browse_start(stored, oldest, window, highest)

    def live_rows(self) -> Iterator[RowKey]:
        """One or more live rows of each partition that has any, oldest first."""
        if self.browse is None:
            return
        browse, window = self.browse, self.shape.window
        live = (
            partition
            for partition in self.partitions
            if partition.unmarked and is_live(partition.slice_start, browse, window)
        )
        for number, partition in enumerate(sorted(live, key=_order)):
            limit = _LIVE_IDS if number < _LIVE_PARTITIONS else 1
            yield from RowKey.of(partition, partition.survivors[:limit])

    def orphan_rows(self) -> tuple[RowKey, ...]:
        """The first MAX_ORPHAN_ROWS rows without a mark in the swept slices."""
        swept = (scanned for scanned in self.partitions if scanned.slice_start in self.swept)
        rows = chain.from_iterable(RowKey.of(scanned, scanned.survivors) for scanned in swept)
        return tuple(islice(rows, MAX_ORPHAN_ROWS))


def make_plan(run: Run) -> CleanupPlan:
    """Raises UnknownQueue, ClockSkew, ConfigurationDiffers, StoreUnavailable."""
    params = run.params(Params)
    grace = run.settings.duty.grace if params.grace is None else params.grace
    require(run.stores, run.queue)
    run.require_clock(grace)
    reading = _read(run, grace)
    partitions = reading.partitions
    orphan_rows = reading.orphan_rows()
    planned = sorted((PlannedPartition.of(one) for one in partitions if one.planned), key=_order)
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
        rows=sum((partition.digest for partition in partitions), Digest()),
        row_files=tuple(sorted({partition.file for partition in planned})),
        partitions=run.write_rows("partitions", planned, PlannedPartition),
        live=run.write_rows("live", reading.live_rows(), RowKey),
        strays=orphan_rows if params.aside else (),
        candidates=None if params.ranged else candidates.recorded(run),
        reads=Reads.of(reading.requested, [partition.name for partition in partitions]),
    )
    _expect_marks(run, plan)
    counts = reading.counts
    run.report(
        unproven=counts.unproven,
        undated=sum(partition.undated for partition in partitions),
        before={
            "browseStart": iso(plan.browse_start),
            "contentStart": iso(reading.starts.content),
            "live": counts.live,
            "dead": counts.dead,
        },
        newBrowseStart=iso(plan.new_browse_start),
        bytes=round(plan.planned * _bytes_a_row(run, planned)),
        unrepaired=unrepaired_tables(run, plan, planned, plan.new_browse_start or reading.browse),
        strays=[
            {"slice": iso(row.slice_start), "enqueueId": str(row.enqueue_id)} for row in orphan_rows
        ],
        message="; ".join(_words(plan, planned, reading, 0 if params.aside else len(orphan_rows))),
    )
    return plan


def _order(partition: PartitionKey) -> tuple[int, str, int]:
    return partition.slice_ms, partition.table, partition.bucket


def _read(run: Run, grace: timedelta) -> _Reading:
    params, stores, queue = run.params(Params), run.stores, run.queue
    shape, tables = view_shape(stores, checked=True), view.tables_of(stores)
    starts, now = view.starts_of(stores, queue), run.clock()
    if params.restarted is not None and params.restarted > now:
        raise BadInput(
            f"restarted={iso(params.restarted)} lies ahead; allowed: the time at which the last "
            "node of James or worker of mailslice was restarted"
        )
    open_for = decide.open_for(shape, params.restarted, now=now, grace=grace)
    slices, buckets = _slices(run, shape, now) if starts.browse is not None else ([], 1)
    swept: list[datetime] = []
    if params.sweep and slices:
        swept, needed = view.slices_before(stores, queue, slices[0])
        slices, buckets = [*swept, *slices], max(buckets, needed)
    location, folder = run.folder.artifacts, run.folder.file(PLAN_FOLDER)
    spec = Scan(run.settings, queue, location, folder, tables, buckets, epoch_us(now))
    keys = [
        (epoch_ms(start), decide.closed(start, open_for, now=now, grace=grace)) for start in slices
    ]
    partitions = scan(run.session(), spec, keys) if keys else []
    crash.point("plan:after-scan")
    marks_read, browse = run.clock(), view.starts_of(stores, queue).browse
    if params.sweep and browse and not run.settings.queue.shared and is_alone(stores, queue):
        swept = [start for start in slices if not is_live(start, browse, shape.window)]
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
        marks_read,
        browse,
    )


def _slices(run: Run, shape: Shape, now: datetime) -> tuple[list[datetime], int]:
    """The slices to read, oldest first, and their number of buckets."""
    params = run.params(Params)
    first, last = view.range_of(run.stores, run.queue, now, shape)
    first = max(first, params.slices_from or first)
    last = min(last, params.slices_before or last)
    if first > last:
        return [], shape.buckets
    slices, buckets = view.slices_to_read(run.stores, run.queue, shape, first, last)
    return [start for start in slices if params.covers(start)], buckets


def _expect_marks(run: Run, plan: CleanupPlan) -> None:
    """Tell the engine how many marks the run lists or drops: many marks need Spark."""
    if run.engine is not None:
        listed = plan.candidates.marks if plan.candidates else 0
        swept = candidates.estimated_marks(run) if run.params(Params).sweep else 0
        run.engine.expect(listed + swept)


def _words(
    plan: CleanupPlan, planned: Sequence[PlannedPartition], reading: _Reading, orphan_rows: int
) -> Iterator[str]:
    """The parts of the plan's message. `orphan_rows`: the number of orphan rows that stay."""
    if reading.starts.browse is None:
        yield "nothing to do: the queue has no browseStart, so no mail was ever put into it"
        return
    browse, oldest, unproven = iso(plan.browse_start), reading.oldest_live, reading.counts.unproven
    slices = len({partition.slice_ms for partition in planned})
    yield f"{plan.planned} dead rows in {slices} slices can go" if planned else "no dead row can go"
    if plan.ranged:
        yield "the starts stay, as the run is held to a range of slices"
    elif plan.new_browse_start is not None:
        yield f"browseStart can go to {iso(plan.new_browse_start)}"
    elif oldest is not None:
        yield f"browseStart stays at {browse} for the live row in slice {iso(oldest)}"
    if unproven:
        yield f"{unproven} rows without a mark lie behind browseStart"
    if plan.browse_start and not decide.aligned(plan.browse_start, plan.shape.window):
        yield f"browseStart {browse} is no multiple of the window: James finds no slice from it"
    if orphan_rows:
        more = " or more" if orphan_rows == MAX_ORPHAN_ROWS else ""
        yield (
            f"`--sweep --aside` sets {orphan_rows}{more} rows without a mark aside, from where "
            "`mailslice stuck release` puts them back"
        )


def _bytes_a_row(run: Run, planned: Sequence[PlannedPartition]) -> float:
    """The mean size of some planned rows as messages, in bytes, as an estimate; 0 without rows."""
    step = max(1, len(planned) // _SAMPLED_PARTITIONS)
    sizes: list[int] = []
    with suppress(MailsliceError):  # only the report needs it
        for key in planned[::step][:_SAMPLED_PARTITIONS]:
            table = view.rows_of(run.stores, key.table)
            first = islice(table.ids(run.queue, key.partition), _SAMPLED_ROWS)
            rows = table.by_ids(run.queue, [(key.partition, [row.enqueue_id for row in first])])
            sizes += [len(message.encode(row.item)) for row in rows]
    return sum(sizes) / max(1, len(sizes))


def unrepaired_tables(
    run: Run, plan: CleanupPlan, partitions: Sequence[PlannedPartition], start: datetime | None
) -> list[str]:
    """A sentence for each table without a repair of all ranges within gc_grace (runbook, "Repair").

    A node that was down while mails were marked keeps their rows without a mark. When the other
    nodes have purged their tombstones such a row comes back, after browseStart as a live mail.
    Empty if no partition is after `start` (browseStart), or if rows have one replica. A history
    that cannot be read counts as unknown, not as recent.
    """
    if start is None or not any(partition.slice_start >= start for partition in partitions):
        return []
    tables = (*(table.cql for table in plan.tables), DELETED_MAILS)
    try:
        repairs = table_repairs(run.stores.cassandra, run.settings.cassandra.keyspace, tables)
    except MailsliceError as error:
        return [f"the repair history cannot be read: {error}"]
    now = run.clock()
    return [repair.sentence() for repair in repairs if not repair.is_recent(now)]
