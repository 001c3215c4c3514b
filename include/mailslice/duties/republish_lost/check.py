"""Step 2: the gate over the plan's own mails, and over the audit that they come from. Fails -> nothing is published."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mailslice.duties.republish_lost.plan_file import FILE, Plan, read_plan
from mailslice.duty.audits import Audit, audit_of
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged, planned_rows
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.model.verdicts import Verdict
from mailslice.quality.gate import Expectation, Frame

if TYPE_CHECKING:
    import pyarrow as pa

    from mailslice.spark.plan_rows import Derive

_LOST = (Verdict.LOST, Verdict.LOST_OR_GHOST)


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation and the value."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    audit = audit_of(context.stores, context.queue, plan.audit)
    frames = [mails(context, plan, audit), totals(context, plan, audit)]
    return {
        **judged(context, "check", frames),
        "planDigest": plan.digest,
        "planned": plan.rows.count,
    }


def mails(context: StepContext, plan: Plan, audit: Audit) -> Frame:
    """One row a mail of the plan, as its file has it, beside what the audit's own files say."""
    import pyarrow as pa

    schema = pa.schema(
        [("enqueue_id", pa.string()), ("verdict", pa.string()), ("of_the_audit", pa.int64())]
    )
    files = [FILE] if plan.rows.count else []
    proved = {mail.enqueue_id for mail in audit.proved().mails() if mail.verdict in _LOST}
    verdicts = _LOST if plan.accept_duplicates else (Verdict.LOST,)
    expect = [
        Expectation.rows(plan.rows.count, "The plan's file has as many mails as were planned."),
        Expectation.unique("enqueue_id", "No mail is listed twice."),
        Expectation.one_of(
            "verdict",
            [verdict.value for verdict in verdicts],
            "Every mail was called lost; one that James may have delivered is listed only where duplicates are accepted.",
        ),
        Expectation.equal("of_the_audit", 1, "The audit's own files call every planned mail lost."),
    ]
    rows = planned_rows(context, files, schema, _beside(proved))
    return Frame("mails", rows, expect, may_be_empty=plan.rows.count == 0)


def _beside(proved: set[str]) -> Derive:
    """Adds whether the audit proved the mail lost."""

    def derive(batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        ids = batch.column("enqueue_id")
        known = pa.array([int(one in proved) for one in ids.to_pylist()], pa.int64())
        return pa.RecordBatch.from_arrays(
            [ids, batch.column("verdict"), known], names=["enqueue_id", "verdict", "of_the_audit"]
        )

    return derive


def totals(context: StepContext, plan: Plan, audit: Audit) -> Frame:
    """One row: the plan as a whole, held against the audit as it is now."""
    row = {
        "other_audit": int(audit.digest != plan.audit_digest),
        "audit_without_census": int(not audit.census),
        "age_hours": (context.clock() - plan.made_at) / timedelta(hours=1),
    }
    expect = [
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
