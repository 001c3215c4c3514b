"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.counter_repair.plan_file import Drift, Plan, read_plan, require_files
from mailslice.duties.counter_repair.rows_file import read_rows
from mailslice.duty.context import StepContext
from mailslice.duty.plans import OLDEST_PLAN, reading
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate

_MANY = 1_000
"""From so many messages on, a truth that holds less than half of them is taken for one that was lost."""


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count."""
    summary = context.need("plan")
    plan = read_plan(summary, context.request.run)
    require_files(plan, context.folder)
    drifts = [Drift.of_row(row) for row in read_rows(plan.drifts, context.folder)]
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    age = context.clock() - plan.made_at
    with reading(plan.run):
        frame = totals(plan, summary, age, drifts)
    result = run_gate("check", [frame], docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "planned": plan.drifts.rows,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(plan: Plan, summary: dict[str, Any], age: timedelta, drifts: list[Drift]) -> Frame:
    """One row: the plan as a whole."""
    reads = summary["reads"]
    projected = summary["projectedMessages"]
    row = {
        "ranges_read": reads["read"],
        "ranges_read_twice": reads["twice"],
        "holes": reads["holes"],
        "wrong": summary["wrong"],
        "wrong_twice": len(drifts) - len({drift.mailbox for drift in drifts}),
        "without_drift": sum((drift.add.count, drift.add.unseen) == (0, 0) for drift in drifts),
        "unseen_beyond_count": sum(
            not 0 <= drift.seen.unseen <= drift.seen.count for drift in drifts
        ),
        "differences": sum(file.rows for file in plan.differences),
        "truth_share": 1.0
        if plan.trust_projection or projected < _MANY
        else summary["messages"] / projected,
        "age_hours": age / timedelta(hours=1),
    }
    listed = (
        0
        if plan.trust_projection
        else sum(
            count for kind, count in plan.inconsistencies.items() if kind != "counterOfGoneMailbox"
        )
    )
    expect = [
        Expectation.equal(
            "ranges_read",
            reads["wanted"],
            "Every token range of every table was read: an unread one is not an empty one.",
        ),
        Expectation.equal("ranges_read_twice", 0, "No token range was counted twice."),
        Expectation.equal("holes", 0, "The token ranges of each table tile the ring."),
        Expectation.equal(
            "wrong", plan.drifts.rows, "The plan lists as many mailboxes as were found wrong."
        ),
        Expectation.equal("wrong_twice", 0, "Every mailbox is listed once."),
        Expectation.equal("without_drift", 0, "Every mailbox that is listed has a drift."),
        Expectation.equal(
            "unseen_beyond_count", 0, "No mailbox has more unseen messages than messages."
        ),
        Expectation.equal(
            "differences", listed, "The plan lists as many rows that differ as were counted."
        ),
        Expectation.between(
            "truth_share",
            0.5,
            None,
            "imapUidTable holds at least half as many messages as messageIdTable: less is a truth that was lost.",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)
