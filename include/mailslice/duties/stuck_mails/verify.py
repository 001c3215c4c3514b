"""Step 4: what the stores say now of every mail that this run decided about, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from mailslice.duties.stuck_mails.plan_file import Plan, read_plan
from mailslice.duties.stuck_mails.verdicts import Action
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.model.errors import ContentMissing
from mailslice.model.mail import EnqueueId
from mailslice.model.stages import MailStage, Stage
from mailslice.quality.gate import Expectation, Frame
from mailslice.queue.proofs import is_over
from mailslice.queue.quarantine import Quarantine
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.stores.cassandra.own.quarantine import Content, State

_SLACK = timedelta(minutes=5)
_HALF_DONE = frozenset({State.NOTED, State.CLOSING, State.RECOVERING})
NOT_NEEDED = "not needed"


def run(context: StepContext) -> dict[str, Any]:
    """Whether what was decided is so. Raises GateFailed. Where nothing was decided there is nothing to judge."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    quarantine = Quarantine(context.stores, context.queue, context.clock)
    decided = _Decided.read(context, quarantine, plan)
    told = {"waiting": sum(1 for _ in quarantine.waiting())}
    if not decided.ids:
        return {"success": True, **told, "expectations": [], "dataDocs": None}
    return {**judged(context, "verify", [mails(decided)]), **told}


def mails(decided: _Decided) -> Frame:
    """One row a mail."""
    rows = [
        {
            "enqueue_id": str(one),
            "decision": "written" if one in decided.decisions else "missing",
            "row": decided.row(one),
            "mark": decided.mark(one),
            "content": decided.content(one),
        }
        for one in sorted(decided.ids)
    ]
    expect = [
        Expectation.one_of("decision", ["written"], "Every decision is written down."),
        Expectation.one_of("row", ["done"], "No decision of this run is half done."),
        Expectation.one_of(
            "mark",
            ["there", NOT_NEEDED],
            "Every mail that was closed or completed has its deleted mark: it is never handed out again.",
        ),
        Expectation.one_of(
            "content",
            ["whole", "lost before", "decided by a person", NOT_NEEDED],
            "Every mail that was closed or failed is in quarantine, and its content whole.",
        ),
    ]
    return Frame("mails", rows, expect)


@dataclass(frozen=True)
class _Decided:
    """The mails that this run decided about, by the stores and by its own report, and what is known of them."""

    context: StepContext
    quarantine: Quarantine
    run: str
    ids: frozenset[EnqueueId]
    decisions: dict[EnqueueId, DecisionRow]
    by_people: frozenset[EnqueueId]
    rows: dict[EnqueueId, QuarantinedMail]
    stages: dict[EnqueueId, MailStage]
    marked: frozenset[EnqueueId]
    done: frozenset[EnqueueId]

    @classmethod
    def read(cls, context: StepContext, quarantine: Quarantine, plan: Plan) -> _Decided:
        stores, queue = context.stores, context.queue
        applied = context.need("apply")
        told = [] if applied["noted"] else applied["decisions"]
        told_ids = {EnqueueId(UUID(each["enqueueId"])) for each in told}
        kept = sorted(quarantine.mails(serial=True), key=lambda mail: mail.run == plan.run)
        rows = {mail.enqueue_id: mail for mail in kept}
        # A decision has the time of its row, which may be the holder's, from before the plan.
        since = min(
            (mail.decided for one, mail in rows.items() if one in told_ids), default=plan.made_at
        )
        now = context.clock()
        written = list(
            stores.own.decisions.list(queue, min(since, plan.made_at) - _SLACK, now + _SLACK)
        )
        decisions = {
            each.enqueue_id: each
            for each in written
            if each.run == plan.run and each.action in set(Action)
        }
        ids = frozenset(
            told_ids
            | decisions.keys()
            | {one for one, mail in rows.items() if mail.run == plan.run}
        )
        stages = {one: stores.own.mail_stages.read(queue, one) for one in ids}
        workers = stores.own.worker_records.list(queue) if ids else []
        return cls(
            context,
            quarantine,
            plan.run,
            ids,
            decisions,
            frozenset(each.enqueue_id for each in written if each.verdict == BY_A_PERSON),
            rows,
            {one: stage for one, stage in stages.items() if stage is not None},
            frozenset(stores.tables.deleted.marked(queue, ids)),
            frozenset(one for record in workers for one in record.done),
        )

    def row(self, one: EnqueueId) -> str:
        """A row of this run says that something of it is still to do."""
        mail = self.rows.get(one)
        half = mail is not None and mail.run == self.run and mail.state in _HALF_DONE
        return "half done" if half and mail is not None else "done"

    def mark(self, one: EnqueueId) -> str:
        """A cleanup may have taken the mark of what is done, after its row."""
        mail, stage = self.rows.get(one), self.stages.get(one)
        closed = (
            mail is not None
            and (mail.run, mail.action) == (self.run, Action.CLOSED)
            and mail.state not in {State.NOTED, State.DISCARDING}
        )
        completed = stage is not None and stage.owner == self.run and stage.closed
        if one in self.marked or not (closed or completed):
            return "there" if one in self.marked else NOT_NEEDED
        there = is_over(self.context.stores.tables, self.context.queue, one)
        return "there" if there else "missing"

    def content(self, one: EnqueueId) -> str:
        """Of a mail that this run has taken out of the queue; its holder may have completed it first."""
        mail = self.rows.get(one)
        if mail is not None:
            return self._whole(mail)
        if one in self.by_people:
            return "decided by a person"
        stage, decision = self.stages.get(one), self.decisions.get(one)
        action = None if decision is None else decision.action
        closed = action == Action.CLOSED and one in self.marked and one not in self.done
        failed = (
            action == Action.FAILED
            and stage is not None
            and stage.owner == self.run
            and Stage.FAILED in stage.recipients.values()
        )
        return "missing" if closed or failed else NOT_NEEDED

    def _whole(self, mail: QuarantinedMail) -> str:
        if mail.state is not State.KEPT:
            return NOT_NEEDED
        if mail.content is not Content.KEPT:
            return "lost before"
        try:
            whole = len(self.quarantine.content(mail)) == mail.size
        except ContentMissing:
            whole = False
        return "whole" if whole else "damaged"
