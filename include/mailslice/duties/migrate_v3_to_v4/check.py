"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.migrate_v3_to_v4.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.plans import OLDEST_PLAN, reading
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count."""
    summary = context.need("plan")
    plan = read_plan(summary, context.request.run, context.queue)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    with reading(plan.run, plan.queue):
        frame = totals(context, plan, summary)
    result = run_gate("check", [frame], docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "planned": plan.planned,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(context: StepContext, plan: Plan, summary: dict[str, Any]) -> Frame:
    """One row: the plan as a whole."""
    row = {
        "places_read": summary["reads"]["read"],
        "places_read_twice": summary["readTwice"],
        "planned": plan.planned,
        "planned_in_places": sum(place.rows for place in plan.places),
        "accounted": plan.planned + sum(summary["skippedBy"].values()) - summary["rows"],
        "age_hours": (context.clock() - plan.made_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.equal(
            "places_read",
            summary["reads"]["wanted"],
            "Every partition of V3 that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("places_read_twice", 0, "No partition was counted twice."),
        Expectation.equal(
            "planned",
            row["planned_in_places"],
            "The plan's digest counts as many rows as its places list.",
        ),
        Expectation.equal(
            "accounted", 0, "Every row of V3 is either planned or left out for a reason."
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)
