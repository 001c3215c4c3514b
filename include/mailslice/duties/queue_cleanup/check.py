"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed.

It judges every planned row, on the engine that wrote them, and what the stores say now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mailslice.duties.queue_cleanup import sample
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan, SomeRows, read_plan
from mailslice.duties.queue_cleanup.starts import micros
from mailslice.duties.queue_cleanup.view import starts_of
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged, planned_rows
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.duty.usual import usual_frames
from mailslice.model.errors import PlanRefused
from mailslice.model.slices import is_live
from mailslice.quality.gate import Expectation, Frame
from mailslice.spark.slices import millis

if TYPE_CHECKING:
    import pyarrow as pa

_HOUR = timedelta(hours=1)
MANY = 100_000
"""So many rows are never too many."""


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    frames = [rows(context, plan), stores(context, plan), totals(plan)]
    if not plan.ranged:
        unusual = context.params(Params).unusual
        frames += usual_frames(context, plan.planned, MANY, unusual=unusual)
    return {
        **judged(context, "check", frames),
        "planDigest": plan.digest,
        "planned": plan.planned,
    }


def rows(context: StepContext, plan: Plan) -> Frame:
    """Every planned row as it is in the plan's files."""
    import pyarrow as pa

    files = sorted({f"{PARTS}/{place.part.file}" for place in plan.places})
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
    open_ms = int((plan.shape.open_for + plan.grace) / timedelta(milliseconds=1))
    buckets = max([plan.shape.buckets, *(place.place.bucket + 1 for place in plan.places)])
    expect = [
        Expectation.one_of(
            "table", [each.value for each in plan.tables], "Every row is in a table of the view."
        ),
        Expectation.between("bucket", 0, buckets - 1, "Every row is in a bucket of the view."),
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
    found = planned_rows(context, files, schema, partial(_with_times, open_ms))
    return Frame("rows", found, expect, may_be_empty=not plan.planned)


def _with_times(open_ms: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its slices as milliseconds, and when each of them closes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = batch.column("slice_start").cast(pa.int64())
    columns = {name: batch.column(name) for name in ("table", "bucket", "enqueue_id", "written_us")}
    return pa.RecordBatch.from_pydict(
        {**columns, "slice_ms": starts, "closes_ms": pc.add(starts, open_ms)}
    )


def stores(context: StepContext, plan: Plan) -> Frame:
    """What the stores say now of a sample of the planned rows and of their slices, whatever the plan step saw."""
    now, open_for = context.clock(), plan.shape.open_for + plan.grace
    try:
        chosen = sample.rows_of(context, plan.places)
    except (OSError, ValueError) as error:
        raise PlanRefused(
            f"the files of the plan below {context.folder.uri}/{PARTS} were changed or removed ({error}): plan again"
        ) from error
    marked = context.stores.tables.deleted.marked(
        context.queue, [one for each in chosen for one in each.ids]
    )
    unmarked = [replace(each, ids=tuple(set(each.ids) - marked)) for each in chosen]
    row = {
        "sampled_unmarked": _still_live(context, plan, [each for each in unmarked if each.ids]),
        "sampled_open": sum(each.place.slice_start + open_for > now for each in chosen),
        "age_hours": (now - plan.made_at) / _HOUR,
    }
    expect = [
        Expectation.equal(
            "sampled_unmarked",
            0,
            "Of a random sample, every planned mail in view is marked as deleted now.",
        ),
        Expectation.equal("sampled_open", 0, "Of a random sample, every slice is closed now."),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / _HOUR, "The plan is not older than a day."
        ),
    ]
    return Frame("stores", [row], expect)


def _still_live(context: StepContext, plan: Plan, unmarked: Sequence[SomeRows]) -> int:
    """How many of these rows are there and not behind browseStart as it is read last.

    James moves it on at any time, then drops marks, then rows. Another cleanup drops rows, then marks.
    """
    there = sample.ids_there(context, unmarked)
    browse = starts_of(context.stores, context.queue).browse
    return sum(
        one in there
        for each in unmarked
        if browse is None or is_live(each.place.slice_start, browse.value, plan.shape.window)
        for one in each.ids
    )


def totals(plan: Plan) -> Frame:
    """One row: what the plan step read, and where browseStart may go."""
    new, live = plan.new_browse_start, [each.place.slice_start for each in plan.live]
    row = {
        "places_read": plan.reads.read,
        "places_read_twice": plan.reads.twice,
        "browse_start_past_live": int(new is not None and any(start < new for start in live)),
    }
    expect = [
        Expectation.equal(
            "places_read",
            plan.reads.wanted,
            "Every partition that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("places_read_twice", 0, "No partition was counted twice."),
        Expectation.equal(
            "browse_start_past_live", 0, "browseStart does not pass a slice with a live mail."
        ),
    ]
    return Frame("totals", [row], expect)
