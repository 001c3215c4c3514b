"""Does the tasks by the code of `mailslice queue` and of the duties, with James' figures."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mailslice.admin import queues
from mailslice.admin.deletions import Deletion
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.maintenance.decision_files import write_decision
from mailslice.maintenance.report import BAD
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.maintenance.runner import record_refusal, run_all
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import MailsliceError, Refused
from mailslice.model.settings import Settings
from mailslice.stores import open_stores
from mailslice.view.configuration import ConfigurationGuard
from mailslice.webadmin.answers import instant
from mailslice.webadmin.tasks import DUTIES, Task, TaskRequest, TaskType, figures

Information = dict[str, Any]
BEFORE_APPLY = ("plan", "check")
"""Steps that change nothing: a duty can be canceled at their end."""


class Canceled(Exception):
    """The work ended before its next change."""


@dataclass(slots=True)
class RunningTask:
    """A task of this process while it waits or runs."""

    task: Task
    lock: threading.Lock = field(default_factory=threading.Lock)
    canceled: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raises Canceled after a cancellation. Called only between two changes."""
        if self.canceled.is_set():
            raise Canceled

    def change(self, **values: Any) -> None:
        """Replace fields of the task."""
        with self.lock:
            self.task = replace(self.task, **values)


def failed(request: TaskRequest, so_far: Mapping[str, Any] | None, error: Exception) -> Information:
    """The information of a failed task. Its field `error` is mailslice's, not one of James."""
    is_own = isinstance(error, MailsliceError)
    text = str(error) if is_own else f"{type(error).__name__}; the log of mailslice has more"
    return {"type": request.type.value, **(so_far or {}), "error": text}


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The work of a task. `run_duty` runs all steps of a duty."""

    request: TaskRequest
    settings: Settings
    watch: RunningTask
    clock: Clock = system_clock
    run_duty: Callable[..., dict[str, Any]] = run_all

    def perform(self) -> None:
        """Do it to its end. Raises MailsliceError, and Canceled."""
        self.watch.check()
        if self.request.type in {TaskType.DELETE, TaskType.CLEAR}:
            self._delete()
        elif self.request.type is TaskType.REPUBLISH:
            self._republish()
        else:
            self._one_duty()

    def _delete(self) -> None:
        request = self.request
        with open_stores(self.settings) as stores:
            queue = MailQueue(stores, queues.require(stores, request.queue or ""), self.clock)
            ConfigurationGuard(stores.tables, stores.settings).agreed()
            initial = queue.size()
            # James' code writes `mailQueueName`, its documents `queue`.
            about = {"mailQueueName": queue.name, "queue": queue.name, **request.params}
            about["initialCount"] = initial
            self._report(about, remainingCount=initial)
            self.watch.check()
            deletion = Deletion(who=request.who, reason=request.reason or "")
            mail_filter, clears = MailFilter(**request.params), request.type is TaskType.CLEAR
            try:
                if clears:
                    queue.clear(deletion)
                else:
                    queue.delete(mail_filter, deletion=deletion)
            finally:
                facts = {} if clears else {"filter": mail_filter.as_json()}
                action = f"queue {'clear' if clears else 'delete'}"
                self._record(action, {**deletion.as_json(), **facts})
            self._report(about, remainingCount=queue.size())

    def _republish(self) -> None:
        """Runs an audit with a census, then republishes the mails that it proves lost."""
        request = self.request
        age, accept = request.params["olderThan"], request.params["acceptDuplicates"]
        about = {"mailQueue": request.queue, "olderThan": request.params["before"]}
        self._report(about, nbRequeuedMails=0)
        audit, count = {"older_than": age, "census": True}, None
        try:
            audited = self._run("queue_audit", audit, suffix="-audit")
            _raise_if_bad(audited)
            self.watch.check()
            params = {"audit": audited["run"], "older_than": age, "accept_duplicates": accept}
            report = self._run("republish_lost", params)
            count = report["nbRequeuedMails"]
            self._report(about, nbRequeuedMails=count, run=report["run"])
            _raise_if_bad(report)
        finally:
            run = (self.watch.task.information or {}).get("run")
            self._record("queue republish", {"republished": count, "run": run})

    def _one_duty(self) -> None:
        request = self.request
        about: Information = {} if request.queue is None else {"mailQueue": request.queue}
        params = {}
        if request.type is TaskType.BLOB_GC:
            about = dict(request.params)
        elif request.type is TaskType.COUNTERS:
            params = {"trust_projection": request.params["trustMessageProjection"]}
        self._report(about, **figures(request.type, {}))
        report = self._run(DUTIES[request.type], params)
        self._report(about, **figures(request.type, report))
        _raise_if_bad(report)

    def _record(self, action: str, facts: Information) -> None:
        """Record the decision and who asked for the task, also after a failure."""
        request, now = self.request, self.clock()
        who, queue, reason = request.who, request.queue, request.reason
        facts = {"task": str(request.id), **facts}
        write_decision(
            self.settings, now, who=who, action=action, queue=queue, reason=reason, facts=facts
        )

    def _report(self, about: Information, **more: Any) -> None:
        """Set the task's information: how far the work is."""
        head = {"type": self.request.type.value, "timestamp": instant(self.clock())}
        self.watch.change(information={**head, **about, **more})

    def _run(self, duty: str, params: Mapping[str, Any], suffix: str = "") -> dict[str, Any]:
        """Run all steps of a duty, with its gates, lock and ledger row. Returns its report."""
        request, settings, subject = self.request, self.settings, NO_QUEUE
        if request.queue is not None:
            with open_stores(settings) as stores:
                subject = queues.require(stores, request.queue)
                ConfigurationGuard(stores.tables, stores.settings).agreed()
                settings = stores.settings
        params = {**params, "reason": request.reason or "webadmin"}
        run = RunRequest(duty, subject, request.run + suffix, who=request.who, params=params)

        def step_ended(step: str, _summary: Mapping[str, Any]) -> None:
            try:
                if step in BEFORE_APPLY:
                    self.watch.check()
            except Canceled:
                record_refusal("apply", Refused("canceled: nothing was changed"), run, settings)
                raise

        # A step that raises leaves a row in the ledger, and no report.
        self.watch.change(information={**(self.watch.task.information or {}), "run": run.run})
        return self.run_duty(run, settings, step_ended, clock=self.clock)


def _raise_if_bad(report: Mapping[str, Any]) -> None:
    """Raises MailsliceError with the message of a run that was refused or has failed."""
    if report["status"] in BAD:
        raise MailsliceError(report["message"])
