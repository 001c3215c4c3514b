"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.blob_gc.params import Params
from mailslice.duties.blob_gc.plan_note import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate

VOLATILE = ("deadLetters", "ownBucket", "own.")
"""Sources that come and go: letters are redriven, delayed mails delivered."""


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count."""
    summary = context.need("plan")
    plan = read_plan(summary, context.request.run)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("check", [sources(context, summary), totals(context, plan, summary)], docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "planned": plan.planned,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def sources(context: StepContext, summary: dict[str, Any]) -> Frame:
    """One row a source: its scan was complete, and it did not lose most of its references since the last run."""
    settings, most = context.settings, context.params(Params).max_shrink
    volatile = {name.lower() for name in settings.gc.volatile_sources}
    rows = []
    for each in summary["sources"]:
        may_shrink = each["source"].startswith(VOLATILE) or each["source"].lower() in volatile
        rows.append(
            {
                "source": each["source"],
                "parts_unread": each["parts"] - each["read"],
                "parts_read_twice": each["twice"],
                "holes": each["holes"],
                "lost_share": 0.0
                if may_shrink
                else max(
                    0.0, lost_share(each["before"], each["references"], each.get("cleaned", 0))
                ),
            }
        )
    expect = [
        Expectation.equal(
            "parts_unread",
            0,
            "Every part of every source was read to its end: an unread one is not an empty one.",
        ),
        Expectation.equal("parts_read_twice", 0, "No part of a source was counted twice."),
        Expectation.equal(
            "holes", 0, "The token ranges of a source tile the ring: no row is left out."
        ),
        Expectation.between(
            "lost_share",
            0,
            most,
            f"No source lost more than {most:g} of its references since the last run (max_shrink).",
        ),
        Expectation.unique("source", "Every source is counted once."),
    ]
    return Frame("sources", rows, expect)


def lost_share(before: int | None, now: int, cleaned: int = 0) -> float:
    """The share of the references of the last run that are gone and that none of mailslice's own cleanups explains; 0 when there is nothing to compare."""
    return (before - now - cleaned) / before if before else 0.0


def totals(context: StepContext, plan: Plan, summary: dict[str, Any]) -> Frame:
    """One row: the plan as a whole."""
    listing, share = summary["listing"], context.params(Params).max_share
    row = {
        "ranges_unread": listing["wanted"] - listing["read"],
        "ranges_read_twice": listing["twice"],
        "ranges_holes": listing["holes"],
        "planned": plan.planned,
        "accounted": summary["orphans"] - plan.planned - plan.waiting,
        "planned_share": plan.planned / plan.blobs if plan.blobs else 0.0,
        "age_hours": (context.clock() - plan.made_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.equal("ranges_unread", 0, "Every range of keys was listed to its end."),
        Expectation.equal("ranges_read_twice", 0, "No range of keys was listed twice."),
        Expectation.equal("ranges_holes", 0, "The ranges of keys cover every key there can be."),
        Expectation.equal("accounted", 0, "Every orphan is either to go or waits as a candidate."),
        Expectation.between(
            "planned_share", 0, share, f"At most {share:g} of all blobs are to go (max_share)."
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)
