"""What the gate judges of a plan: every planned row, and what the stores say now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.queue_cleanup.plan import CleanupPlan, PlannedPartition, RowKey
from mailslice.duties.queue_cleanup.sample import existing, sample
from mailslice.duties.queue_cleanup.view import micros, starts_of
from mailslice.engine.partition_scan import millis
from mailslice.maintenance.gates import planned_rows
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.model.slices import is_live

if TYPE_CHECKING:
    import pyarrow as pa

MANY = 100_000
"""So many rows are never too many."""


def rows(run: Run, plan: CleanupPlan, partitions: Sequence[PlannedPartition]) -> Frame:
    """Every planned row as it is in the plan's files."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("table", pa.string()),
            ("slice_ms", pa.int64()),
            ("bucket", pa.int32()),
            ("enqueue_id", pa.string()),
            ("written_us", pa.int64()),
            ("closes_ms", pa.int64()),
        ]
    )
    open_ms = (plan.open_for + plan.grace) // timedelta(milliseconds=1)
    expect = [
        Expectation.one_of(
            "table", [table.value for table in plan.tables], "Every row is in a table of the view."
        ),
        Expectation.between(
            "bucket", 0, plan.buckets(partitions) - 1, "Every row is in a bucket of the view."
        ),
        Expectation.between(
            "closes_ms",
            None,
            millis(plan.made_at),
            "Every planned slice is closed: its end and the grace are over.",
        ),
        Expectation.between(
            "written_us",
            1,
            micros(plan.made_at),
            "Every row was written before the plan was made, which bounds its delete.",
        ),
        Expectation.unique(
            ("table", "slice_ms", "bucket", "enqueue_id"), "No row is planned twice."
        ),
    ]
    files = [f"{PLAN_FOLDER}/{file}" for file in plan.row_files]
    planned = planned_rows(run, files, schema, partial(_with_times, open_ms))
    return Frame("rows", planned, expect, may_be_empty=not plan.planned)


def _with_times(open_ms: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its slices as milliseconds, and when each of them closes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = batch.column("slice_start").cast(pa.int64())
    columns = {name: batch.column(name) for name in ("table", "bucket", "enqueue_id", "written_us")}
    return pa.RecordBatch.from_pydict(
        {**columns, "slice_ms": starts, "closes_ms": pc.add(starts, open_ms)}
    )


def stores(run: Run, plan: CleanupPlan, partitions: Sequence[PlannedPartition]) -> Frame:
    """What the stores say now of a sample of the planned rows, whatever the plan step saw."""
    now = run.clock()
    try:
        sampled = sample(run, partitions)
    except (OSError, ValueError) as error:
        raise PlanRefused(
            f"the files of the plan below {run.folder.uri}/{PLAN_FOLDER} were changed or removed "
            f"({error}): plan again"
        ) from error
    marked = run.stores.tables.deleted.marked(run.queue, [row.enqueue_id for row in sampled])
    unmarked = [row for row in sampled if row.enqueue_id not in marked]
    slices = {row.slice_start for row in sampled}
    open_now = sum(start + plan.open_for + plan.grace > now for start in slices)
    return Frame.facts(
        "stores",
        (
            _still_live(run, plan, unmarked),
            Expectation.equal(
                "sampled_unmarked",
                0,
                "Of a random sample, every planned mail in view is marked as deleted now.",
            ),
        ),
        (
            open_now,
            Expectation.equal("sampled_open", 0, "Of a random sample, every slice is closed now."),
        ),
    )


def _still_live(run: Run, plan: CleanupPlan, unmarked: Sequence[RowKey]) -> int:
    """How many of these rows are there and not behind browseStart as it is read last.

    James moves it on at any time, then drops marks, then rows; another cleanup rows, then marks.
    """
    existing_ids = existing(run, unmarked)
    browse = starts_of(run.stores, run.queue).browse
    return sum(
        row.enqueue_id in existing_ids
        for row in unmarked
        if browse is None or is_live(row.slice_start, browse, plan.shape.window)
    )


def totals(run: Run, plan: CleanupPlan) -> Frame:
    """One row: what the plan step read, and where browseStart may go."""
    new = plan.new_browse_start
    live = run.read_rows(plan.live, RowKey) if new is not None else []
    passed = sum(new is not None and row.slice_start < new for row in live)
    return Frame.facts(
        "totals",
        (
            plan.reads.read,
            Expectation.equal(
                "places_read",
                plan.reads.requested,
                "Every partition that was to be read was read: an unread one is not an empty one.",
            ),
        ),
        (
            plan.reads.twice,
            Expectation.equal("places_read_twice", 0, "No partition was counted twice."),
        ),
        (
            passed,
            Expectation.equal(
                "browse_start_past_live", 0, "browseStart does not pass a slice with a live mail."
            ),
        ),
    )
