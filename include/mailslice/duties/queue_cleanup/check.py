"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.queue_cleanup import decide
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count."""
    summary = context.need("plan")
    plan = read_plan(summary, context.request.run, context.queue)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("check", [totals(context, plan, summary), slices(plan, summary)], docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "planned": plan.planned,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(context: StepContext, plan: Plan, summary: dict[str, Any]) -> Frame:
    """One row: the plan as a whole."""
    touched = sum(each["unmarked"] for each in summary["slices"] if each["planned"])
    live = int(summary["live"])
    new = plan.new_browse_start
    row = {
        "places_wanted": summary["reads"]["wanted"],
        "places_read": summary["reads"]["read"],
        "places_read_twice": summary["readTwice"],
        "planned": plan.planned,
        "planned_in_slices": sum(each["planned"] for each in summary["slices"]),
        "planned_in_places": sum(place.rows for place in plan.places),
        "live_touched_share": touched / live if live else float(touched > 0),
        "age_hours": (context.clock() - plan.made_at) / timedelta(hours=1),
        "browse_start_unaligned": int(
            new is not None and not decide.aligned(new, plan.shape.window)
        ),
        "browse_start_lowered": int(
            new is not None and plan.browse_start is not None and new < plan.browse_start
        ),
        "browse_start_past_live": int(
            new is not None and plan.oldest_live is not None and new > plan.oldest_live
        ),
        "browse_start_past_grace": int(
            new is not None
            and new > decide.highest_browse_start(plan.shape, now=plan.made_at, grace=plan.grace)
        ),
    }
    share = context.params(Params).max_share
    expect = [
        Expectation.equal(
            "places_read",
            row["places_wanted"],
            "Every partition that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("places_read_twice", 0, "No partition was counted twice."),
        Expectation.equal(
            "planned",
            row["planned_in_places"],
            "The plan's digest counts as many rows as the plan lists.",
        ),
        Expectation.equal(
            "planned",
            row["planned_in_slices"],
            "The slices' sums count as many rows as the plan lists.",
        ),
        Expectation.between(
            "live_touched_share",
            0,
            share,
            f"The share of live rows that the plan touches is at most {share:g} (max_share).",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
        Expectation.equal(
            "browse_start_unaligned", 0, "The new browseStart is a multiple of the slice window."
        ),
        Expectation.equal("browse_start_lowered", 0, "browseStart does not move back."),
        Expectation.equal(
            "browse_start_past_live", 0, "browseStart does not pass the oldest live mail."
        ),
        Expectation.equal(
            "browse_start_past_grace", 0, "browseStart stays before now less the grace."
        ),
    ]
    return Frame("totals", [row], expect)


def slices(plan: Plan, summary: dict[str, Any]) -> Frame:
    """One row a slice that has planned rows."""
    rows = [
        {
            "slice": each["start"],
            "planned": each["planned"],
            "rows": each["rows"],
            "unmarked": each["unmarked"],
            "undated": each["undated"],
            "open_seconds": max(0.0, _open_for(plan, each["start"])),
        }
        for each in summary["slices"]
        if each["planned"]
    ]
    expect = [
        Expectation.equal("unmarked", 0, "No mail without a deleted mark is in a planned slice."),
        Expectation.equal(
            "undated", 0, "Every planned row has a write time, which bounds its delete."
        ),
        Expectation.equal(
            "open_seconds", 0, "Every planned slice is closed: its end and the grace are over."
        ),
        Expectation.unique("slice", "Every slice is planned once."),
        Expectation.same(
            "planned", "rows", "A planned slice goes whole: as many rows are planned as were read."
        ),
    ]
    return Frame("slices", rows, expect, may_be_empty=True)


def _open_for(plan: Plan, start: str) -> float:
    """Seconds until the slice is closed, as seen when the plan was made."""
    closes = datetime.fromisoformat(start) + plan.shape.open_for + plan.grace
    return (closes - plan.made_at).total_seconds()
