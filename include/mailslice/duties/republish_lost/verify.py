"""Step 4: the ledger of decisions holds what was published, and every planned mail is accounted for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from mailslice.duties.republish_lost.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.model.mail import EnqueueId
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate
from mailslice.stores.cassandra.own import PublishState


def run(context: StepContext) -> dict[str, Any]:
    """Whether the invariants hold. Raises GateFailed."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("verify", [after(context, plan)], docs)
    return {"success": True, "expectations": result.lines(), "dataDocs": result.link}


def after(context: StepContext, plan: Plan) -> Frame:
    """One row: what apply said, beside what is in the ledger of decisions."""
    applied = context.need("apply")
    ids = [EnqueueId(UUID(mail.enqueue_id)) for mail in plan.mails(context.folder)]
    decisions = context.stores.own.republished_mails.some(context.queue, ids)
    recorded = sum(
        1
        for each in decisions.values()
        if each.run == plan.run and each.state is PublishState.PUBLISHED
    )
    row = {
        "accounted": applied["applied"]
        + applied["skipped"]
        + applied["failed"]
        + applied["left"]
        - applied["planned"],
        "left_below_zero": min(0, applied["left"]),
        "unrecorded": applied["applied"] - recorded,
    }
    expect = [
        Expectation.equal(
            "accounted", 0, "Every planned mail is either published, skipped, failed or left."
        ),
        Expectation.equal("left_below_zero", 0, "No mail is counted twice."),
        Expectation.equal(
            "unrecorded",
            0,
            "Every mail that was published is in the ledger of decisions as published by this run.",
        ),
    ]
    return Frame("after", [row], expect)
