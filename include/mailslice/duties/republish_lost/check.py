"""Step 2: the gate over the plan. Fails -> nothing is published."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from mailslice.duties.republish_lost.plan_file import Plan, read_plan
from mailslice.duty.audits import audit_of
from mailslice.duty.context import StepContext
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.model.verdicts import Verdict
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("check", [totals(context, plan)], docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "planned": plan.rows.count,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(context: StepContext, plan: Plan) -> Frame:
    """One row: the plan as a whole, held against the audit that it comes from."""
    audit = audit_of(context.stores, context.queue, plan.audit)
    mails = list(plan.mails(context.folder))
    by_verdict = Counter(mail.verdict for mail in mails)
    row = {
        "planned": plan.rows.count,
        "mails": len(mails),
        "mails_twice": len(mails) - len({mail.enqueue_id for mail in mails}),
        "not_lost": len(mails) - by_verdict[Verdict.LOST] - by_verdict[Verdict.LOST_OR_GHOST],
        "doubtful_unaccepted": 0 if plan.accept_duplicates else by_verdict[Verdict.LOST_OR_GHOST],
        "more_than_the_audit": max(
            0,
            len(mails)
            - sum(
                audit.verdicts.get(verdict, 0) for verdict in (Verdict.LOST, Verdict.LOST_OR_GHOST)
            ),
        ),
        "other_audit": int(audit.digest != plan.audit_digest),
        "audit_without_census": int(not audit.census),
        "age_hours": (context.clock() - plan.made_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.equal(
            "planned", row["mails"], "The plan's digest counts as many mails as the plan lists."
        ),
        Expectation.equal("mails_twice", 0, "No mail is listed twice."),
        Expectation.equal("not_lost", 0, "Every mail of the plan was called lost by the audit."),
        Expectation.equal(
            "doubtful_unaccepted",
            0,
            "No mail that James may have delivered is listed, unless duplicates are accepted.",
        ),
        Expectation.equal(
            "more_than_the_audit", 0, "The plan lists no more mails than the audit proved lost."
        ),
        Expectation.equal(
            "other_audit", 0, "The audit is the very one that the plan was made from."
        ),
        Expectation.equal(
            "audit_without_census",
            0,
            "The audit took a census: without one nothing is proved lost.",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)
