"""One apply: what killed runs left, then each planned mail whose holder lives now and holds it."""

from __future__ import annotations

from typing import Any

from mailslice.admin.quarantine import Quarantine
from mailslice.duties.stuck_mails.actions import Skipped, StuckMailActions
from mailslice.duties.stuck_mails.liveness import Liveness, Sleep, Stuck, observe, stuck_mails
from mailslice.duties.stuck_mails.mails import PlannedMail, StuckPlan
from mailslice.duties.stuck_mails.noted import noted_before
from mailslice.duties.stuck_mails.recovery import finish, forget_notes, sweep
from mailslice.duties.stuck_mails.verdicts import Action
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model.errors import MailsliceError, TryAgain
from mailslice.model.settings import StuckMode

NOTED = "noted"
"""Why a mail is left alone in shadow mode."""
GAVE_UP = "failedMails"
KINDS = {action: action.value for action in Action} | {Action.FAILED: GAVE_UP}
"""Action -> the report field that counts it. The runner's `failed` counts errors."""
SETTLED, RETURNED, SILENT = "settled meanwhile", "given back meanwhile", "its holder is silent"


class StuckMailWork:
    """The work of one apply. `decisions`: as the report shows them."""

    def __init__(self, run: Run, plan: StuckPlan, progress: Progress, sleep: Sleep) -> None:
        self.run, self.plan, self.progress = run, plan, progress
        self.shadow = plan.mode is StuckMode.SHADOW
        self.mails = run.read_rows(plan.mails, PlannedMail)
        self.quarantine = Quarantine(run.stores, run.queue, run.clock)
        noted = noted_before(run) if self.shadow else {}
        self.actions = StuckMailActions(run, plan, self.quarantine, noted)
        self.throttle = run.throttle(
            "s3"
        )  # a mail is a handful of writes and a copy of its content
        self.decisions: list[dict[str, Any]] = []
        self._sleep = sleep
        run.report(decisions=self.decisions, alarms=self.actions.alarms)  # the lists grow

    def perform_all(self) -> None:
        """Until the time is over."""
        if not self.shadow:
            self._finish_earlier_runs()
        liveness = self._observe()
        stuck = {one.mail.enqueue_id: one for one in stuck_mails(liveness, self.plan.lock_timeout)}
        closed = {} if self.shadow else self.actions.closed_by_earlier_try()
        for mail in self.mails:
            if mail.enqueue_id in closed:
                self._done(closed[mail.enqueue_id])
                continue
            if self.run.out_of_time():
                break
            self._perform(mail, liveness, stuck.get(mail.enqueue_id))
        if self.shadow:
            forget_notes(self.quarantine)
        else:
            self._discard_records(liveness)

    def _finish_earlier_runs(self) -> None:
        planned = {mail.enqueue_id for mail in self.mails}
        finished = finish(self.run, self.quarantine, planned)
        swept, unswept = sweep(self.quarantine)
        self.run.report(finishedOfEarlierRuns=finished | swept, unswept=unswept)

    def _observe(self) -> Liveness:
        """Who lives now, by records that are written from now on: not by one since the plan."""
        if not self.mails and not self.plan.dead:
            return Liveness()
        table = self.run.stores.own.worker_records
        return observe(lambda: table.list(self.run.queue), self._sleep)

    def _perform(self, planned: PlannedMail, liveness: Liveness, stuck: Stuck | None) -> None:
        """One mail. A mail that cannot be acted on stops no other."""
        self.run.require_lock()
        if stuck is None or stuck.record.worker != planned.worker:
            self.progress.skip(_why_not(planned, liveness))
            return
        self.throttle.take()
        try:
            self._done(self.actions.act(planned, stuck))
        except Skipped as skipped:
            self.progress.skip(str(skipped))
        except TryAgain:
            raise
        except MailsliceError as error:
            self.progress.fail(str(planned.enqueue_id), str(error))

    def _done(self, decision: dict[str, Any]) -> None:
        self.decisions.append(decision)
        if self.shadow:
            self.progress.skip(NOTED)
        else:
            self.progress.done(KINDS[Action(decision["action"])])

    def _discard_records(self, liveness: Liveness) -> None:
        """Those of the planned dead, where they have not been written since."""
        table, discarded = self.run.stores.own.worker_records, 0
        records = {record.worker: record for record in (*liveness.dead, *liveness.silent)}
        for dead in self.plan.dead:
            record = records.get(dead.worker)
            if record is not None and record.beat == dead.beat:
                self.run.require_lock()
                table.discard(self.run.queue, record)
                discarded += 1
        self.run.report(discardedRecords=discarded)


def _why_not(planned: PlannedMail, liveness: Liveness) -> str:
    """Why a planned mail is not stuck with its holder any more."""
    record = next((one for one in liveness.alive if one.worker == planned.worker), None)
    if record is None:
        mute = {one.worker for one in (*liveness.dead, *liveness.silent)}
        return SILENT if planned.worker in mute else SETTLED
    is_in_flight = any(mail.enqueue_id == planned.enqueue_id for mail in record.in_flight)
    return RETURNED if is_in_flight else SETTLED
