"""What the tasks do: the code of `mailslice queue` and of the duties, with James' figures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from mailslice.maintenance.decision_files import write_decision
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import MailsliceError, Refused
from mailslice.model.settings import Settings
from mailslice.webadmin.answers import instant
from mailslice.webadmin.tasks import TaskRequest, TaskType

if TYPE_CHECKING:
    from mailslice.maintenance.run_request import RunRequest
    from mailslice.stores import Stores

log = logging.getLogger(__name__)
Information = dict[str, Any]
BEFORE_APPLY = ("plan", "check")
"""Behind these steps a duty has changed nothing: there it can be canceled."""
_BLOOM = ("bloomFilterExpectedBlobCount", "bloomFilterAssociatedProbability", "deletionWindowSize")


class Canceled(Exception):
    """The work ended before its next change."""


class Watch(Protocol):
    """Who looks on while a task is done."""

    def tell(self, information: Information) -> None:
        """How far it is."""

    def check(self) -> None:
        """Raises Canceled when it is to end. Called where nothing is half done."""


def perform(
    request: TaskRequest, settings: Settings, watch: Watch, clock: Clock = system_clock
) -> None:
    """Do the work of a task to its end. Raises MailsliceError, and Canceled."""
    watch.check()
    if request.type in {TaskType.DELETE, TaskType.CLEAR}:
        _delete(request, settings, watch, clock)
    else:
        _DUTIES[request.type](request, settings, watch, clock)


def failed(request: TaskRequest, so_far: Mapping[str, Any] | None, error: Exception) -> Information:
    """The information of a task that failed, with what a person needs to know. `error` is ours."""
    ours = isinstance(error, MailsliceError)
    text = str(error) if ours else f"{type(error).__name__}; the log of mailslice has more"
    return {"type": request.type.value, **(so_far or {}), "error": text}


def _delete(request: TaskRequest, settings: Settings, watch: Watch, clock: Clock) -> None:
    from mailslice.admin import queues
    from mailslice.admin.deletions import Deletion
    from mailslice.admin.filters import MailFilter
    from mailslice.admin.mail_queue import MailQueue
    from mailslice.stores import open_stores

    given = dict(request.params)
    with open_stores(settings) as stores:
        queue = MailQueue(stores, queues.require(stores, request.queue or ""), clock)
        _agreed(stores)
        initial = queue.size()

        def tell() -> None:
            remaining = queue.size()
            counts = {"initialCount": initial, "remainingCount": remaining}
            watch.tell(_about(request, clock) | _named_twice(queue.name) | given | counts)

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
            action = f"queue {'clear' if request.type is TaskType.CLEAR else 'delete'}"
            _record(settings, action, request, clock(), **deletion.as_json(), **about)
        tell()


def _browse_start(request: TaskRequest, settings: Settings, watch: Watch, clock: Clock) -> None:
    watch.tell(_about(request, clock) | {"mailQueue": request.queue})
    report = _run(request, "queue_cleanup", {}, settings, watch, clock=clock)
    watch.tell(_about(request, clock) | {"mailQueue": request.queue, "run": report["run"]})


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


def _blob_gc(request: TaskRequest, settings: Settings, watch: Watch, clock: Clock) -> None:
    names = ("referenceSourceCount", "blobCount", "gcedBlobCount", "errorCount")
    bloom = {name: request.params[name] for name in _BLOOM}
    watch.tell(_about(request, clock) | dict.fromkeys(names, 0) | bloom)
    report = _run(request, "blob_gc", {}, settings, watch, clock=clock)
    counts = {name: report.get(name) or 0 for name in names}
    watch.tell(_about(request, clock) | counts | bloom | {"run": report["run"]})


def _counters(request: TaskRequest, settings: Settings, watch: Watch, clock: Clock) -> None:
    watch.tell(_about(request, clock) | {"processedMailboxes": 0, "failedMailboxes": []})
    params = {"trust_projection": request.params["trustMessageProjection"]}
    report = _run(request, "counter_repair", params, settings, watch, clock=clock)
    about = {
        "processedMailboxes": report.get("processedMailboxes") or 0,
        "failedMailboxes": sorted(report.get("failures") or ()),
        "run": report["run"],
    }
    watch.tell(_about(request, clock) | about)


_DUTIES: Mapping[TaskType, Callable[[TaskRequest, Settings, Watch, Clock], None]] = {
    TaskType.BROWSE_START: _browse_start,
    TaskType.REPUBLISH: _republish,
    TaskType.BLOB_GC: _blob_gc,
    TaskType.COUNTERS: _counters,
}


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
    from mailslice.admin import queues
    from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
    from mailslice.maintenance.runner import run_all
    from mailslice.stores import open_stores

    subject = NO_QUEUE
    if request.queue is not None:
        with open_stores(settings) as stores:
            subject = queues.require(stores, request.queue)
            _agreed(stores)
            settings = stores.settings
    run = RunRequest(
        duty,
        subject,
        request.run + suffix,
        who=request.who,
        params={**params, "reason": request.reason or "webadmin"},
    )

    def step_ended(step: str, _summary: Mapping[str, Any]) -> None:
        if step in BEFORE_APPLY:
            _end_if_canceled(run, settings, watch)

    return run_all(run, settings, step_ended, clock=clock)


def _end_if_canceled(run: RunRequest, settings: Settings, watch: Watch) -> None:
    from mailslice.maintenance.runner import record_refusal

    try:
        watch.check()
    except Canceled:
        record_refusal("apply", Refused("canceled: nothing was changed"), run, settings)
        raise


def _agreed(stores: Stores) -> None:
    from mailslice.view.configuration import ConfigurationGuard

    ConfigurationGuard(stores.tables, stores.settings).agreed()


def _about(request: TaskRequest, clock: Clock) -> Information:
    return {"type": request.type.value, "timestamp": instant(clock())}


def _named_twice(queue: str) -> Information:
    """James' code writes `mailQueueName`, its documents `queue`."""
    return {"mailQueueName": queue, "queue": queue}


def _record(
    settings: Settings, action: str, request: TaskRequest, now: datetime, **facts: object
) -> None:
    write_decision(
        settings,
        now,
        who=request.who,
        action=action,
        queue=request.queue,
        reason=request.reason,
        facts={"task": str(request.id), **facts},
    )
