"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.stuck_mails.apply import OLDEST_PLAN
from mailslice.duties.stuck_mails.params import Params
from mailslice.duties.stuck_mails.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate

_SECOND = timedelta(seconds=1)


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count.

    A plan that decides about no mail, as nearly every one of those made every 5 minutes, needs no gate, nor the seconds that it takes.
    """
    summary = context.need("plan")
    plan = read_plan(summary, context.request.run, context.queue)
    if not plan.mails:
        return {
            "success": True,
            "planDigest": plan.digest,
            "planned": 0,
            "expectations": [],
            "dataDocs": None,
        }
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("check", [totals(context, plan, summary), mails(plan)], docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "planned": len(plan.mails),
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(context: StepContext, plan: Plan, summary: dict[str, Any]) -> Frame:
    """One row: the plan as a whole."""
    most = context.params(Params).most
    row = {
        "planned": len(plan.mails),
        "in_flight": summary["inFlight"],
        "age_minutes": (context.clock() - plan.made_at) / timedelta(minutes=1),
    }
    expect = [
        Expectation.between(
            "planned", 0, most, f"One run decides about {most} mails at most (most)."
        ),
        Expectation.between(
            "planned",
            0,
            summary["inFlight"],
            "No more mails are stuck than are in flight with workers that live.",
        ),
        Expectation.between(
            "age_minutes",
            -1,
            OLDEST_PLAN / timedelta(minutes=1),
            "The plan is younger than an hour.",
        ),
    ]
    return Frame("totals", [row], expect)


def mails(plan: Plan) -> Frame:
    """One row a stuck mail."""
    rows = [
        {
            "enqueue_id": str(mail.enqueue_id),
            "age_seconds": mail.age / _SECOND,
            "beat": mail.beat,
            "action": mail.action,
        }
        for mail in plan.mails
    ]
    expect = [
        Expectation.unique("enqueue_id", "Every mail is planned once."),
        Expectation.between(
            "age_seconds",
            plan.timeout / _SECOND,
            None,
            "Every mail was held for longer than the lock timeout.",
        ),
        Expectation.between(
            "beat", 2, None, "Every holder has written more than one record: it was seen alive."
        ),
        Expectation.one_of(
            "action", ["closed", "released", "failed", "completed"], "Every mail has an action."
        ),
    ]
    return Frame("mails", rows, expect, may_be_empty=True)
