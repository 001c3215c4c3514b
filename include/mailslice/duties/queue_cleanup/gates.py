"""The gates of a cleanup, and the read of a sample of the planned rows.

Check judges every planned row. Verify checks the invariants against the stores for what this run
wrote, not for what James writes at the same time. Verify uses apply's record of what it wrote and
of its read after the deletes. It reads both starts once, and reads single rows and marks itself.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from mailslice.checks.expectations import Expectation, Frame
from mailslice.codec.row import epoch_ms, epoch_us
from mailslice.duties.queue_cleanup import decide
from mailslice.duties.queue_cleanup.plan import (
    CleanupPlan,
    PlannedPartition,
    RowKey,
    planned_partitions,
)
from mailslice.duties.queue_cleanup.reads import MARK_MISSING, Remaining
from mailslice.duties.queue_cleanup.view import Starts, rows_of, starts_of
from mailslice.engine.partition_scan import SURVIVORS_A_PARTITION
from mailslice.engine.row_files import PlanPart, PlanReader, unreadable_file
from mailslice.maintenance.artifacts import PLAN_FOLDER, iso
from mailslice.maintenance.gates import planned_rows
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.plan import OLDEST_PLAN
from mailslice.maintenance.report import is_dry
from mailslice.maintenance.result import Result
from mailslice.maintenance.run import Run
from mailslice.model.mail import EnqueueId, Partition
from mailslice.model.slices import is_live

MANY = 100_000
"""A plan of up to this many rows is never unusual."""
_SAMPLED_PARTITIONS, _SAMPLED_ROWS = 50, 20


def rows(run: Run, plan: CleanupPlan, partitions: Sequence[PlannedPartition]) -> Frame:
    """Judges every planned row as it is in the plan's files."""
    text, number = pa.string(), pa.int64()
    key = {"table": text, "slice_ms": number, "bucket": pa.int32(), "enqueue_id": text}
    schema = pa.schema({**key, "written_us": number, "closes_ms": number})
    open_ms = (plan.open_for + plan.grace) // timedelta(milliseconds=1)
    tables, buckets = [table.value for table in plan.tables], plan.buckets(partitions)
    closed = "Every planned slice is closed: its end and the grace are over."
    written = "Every row was written before the plan was made, which bounds its delete."
    expect = [
        Expectation.rows(plan.planned, "The plan's files have as many rows as were planned."),
        Expectation.one_of("table", tables, "Every row is in a table of the view."),
        Expectation.between("bucket", 0, buckets - 1, "Every row is in a bucket of the view."),
        Expectation.between("closes_ms", None, epoch_ms(plan.made_at), closed),
        Expectation.between("written_us", 1, epoch_us(plan.made_at), written),
        Expectation.unique(list(key), "No row is planned twice."),
    ]
    files = [f"{PLAN_FOLDER}/{file}" for file in plan.row_files]
    planned = planned_rows(run, files, schema, partial(_with_times, open_ms))
    return Frame("rows", planned, expect, may_be_empty=not plan.planned)


def _with_times(open_ms: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the start of each row's slice, and the time when it closes, in ms."""
    starts = batch.column("slice_start").cast(pa.int64())
    columns = {name: batch.column(name) for name in ("table", "bucket", "enqueue_id", "written_us")}
    return pa.RecordBatch.from_pydict(
        {**columns, "slice_ms": starts, "closes_ms": pc.add(starts, open_ms)}
    )


def stores(run: Run, plan: CleanupPlan, partitions: Sequence[PlannedPartition]) -> Frame:
    """Reads a sample of the planned rows from the stores, independently of the plan step."""
    now = run.clock()
    try:
        sampled = sample(run, partitions)
    except (OSError, ValueError, LookupError) as error:
        raise unreadable_file(f"{run.folder.uri}/{PLAN_FOLDER}", error) from error
    slices = {row.slice_start for row in sampled}
    return Frame.zeros(
        "stores",
        sampled_unmarked=(
            _unmarked(run, plan, sampled),
            "Of a random sample, every planned mail in view is marked as deleted now.",
        ),
        sampled_open=(
            sum(start + plan.open_for + plan.grace > now for start in slices),
            "Of a random sample, every slice is closed now.",
        ),
    )


def _unmarked(run: Run, plan: CleanupPlan, rows: Sequence[RowKey]) -> int:
    """How many of these rows exist unmarked and are not before browseStart, which is read last.

    James may raise it at any time, then drops marks, then rows. Other cleanups delete rows first.
    """
    marked = run.stores.tables.deleted.marked(run.queue, [row.enqueue_id for row in rows])
    unmarked = [row for row in rows if row.enqueue_id not in marked]
    existing_ids = existing(run, unmarked)
    browse = starts_of(run.stores, run.queue).browse
    return sum(
        row.enqueue_id in existing_ids
        for row in unmarked
        if browse is None or is_live(row.slice_start, browse, plan.shape.window)
    )


def totals(run: Run, plan: CleanupPlan) -> Frame:
    """One row: whether the plan step read all, and whether browseStart would pass a live mail."""
    new = plan.new_browse_start
    live = run.read_rows(plan.live, RowKey) if new is not None else []
    passed = sum(new is not None and row.slice_start < new for row in live)
    sentence = "browseStart does not pass a slice with a live mail."
    past_live = (passed, 0, 0, sentence)
    return Frame.facts("totals", **plan.reads.facts(), browse_start_past_live=past_live)


def sample(run: Run, partitions: Sequence[PlannedPartition]) -> list[RowKey]:
    """A random sample of the rows of these partitions, from the plan's files."""
    chosen = random.sample(partitions, min(_SAMPLED_PARTITIONS, len(partitions)))
    chosen.sort(key=lambda partition: (partition.file, partition.first))
    with PlanReader(run.folder.artifacts, run.folder.file(PLAN_FOLDER)) as reader:
        return [row for partition in chosen for row in _sampled_rows(reader, partition)]


def _sampled_rows(reader: PlanReader, partition: PlannedPartition) -> Iterator[RowKey]:
    group = partition.first + random.randrange(partition.groups)
    (table,) = reader.groups(PlanPart(partition.file, group, 1))
    ids = table.column("enqueue_id")
    numbers = random.sample(range(len(ids)), min(_SAMPLED_ROWS, len(ids)))
    return RowKey.of(partition, (ids[number].as_py() for number in numbers))


def existing(run: Run, keys: Sequence[RowKey]) -> set[EnqueueId]:
    """The ids of these keys that have a row now."""
    ids: dict[str, dict[Partition, list[EnqueueId]]] = defaultdict(lambda: defaultdict(list))
    for key in keys:
        ids[key.table][key.partition].append(key.enqueue_id)
    return {
        row.enqueue_id
        for table, by_partition in ids.items()
        for _, page in rows_of(run.stores, table).existing_ids(run.queue, by_partition.items())
        for row in page
    }


@dataclass(frozen=True)
class Verification:
    """What this run wrote, and the stores now. `live`: rows that were live in the plan."""

    run: Run
    plan: CleanupPlan
    result: Result
    remaining: Remaining
    starts: Starts
    live: list[RowKey]
    planned: list[PlannedPartition]

    @classmethod
    def of(cls, run: Run, plan: CleanupPlan, result: Result) -> Self:
        """Raises PlanRefused if a file of the plan was changed."""
        remaining, starts = Remaining.load(run, plan.made_at), starts_of(run.stores, run.queue)
        rows = run.read_rows(plan.live, RowKey), planned_partitions(run, plan)
        return cls(run, plan, result, remaining, starts, *rows)

    def frame(self) -> Frame:
        browse, content = self.starts.browse, self.starts.content
        return Frame.zeros(
            "after",
            deleted_rows_there=(
                self._deleted_rows_still_stored(),
                "No row that was deleted is there, in a sample.",
            ),
            planned_rows_left_without_mark=(
                self._planned_rows_without_mark(),
                "No row in view that was planned dead has lost its deleted mark, in a sample.",
            ),
            live_rows_passed=(
                self._live_rows_passed(),
                "The browseStart of this run passed no mail that was live when the plan was made.",
            ),
            survivors_lost=(
                self._survivors_lost(),
                "Every mail that was live when the plan was made is there, or was done since.",
            ),
            content_start_past_browse_start=(
                int(browse is not None and content is not None and content > browse),
                "contentStart is not after browseStart.",
            ),
            browse_start_unaligned=(
                self._unaligned("browseStart", browse),
                "The browseStart of this run is a multiple of the slice window.",
            ),
            content_start_unaligned=(
                self._unaligned("contentStart", content),
                "The contentStart of this run is a multiple of the slice window.",
            ),
        )

    def closed_slices(self) -> list[dict[str, object]]:
        """The closed slices with rows as they were read, for queue_size and browse.

        They are hints and no proofs: a late insert may come. Empty if the run has a slice range.
        """
        plan, now = self.plan, self.remaining.read_at
        return [
            {
                "start": iso(slice_.start),
                "live": slice_.unmarked,
                "dead": slice_.dead,
                "survivors": slice_.survivors[:SURVIVORS_A_PARTITION],
            }
            for slice_ in ([] if plan.ranged else self.remaining.slices())
            if decide.closed(slice_.start, plan.open_for, now=now, grace=plan.grace)
        ]

    def _wrote(self, name: str) -> datetime | None:
        value = self.result.fields.get("wrote", {}).get(name)
        return datetime.fromisoformat(value) if value else None

    def _why_skipped(self, part: PlannedPartition) -> Any:
        return self.result.fields.get("skippedSlices", {}).get(iso(part.slice_start))

    def _unaligned(self, name: str, now: datetime | None) -> int:
        """1 if the stored start is the one this run wrote and no multiple of the window, else 0."""
        if now is None or now != self._wrote(name):
            return 0
        return int(not decide.aligned(now, self.plan.shape.window))

    def _planned_rows_without_mark(self) -> int:
        """Counts in a sample of the remaining rows. Apply drops marks after its last read."""
        left = [
            part
            for part in self.planned
            if self.remaining.planned_in(part) and self._why_skipped(part) != MARK_MISSING
        ]
        return _unmarked(self.run, self.plan, sample(self.run, left))

    def _deleted_rows_still_stored(self) -> int:
        """How many rows exist of a sample of those that apply reported as deleted."""
        chosen = [part for part in self.planned if not self._why_skipped(part)]
        tried = chosen[: self.result.fields.get("tried")]
        deleted = [part for part in tried if not self.remaining.planned_in(part)]
        return len(existing(self.run, sample(self.run, deleted)))

    def _live_rows_passed(self) -> int:
        """Unmarked rows before this run's browseStart that were live when the plan was made.

        A live row was written before the plan, in a slice that was in view. Reads the partitions
        again in which the plan or the read after the deletes saw such rows. Rows before a
        browseStart that James wrote, earlier or later, are not judged: James drops marks there.
        """
        written_start, fields = self._wrote("browseStart"), self.result.fields
        if written_start is None or not (raised := fields.get("browseStartBefore")):
            return 0
        before = datetime.fromisoformat(raised)
        read_back = self.remaining.partitions.values()  # a planned row was dead
        early_partitions = (one for one in read_back if one.early > one.matched_unmarked)
        read_again = {key.name: key for key in (*self.live, *early_partitions)}
        made_us, window = epoch_us(self.plan.made_at), self.plan.shape.window
        early = [
            RowKey(*name, row.enqueue_id)
            for name, key in read_again.items()
            if is_live(key.slice_start, before, window) and key.slice_start < written_start
            for row in rows_of(self.run.stores, key.table).ids(self.run.queue, key.partition)
            if row.written_us is not None and row.written_us <= made_us
        ]
        ids = [row.enqueue_id for row in early]
        marked = self.run.stores.tables.deleted.marked(self.run.queue, ids)
        # Another cleanup may have deleted rows, then marks, meanwhile.
        unmarked = existing(self.run, [row for row in early if row.enqueue_id not in marked])
        start = self.run.stores.tables.browse_starts.get(self.run.queue)
        is_ours = start and start.written_us == fields.get("browseStartWrittenUs")
        return len(unmarked) if is_ours else 0

    def _survivors_lost(self) -> int:
        """The plan's live mails that have neither row nor mark and are not before browseStart.

        0 if another cleanup worked since: such a mail may have been done, then cleaned.
        """
        existing_ids = existing(self.run, self.live)
        missing = [row for row in self.live if row.enqueue_id not in existing_ids]
        ids = [row.enqueue_id for row in missing]
        marked = self.run.stores.tables.deleted.marked(self.run.queue, ids)
        browse = starts_of(self.run.stores, self.run.queue).browse
        lost = sum(
            browse is not None and is_live(row.slice_start, browse, self.plan.shape.window)
            for row in missing
            if row.enqueue_id not in marked
        )
        return 0 if lost and self._another_worked() else lost

    def _another_worked(self) -> bool:
        """Whether another run may have deleted since the plan: its row is in the ledger before.

        A killed run has no end: its plan was valid for a day, and its apply ended within another.
        """
        run, made_at = self.run, self.plan.made_at
        for report in Ledger(run.stores, run.settings).list(run.request.duty, run.queue):
            at = datetime.fromisoformat(report["finished"] or report["started"])
            since = made_at if report["finished"] else made_at - 2 * OLDEST_PLAN
            if report["run"] != run.request.run and not is_dry(report) and at >= since:
                return True
        return False
