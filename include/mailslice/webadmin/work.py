"""What the tasks do: the code of `mailslice queue` and of the duties, with James' figures."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mailslice.admin import queues
from mailslice.admin.deletions import Deletion
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.maintenance.decision_files import write_decision
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
"""Behind these steps a duty has changed nothing: there it can be canceled."""


class Canceled(Exception):
    """The work ended before its next change."""


@dataclass(slots=True)
class Watch:
    """A task of this process while it is done."""

    task: Task
    lock: threading.Lock = field(default_factory=threading.Lock)
    canceled: threading.Event = field(default_factory=threading.Event)

    def tell(self, information: Mapping[str, Any]) -> None:
        """How far it is."""
        self.change(information=information)

    def check(self) -> None:
        """Raises Canceled when it is to end. Called where nothing is half done."""
        if self.canceled.is_set():
            raise Canceled

    def change(self, **values: Any) -> None:
        """Other fields of the task."""
        with self.lock:
            self.task = replace(self.task, **values)


def perform(
    request: TaskRequest, settings: Settings, watch: Watch, clock: Clock = system_clock
) -> None:
    """Do the work of a task to its end. Raises MailsliceError, and Canceled."""
    watch.check()
    if request.type in {TaskType.DELETE, TaskType.CLEAR}:
        _delete(request, settings, watch, clock)
    elif request.type is TaskType.REPUBLISH:
        _republish(request, settings, watch, clock)
    else:
        _one_duty(request, settings, watch, clock)


def failed(request: TaskRequest, so_far: Mapping[str, Any] | None, error: Exception) -> Information:
    """The information of a task that failed, with what a person needs to know. `error` is ours."""
    ours = isinstance(error, MailsliceError)
    text = str(error) if ours else f"{type(error).__name__}; the log of mailslice has more"
    return {"type": request.type.value, **(so_far or {}), "error": text}


def _delete(request: TaskRequest, settings: Settings, watch: Watch, clock: Clock) -> None:
    given = dict(request.params)
    with open_stores(settings) as stores:
        queue = MailQueue(stores, queues.require(stores, request.queue or ""), clock)
        ConfigurationGuard(stores.tables, stores.settings).agreed()
        initial = queue.size()

        def tell() -> None:
            # James' code writes `mailQueueName`, its documents `queue`.
            names = {"mailQueueName": queue.name, "queue": queue.name}
            counts = {"initialCount": initial, "remainingCount": queue.size()}
            watch.tell(_about(request, clock) | names | given | counts)

        tell()
        watch.check()
        deletion = Deletion(who=request.who, reason=request.reason or "")
        about: Information = {}
        try:
            if request.type is TaskType.CLEAR:
                queue.clear(deletion)
            else:
                mail_filter = MailFilter(
                    sender=given["sender"], name=given["name"], recipient=given["recipient"]
                )
                about = {"filter": mail_filter.as_json()}
                queue.delete(mail_filter, deletion=deletion)
        finally:
            write_decision(
                settings,
                clock(),
                who=request.who,
                action=f"queue {'clear' if request.type is TaskType.CLEAR else 'delete'}",
                queue=request.queue,
                reason=request.reason,
                facts={"task": str(request.id), **deletion.as_json(), **about},
            )
        tell()


def _republish(request: TaskRequest, settings: Settings, watch: Watch, clock: Clock) -> None:
    """An audit that takes a census, and then the mails that it proves lost."""
    older_than = request.params["olderThan"]
    about = {"mailQueue": request.queue, "olderThan": request.params["before"]}
    watch.tell(_about(request, clock) | about | {"nbRequeuedMails": 0})
    audit = {"older_than": older_than, "census": True}
    audited = _run(request, "queue_audit", audit, settings, watch, clock=clock, suffix="-audit")
    watch.check()
    params = {
        "audit": audited["run"],
        "older_than": older_than,
        "accept_duplicates": request.params["acceptDuplicates"],
    }
    report = _run(request, "republish_lost", params, settings, watch, clock=clock)
    counts = {"nbRequeuedMails": report["nbRequeuedMails"], "run": report["run"]}
    watch.tell(_about(request, clock) | about | counts)


def _one_duty(request: TaskRequest, settings: Settings, watch: Watch, clock: Clock) -> None:
    about: Information = {} if request.queue is None else {"mailQueue": request.queue}
    params = {}
    if request.type is TaskType.BLOB_GC:
        about = dict(request.params)
    elif request.type is TaskType.COUNTERS:
        params = {"trust_projection": request.params["trustMessageProjection"]}
    watch.tell(_about(request, clock) | about | figures(request.type, {}))
    report = _run(request, DUTIES[request.type], params, settings, watch, clock=clock)
    watch.tell(_about(request, clock) | about | figures(request.type, report))


def _run(
    request: TaskRequest,
    duty: str,
    params: Mapping[str, Any],
    settings: Settings,
    watch: Watch,
    *,
    clock: Clock,
    suffix: str = "",
) -> dict[str, Any]:
    """All steps of a duty, with its gates, lock and ledger row; its report."""
    subject = NO_QUEUE
    if request.queue is not None:
        with open_stores(settings) as stores:
            subject = queues.require(stores, request.queue)
            ConfigurationGuard(stores.tables, stores.settings).agreed()
            settings = stores.settings
    run = RunRequest(
        duty,
        subject,
        request.run + suffix,
        who=request.who,
        params={**params, "reason": request.reason or "webadmin"},
    )

    def step_ended(step: str, _summary: Mapping[str, Any]) -> None:
        try:
            if step in BEFORE_APPLY:
                watch.check()
        except Canceled:
            record_refusal("apply", Refused("canceled: nothing was changed"), run, settings)
            raise

    return run_all(run, settings, step_ended, clock=clock)


def _about(request: TaskRequest, clock: Clock) -> Information:
    return {"type": request.type.value, "timestamp": instant(clock())}
