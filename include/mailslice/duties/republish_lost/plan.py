"""Step 1: of the mails that an audit proved lost, those that may be published now. Changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.republish_lost.params import Params
from mailslice.duties.republish_lost.plan_file import FILE, Plan
from mailslice.duties.republish_lost.proof import Prover
from mailslice.duty.artifacts import iso
from mailslice.duty.audits import Audit, named_audit, newest_audit
from mailslice.duty.context import StepContext
from mailslice.model.errors import PlanRefused
from mailslice.model.verdicts import Verdict
from mailslice.queue.directory import require
from mailslice.spark.verdict_files import JudgedWriter

BULKY = ("decided",)
OLDEST_AUDIT = timedelta(hours=24)
_CONCERNED = frozenset({Verdict.LOST, Verdict.LOST_OR_GHOST, Verdict.BARE})
_MOST_NAMED = 100
_REMEDY = "`mailslice duty run queue_audit --queue {} --census`"


def run(context: StepContext) -> dict[str, Any]:
    """The plan, written to plan/. Raises UnknownQueue, BadInput for an --audit that is none, PlanRefused when there is no audit to act by."""
    require(context.stores, context.queue)
    params = context.params(Params)
    audit = _audit(context, params).proved()
    _forget_earlier_try(context)
    prover = Prover.of(context)
    writer = _writer(context)
    try:
        for some in prover.prove(mail for mail in audit.mails() if mail.verdict in _CONCERNED):
            writer.add([each.judged for each in some])
    finally:
        writer.close()
    made = context.clock()
    plan = Plan(
        context.request.run,
        context.queue,
        made,
        audit.run,
        audit.digest,
        params.accept_duplicates,
        params.repeat_unknown,
        writer.digest,
    )
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": plan.rows.count,
        "audit": {
            "run": audit.run,
            "madeAt": iso(audit.made_at),
            "shared": audit.shared,
            "verdicts": dict(audit.verdicts),
        },
        "skippedBy": dict(prover.skipped),
        "outcomeUnknown": prover.unknown[:_MOST_NAMED],
        "inDelayQueues": prover.in_delay_queues,
        "message": _message(plan, audit, prover),
    }


def _audit(context: StepContext, params: Params) -> Audit:
    """The audit to act by: it took a census, and is not older than a day."""
    stores, queue = context.stores, context.queue
    found = (
        named_audit(stores, queue, params.audit)
        if params.audit is not None
        else newest_audit(stores, queue, census_since=context.clock() - OLDEST_AUDIT)
    )
    if found is None:
        raise PlanRefused(
            f"no audit of queue {queue} that took a census is done: nothing is proved lost; `mailslice duty run queue_audit --queue {queue} --census`"
        )
    if not found.census:
        raise PlanRefused(
            f"audit {found.run} took no census, so it proved no mail lost; `mailslice duty run queue_audit --queue {queue} --census`"
        )
    age = context.clock() - found.made_at
    if age > OLDEST_AUDIT:
        hours = timedelta(hours=1)
        raise PlanRefused(
            f"audit {found.run} is {age / hours:.1f} h old; allowed are {OLDEST_AUDIT / hours:.0f} h; {_REMEDY.format(queue)}"
        )
    return found


def _writer(context: StepContext) -> JudgedWriter:
    context.folder.artifacts.folder(context.folder.file(FILE.rpartition("/")[0]))
    return JudgedWriter(context.folder.artifacts, context.folder.file(FILE))


def _forget_earlier_try(context: StepContext) -> None:
    """A plan step that is tried again starts from nothing."""
    for name in (FILE, "plan.json", "check.json", "applied.json", "verify.json", "progress.json"):
        context.folder.artifacts.remove(context.folder.file(name))


def _message(plan: Plan, audit: Audit, prover: Prover) -> str:
    """What the plan comes to, in words."""
    words = [f"{plan.rows.count} mails that audit {audit.run} proved lost can be published"]
    words += [f"{count} skipped: {reason}" for reason, count in sorted(prover.skipped.items())]
    if prover.unknown:
        words.append(
            "an earlier publish of some was never confirmed: look whether they were delivered, then decide by --repeat-unknown"
        )
    if prover.skipped[Verdict.LOST_OR_GHOST.value]:
        words.append(
            "James may have delivered those that are lost or ghost: --accept-duplicates publishes them, too"
        )
    return "; ".join(words)
