"""Step 2: the gate over the plan's own rows. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mailslice.duties.migrate_v3_to_v4.plan_file import PARTS, Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged, planned_rows
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.model.names import QueueTable
from mailslice.quality.gate import Expectation, Frame
from mailslice.spark.plan_rows import instants

if TYPE_CHECKING:
    import pyarrow as pa


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation and the value."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    frames = [totals(plan, context.clock()), rows(context, plan)]
    return {
        **judged(context, "check", frames),
        "planDigest": plan.digest,
        "planned": plan.planned,
    }


def totals(plan: Plan, now: datetime) -> Frame:
    """One row: the plan as a whole."""
    row = {
        "places_read": plan.read,
        "places_read_twice": plan.read_twice,
        "age_hours": (now - plan.made_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.equal(
            "places_read",
            plan.to_read,
            "Every partition of V3 that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("places_read_twice", 0, "No partition was counted twice."),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def rows(context: StepContext, plan: Plan) -> Frame:
    """One row a row of V3 that is to be copied, as the plan's files have it."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("table", pa.string()),
            ("slice_start", pa.int64()),
            ("bucket", pa.int32()),
            ("enqueue_id", pa.string()),
            ("written_us", pa.int64()),
        ]
    )
    expect = [
        Expectation.rows(plan.planned, "The plan's files have as many rows as were planned."),
        Expectation.one_of("table", [QueueTable.V3.value], "Every planned row is one of V3."),
        Expectation.unique(["slice_start", "bucket", "enqueue_id"], "No row is copied twice."),
        Expectation.between(
            "written_us", 1, None, "Every planned row has a write time, which its copy keeps."
        ),
    ]
    files = sorted({f"{PARTS}/{place.part.file}" for place in plan.places})
    places = frozenset((place.slice_ms, place.bucket) for place in plan.places)
    found = planned_rows(context, files, schema, partial(_planned, places))
    return Frame("rows", found, expect, may_be_empty=plan.planned == 0)


def _planned(places: frozenset[tuple[int, int]], batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of these places: a file also has those that fell behind browseStart while it was written."""
    import pyarrow as pa

    rows = instants(batch)
    of = zip(rows.column("slice_start").to_pylist(), rows.column("bucket").to_pylist(), strict=True)
    return rows.filter(pa.array([place in places for place in of], pa.bool_()))
