"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.stuck_mails.apply import OLDEST_PLAN
from mailslice.duties.stuck_mails.params import Params
from mailslice.duties.stuck_mails.plan_file import Plan, read_plan
from mailslice.duties.stuck_mails.verdicts import Action
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.model.settings import StuckMode
from mailslice.quality.gate import Expectation, Frame

_SECOND = timedelta(seconds=1)


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming expectation, value and row count.

    A plan that decides about no mail, as nearly all of those made every 5 minutes, needs no gate, nor
    the seconds that it takes.
    """
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    told = {"planDigest": plan.digest, "planned": len(plan.mails)}
    if not plan.mails:
        return {"success": True, **told, "expectations": [], "dataDocs": None}
    return {**judged(context, "check", [totals(context, plan), mails(context, plan)]), **told}


def totals(context: StepContext, plan: Plan) -> Frame:
    """One row: the plan as a whole."""
    most = context.params(Params).most
    age = (context.clock() - plan.made_at) / timedelta(minutes=1)
    row = {"planned": len(plan.mails), "age_minutes": age}
    oldest = OLDEST_PLAN / timedelta(minutes=1)
    expect = [
        Expectation.between(
            "planned", None, most, f"One run decides about {most} mails at most (most)."
        ),
        Expectation.between("age_minutes", -1, oldest, "The plan is younger than an hour."),
    ]
    return Frame("totals", [row], expect)


def mails(context: StepContext, plan: Plan) -> Frame:
    """One row a planned mail; whether its holder is a worker of this queue is read now."""
    records = context.stores.own.worker_records.list(context.queue)
    workers = {record.worker for record in records}
    rows = [
        {
            "enqueue_id": str(mail.enqueue_id),
            "age_seconds": mail.age / _SECOND,
            "held_before_plan_seconds": (plan.made_at - mail.since) / _SECOND,
            "holder": "known" if mail.worker in workers else "unknown",
            "action": mail.action,
        }
        for mail in plan.mails
    ]
    allowed = [Action.CLOSED] if plan.mode is StuckMode.CLOSE else list(Action)
    timeout = plan.timeout / _SECOND
    expect = [
        Expectation.unique("enqueue_id", "Every mail is planned once."),
        Expectation.between(
            "age_seconds", timeout, None, "Every mail was held for longer than the lock timeout."
        ),
        Expectation.between(
            "held_before_plan_seconds", 0, None, "Every mail was held before the plan was made."
        ),
        Expectation.one_of(
            "holder", ["known"], "Every holder has a record among those of the queue's workers."
        ),
        Expectation.one_of(
            "action", [each.value for each in allowed], "Every action is one of the plan's mode."
        ),
    ]
    return Frame("mails", rows, expect)
