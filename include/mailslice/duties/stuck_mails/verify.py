"""Step 4: what is in the stores now: every closed mail is marked, in quarantine, and its content there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from mailslice.duties.stuck_mails.verdicts import Action
from mailslice.duty.context import StepContext
from mailslice.model.errors import ContentMissing
from mailslice.model.mail import EnqueueId
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate
from mailslice.queue.quarantine import Quarantine
from mailslice.stores.cassandra.own import QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import Content, State

_MARKED = {Action.CLOSED, Action.COMPLETED}


def run(context: StepContext) -> dict[str, Any]:
    """Whether what was decided is so. Raises GateFailed. Where nothing was decided there is nothing to judge."""
    applied = context.need("apply")
    quarantine = Quarantine(context.stores, context.queue, context.clock)
    waiting = sum(1 for _ in quarantine.waiting())
    if not applied["decisions"]:
        return {"success": True, "waiting": waiting, "expectations": [], "dataDocs": None}
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("verify", [mails(context, quarantine, applied)], docs)
    return {
        "success": True,
        "waiting": waiting,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def mails(context: StepContext, quarantine: Quarantine, applied: dict[str, Any]) -> Frame:
    """One row: sums over the decisions of this run. A mail that a person released or discarded since is not missed."""
    done = [] if applied["noted"] else applied["decisions"]
    ids = {EnqueueId(UUID(each["enqueueId"])): each for each in done}
    marked = context.stores.tables.deleted.marked(context.queue, ids)
    rows = {mail.enqueue_id: mail for mail in quarantine.mails()}
    to_mark = [each for each, told in ids.items() if told["action"] in _MARKED]
    row = {
        "decided": len(ids),
        "unmarked": sum(1 for each in to_mark if each not in marked),
        "unfinished": sum(
            1
            for each in ids
            if each in rows and rows[each].state in {State.CLOSING, State.RECOVERING}
        ),
        "content_missing": sum(
            1 for each in ids if each in rows and not _is_whole(quarantine, rows[each])
        ),
    }
    expect = [
        Expectation.equal(
            "unmarked",
            0,
            "Every mail that was closed or completed has its deleted mark: it is never handed out again.",
        ),
        Expectation.equal("unfinished", 0, "No decision of this run is half done."),
        Expectation.equal(
            "content_missing", 0, "Every quarantined mail that had a content has it still, whole."
        ),
        Expectation.equal(
            "decided", applied["applied"], "As many mails were decided about as the ledger says."
        ),
    ]
    return Frame("mails", [row], expect)


def _is_whole(quarantine: Quarantine, mail: QuarantinedMail) -> bool:
    if mail.content is not Content.KEPT or mail.state not in {State.KEPT, State.CLOSING}:
        return True
    try:
        return len(quarantine.content(mail)) == mail.size
    except ContentMissing:
        return False
