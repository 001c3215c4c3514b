"""One apply: finishes what killed runs left, then acts on each planned mail that is still held.

The duty's lock is held, so that nobody else works on what a killed run left.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

from mailslice.admin.enqueue import publish
from mailslice.admin.evidence import is_finished
from mailslice.admin.quarantine import Quarantine
from mailslice.codec import message as codec
from mailslice.duties.stuck_mails.actions import LeftAlone, StuckMailActions
from mailslice.duties.stuck_mails.mails import Action, PlannedMail, StuckPlan
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.liveness import WorkerLiveness, observe, stuck_mails
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model.clock import elapsed_seconds
from mailslice.model.errors import BadSetting, MailsliceError, StoreUnavailable, TryAgain
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.settings import StuckMode
from mailslice.model.stages import Stage
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import State

_LIMITS = (20, 200)  # the second one if dry and failed runs fill the first
_GOING = {State.DISCARDING, State.RELEASED}


def shadow_report_mails(stores: Stores, queue: QueueName) -> list[dict[str, Any]]:
    """The mails of the newest report whose run came to apply, if that run was in shadow mode.

    Each has `run` and `who` of that report. `decided` is when a run first noted the mail.
    """
    ledger = Ledger(stores, stores.settings)
    reports = (report for limit in _LIMITS for report in ledger.list("stuck_mails", queue, limit))
    last = next((report for report in reports if "noted" in report), None)
    if last is None or last["mode"] != StuckMode.SHADOW:
        return []
    common = {"run": last["run"], "who": last["who"], "decided": last["finished"]}
    return [{**common, **mail} for mail in last["mails"]]


def finish(actions: StuckMailActions, planned: Collection[EnqueueId]) -> dict[str, int]:
    """Finish what killed runs left, except closings of `planned` mails; return counts by outcome.

    Also notes in quarantine which closed mails their workers completed after all: whoever releases
    such a mail must know that.
    """
    run, quarantine, own = actions.run, actions.quarantine, actions.run.stores.own
    done = {id_ for record in own.worker_records.list(run.queue) for id_ in record.done}
    mails, finished = list(quarantine.mails(serial=True)), Counter[str]()
    stages = own.mail_stages.by_ids(run.queue, [mail.enqueue_id for mail in mails])
    done |= {id_ for id_, record in stages.items() if record.stage is Stage.SENT}
    for mail in mails:
        # Only for closed mails: after recipients in doubt failed, the mail is completed for the
        # others. That says nothing about those in doubt.
        if mail.action == Action.CLOSED and mail.state is State.KEPT and mail.enqueue_id in done:
            if mail.finished is None:
                quarantine.finished(mail, run.clock())
                finished["completed by its worker after all"] += 1
        elif mail.state is State.RECOVERING:
            finished[_recover(actions, mail)] += 1
        # A row on its way out is finished even if planned: no new row can be kept beside it.
        elif (mail.state in _GOING or mail.enqueue_id not in planned) and actions.tidied(mail):
            finished[f"was {mail.state}"] += 1
    return dict(finished)


def _recover(actions: StuckMailActions, mail: QuarantinedMail) -> str:
    """Publish a mail again that was taken from its holder (safe by stage marks); else withdraw."""
    run, quarantine, failed = actions.run, actions.quarantine, mail.action == Action.FAILED
    stores, queue = run.stores, run.queue
    item, stage = codec.decode(mail.message), stores.own.mail_stages.get(queue, mail.enqueue_id)
    # The holder may have begun the next attempt itself: then no recipient here has failed.
    none_failed = stage and set(item.mail.recipients).isdisjoint(stage.recipients_at(Stage.FAILED))
    if stage is None or stage.attempt <= mail.attempt or (failed and none_failed):
        quarantine.withdraw(mail)
        return "not taken from its holder"
    # A James that delivered what was published does not write to the stage record.
    if stage.owner == mail.run and not is_finished(stores.tables, queue, mail.enqueue_id):
        if stage.remaining:
            remaining_item = replace(item, mail=replace(item.mail, recipients=stage.remaining))
            publish(stores, queue, remaining_item, None, run.clock())
        else:
            stores.tables.deleted.mark_many(queue, [mail.enqueue_id])
    if failed:
        actions.send_bounce(mail)
        quarantine.settle(mail)
        return "failed"
    quarantine.withdraw(mail)
    return "released"


NOTED = "noted"
"""Why a mail is left alone in shadow mode."""
GAVE_UP = "failedMails"
KINDS = {action: action.value for action in Action} | {Action.FAILED: GAVE_UP}
"""Action -> the report field that counts it. The runner's `failed` counts errors."""
SETTLED, RETURNED, SILENT = "settled meanwhile", "given back meanwhile", "its holder is silent"


class StuckMailWork:
    """The work of one apply. `decisions`: as the report shows them."""

    def __init__(self, run: Run, plan: StuckPlan, progress: Progress) -> None:
        self.run, self.plan, self.progress = run, plan, progress
        self.shadow = plan.mode is StuckMode.SHADOW
        self.mails = run.read_rows(plan.mails, PlannedMail)
        self.quarantine = Quarantine(run.stores, run.queue, run.clock)
        known = shadow_report_mails(run.stores, run.queue) if self.shadow else ()
        since = {
            mail["enqueueId"]: datetime.fromisoformat(mail["decided"])
            for mail in known
            if mail["run"] != run.request.run
        }
        alarms = list(progress.earlier.get("alarms", ()))
        self.actions = StuckMailActions(run, plan, self.quarantine, self._why_skip, since, alarms)
        # Each mail costs a few writes and a copy of its content.
        self.throttle = run.throttle("s3")
        self.decisions: list[dict[str, Any]] = []
        self.unanswered: list[TryAgain] = []
        run.report(decisions=self.decisions, alarms=alarms)  # the lists grow

    def perform_all(self) -> None:
        """Act on all planned mails, until the time limit."""
        self._finish_earlier_runs()
        self._read_holders()
        closed = {} if self.shadow else self.actions.closed_by_earlier_try()
        for mail in self.mails:
            if mail.enqueue_id in closed:
                self._record_done(closed[mail.enqueue_id])
                continue
            if self.run.out_of_time():
                break
            self._perform(mail)
        if not self.shadow:
            self._discard_records()
        if self.unanswered:
            raise self.unanswered[0]

    def _finish_earlier_runs(self) -> None:
        """Also in shadow mode: nobody can release a mail while it is being closed."""
        planned = {mail.enqueue_id for mail in self.mails if not self.shadow}
        finished, unswept = finish(self.actions, planned), None
        try:
            if orphans := self.quarantine.sweep():
                finished["content without a row"] = orphans
        except BadSetting as error:  # S3 lets nobody delete
            unswept = str(error)
        self.run.report(finishedOfEarlierRuns=finished, unswept=unswept)

    def _read_holders(self) -> None:
        """Which workers live, by records written from now on: one since the plan proves nothing."""
        self._liveness, table = WorkerLiveness(), self.run.stores.own.worker_records
        if self.mails or self.plan.dead:
            self._liveness = observe(lambda: table.list(self.run.queue))
        stuck = stuck_mails(self._liveness, self.plan.lock_timeout)
        self._stuck = {hung.mail.enqueue_id: hung for hung in stuck}
        self._read_at = elapsed_seconds()

    def _perform(self, planned: PlannedMail) -> None:
        """Act on one mail. An error of a mail does not stop the others."""
        self.throttle.take()
        if (why := self._why_skip(planned)) is not None:
            self.progress.skip(why)
            return
        self.run.require_lock()
        try:
            self._record_done(self.actions.act(planned, self._stuck[planned.enqueue_id]))
        except LeftAlone as skipped:
            self.progress.skip(str(skipped))
        except TryAgain as error:  # perhaps for this mail alone, such as by its content
            self.unanswered.append(error)
            if len(self.unanswered) == 3 or not isinstance(error, StoreUnavailable):
                raise
        except MailsliceError as error:
            self.progress.fail(str(planned.enqueue_id), str(error))

    def _why_skip(self, planned: PlannedMail) -> str | None:
        """Why to leave a mail; None while recent records show that its holder lives and hangs."""
        stuck = self._stuck.get(planned.enqueue_id)
        # The holder may have died since: copying contents, also this one's, takes long.
        if stuck and elapsed_seconds() - self._read_at > stuck.record.dead_after.total_seconds():
            self._read_holders()
            stuck = self._stuck.get(planned.enqueue_id)
        is_held = stuck is not None and stuck.record.worker == planned.worker
        return None if is_held else _why_not(planned, self._liveness)

    def _record_done(self, decision: dict[str, Any]) -> None:
        self.decisions.append(decision)
        if self.shadow:
            self.progress.skip(NOTED)
        else:
            self.progress.done(KINDS[Action(decision["action"])])

    def _discard_records(self) -> None:
        """Discard the records of planned dead workers, unless they were written since."""
        table, discarded = self.run.stores.own.worker_records, 0
        records = {record.worker: record for record in self._liveness.not_alive}
        for dead in self.plan.dead:
            record = records.get(dead.worker)
            if record is not None and record.beat == dead.beat:
                self.run.require_lock()
                table.discard(self.run.queue, record)
                discarded += 1
        self.run.report(discardedRecords=discarded)


def _why_not(planned: PlannedMail, liveness: WorkerLiveness) -> str:
    if any(record.worker == planned.worker for record in liveness.not_alive):
        return SILENT
    in_flight = {(one.worker, mail.enqueue_id) for one in liveness.alive for mail in one.in_flight}
    return RETURNED if (planned.worker, planned.enqueue_id) in in_flight else SETTLED
