"""What the stores say now of every mail that a run decided about, one by one."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from mailslice.admin.evidence import is_finished
from mailslice.admin.quarantine import Quarantine
from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.stuck_mails.mails import Action, StuckPlan
from mailslice.maintenance.run import Run
from mailslice.model.errors import ContentMissing
from mailslice.model.mail import EnqueueId
from mailslice.model.stages import MailStage, Stage
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.stores.cassandra.own.quarantine import Content, State

_SLACK = timedelta(minutes=5)
_HALF_DONE = frozenset({State.NOTED, State.CLOSING, State.RECOVERING})
_WITHOUT_COPY = frozenset({State.NOTED, State.DISCARDING})
NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class DecidedMails:
    """The mails that a run decided about, by the stores and by its report."""

    run: Run
    quarantine: Quarantine
    ids: frozenset[EnqueueId]
    decisions: dict[EnqueueId, DecisionRow]
    by_people: frozenset[EnqueueId]
    rows: dict[EnqueueId, QuarantinedMail]
    stages: dict[EnqueueId, MailStage]
    marked: frozenset[EnqueueId]
    completed: frozenset[EnqueueId]

    @classmethod
    def read(
        cls, run: Run, quarantine: Quarantine, plan: StuckPlan, reported: Iterable[EnqueueId]
    ) -> Self:
        """From the stores. `reported`: the mails that apply says it decided about."""
        stores, queue, reported = run.stores, run.queue, frozenset(reported)
        quarantined = sorted(quarantine.mails(serial=True), key=lambda mail: mail.run == plan.run)
        rows = {mail.enqueue_id: mail for mail in quarantined}
        # A decision has the time of its row in quarantine: a holder's row is older than the plan.
        times = [mail.decided for mail in rows.values() if mail.enqueue_id in reported]
        since = min((plan.made_at, *times)) - _SLACK
        written = list(stores.own.decisions.list(queue, since, run.clock() + _SLACK))
        decisions = {
            row.enqueue_id: row
            for row in written
            if row.run == plan.run and row.action in set(Action)
        }
        of_run = {mail.enqueue_id for mail in rows.values() if mail.run == plan.run}
        ids = reported | decisions.keys() | of_run
        stages = {id_: stores.own.mail_stages.get(queue, id_) for id_ in ids}
        workers = stores.own.worker_records.list(queue) if ids else []
        return cls(
            run,
            quarantine,
            ids,
            decisions,
            frozenset(row.enqueue_id for row in written if row.verdict == BY_A_PERSON),
            rows,
            {id_: stage for id_, stage in stages.items() if stage is not None},
            frozenset(stores.tables.deleted.marked(queue, ids)),
            frozenset(id_ for record in workers for id_ in record.done),
        )

    def frame(self) -> Frame:
        rows = [
            {
                "enqueue_id": str(id_),
                "decision": "written" if id_ in self.decisions else "missing",
                "row": self._row(id_),
                "mark": self._mark(id_),
                "content": self._content(id_),
            }
            for id_ in sorted(self.ids)
        ]
        expect = [
            Expectation.one_of("decision", ["written"], "Every decision is written down."),
            Expectation.one_of("row", ["done"], "No decision of this run is half done."),
            Expectation.one_of(
                "mark",
                ["there", NOT_NEEDED],
                "Every mail that was closed or completed has its deleted mark: it is never handed "
                "out again.",
            ),
            Expectation.one_of(
                "content",
                ["whole", "lost before", "decided by a person", NOT_NEEDED],
                "Every mail that was closed or failed is in quarantine, and its content whole.",
            ),
        ]
        return Frame("mails", rows, expect)

    def _row(self, id_: EnqueueId) -> str:
        """Whether a row of this run is in a state that is not final."""
        mail = self.rows.get(id_)
        half = mail is not None and mail.run == self.run.request.run and mail.state in _HALF_DONE
        return "half done" if half else "done"

    def _mark(self, id_: EnqueueId) -> str:
        """Whether the mail has a mark that it needs. A cleanup may have dropped row and mark."""
        if id_ in self.marked:
            return "there"
        mail, stage, decision = self.rows.get(id_), self.stages.get(id_), self.decisions.get(id_)
        completed = decision is not None and decision.action == Action.COMPLETED
        closed = (
            mail is not None
            and mail.run == self.run.request.run
            and mail.action == Action.CLOSED
            and mail.state not in _WITHOUT_COPY
        )
        ended = stage is not None and stage.owner == self.run.request.run and stage.closed
        if not (completed or closed or ended):
            return NOT_NEEDED
        return "there" if is_finished(self.run.stores.tables, self.run.queue, id_) else "missing"

    def _content(self, id_: EnqueueId) -> str:
        """Whether a mail that this run took has its content. A mail completed first needs none."""
        mail = self.rows.get(id_)
        if mail is not None:
            return self._quarantined(mail)
        if id_ in self.by_people:
            return "decided by a person"
        stage, decision = self.stages.get(id_), self.decisions.get(id_)
        action = None if decision is None else decision.action
        closed = action == Action.CLOSED and id_ in self.marked and id_ not in self.completed
        failed = (
            action == Action.FAILED
            and stage is not None
            and stage.owner == self.run.request.run
            and Stage.FAILED in stage.recipients.values()
        )
        return "missing" if closed or failed else NOT_NEEDED

    def _quarantined(self, mail: QuarantinedMail) -> str:
        if mail.state is not State.KEPT:
            return NOT_NEEDED
        if mail.content is not Content.KEPT:
            return "lost before"
        try:
            intact = len(self.quarantine.content(mail)) == mail.size
        except ContentMissing:
            intact = False
        return "whole" if intact else "damaged"
