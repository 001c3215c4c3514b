"""Tasks of `mailslice webadmin`. This process runs them one after the other, as James does.

An ended task is a file in `webadmin/` of the artifacts, and known after a restart. A task that a
crash interrupted is not known: the ledger has what it did under `webadmin-TASKID`, and the same
request again finishes its work.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from pydantic import TypeAdapter

from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.clock import system_clock
from mailslice.model.errors import MailsliceError, Refused
from mailslice.webadmin.tasks import Status, Task, TaskRequest
from mailslice.webadmin.work import Canceled, RunningTask, failed

log = logging.getLogger(__name__)
TASKS_FOLDER = "webadmin"
MAX_TASKS, MAX_WAITING = 1000, 100
Perform = Callable[[TaskRequest, RunningTask], None]
_TASK = TypeAdapter(Task)


class InProcessTasks:
    """See `tasks.Tasks`. `host` is the name of this machine, in answers."""

    poll_seconds = 0.05

    def __init__(self, perform: Perform, location: Artifacts, host: str) -> None:
        self._perform, self._location, self._host = perform, location, host
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "webadmin-task")
        self._ended: OrderedDict[UUID, Task] = OrderedDict(_saved(location))
        self._entries: dict[UUID, RunningTask] = {}

    def submit(self, request: TaskRequest) -> None:
        task = Task(request.id, request.type, Status.WAITING, request.submitted, self._host)
        entry = RunningTask(task)
        with self._lock:
            if len(self._entries) >= MAX_WAITING:
                raise Refused(f"{len(self._entries)} tasks wait already; cancel some, or wait")
            self._entries[request.id] = entry
            self._thread.submit(self._do, request, entry)

    def get(self, task: UUID) -> Task | None:
        with self._lock:
            entry = self._entries.get(task)
            return entry.task if entry else self._ended.get(task)

    def newest(self) -> Sequence[Task]:
        with self._lock:
            tasks = [*self._ended.values(), *(entry.task for entry in self._entries.values())]
        return sorted(tasks, key=lambda task: task.submitted, reverse=True)[:MAX_TASKS]

    def cancel(self, task: UUID) -> None:
        with self._lock:
            if entry := self._entries.get(task):
                entry.canceled.set()
                entry.change(status=Status.CANCEL_REQUESTED, canceled_from=self._host)

    def close(self) -> None:
        """Cancel waiting tasks, and the running one if it changed nothing yet; wait for its end."""
        with self._lock:
            for entry in self._entries.values():
                entry.canceled.set()
        self._thread.shutdown(wait=True)

    def _do(self, request: TaskRequest, entry: RunningTask) -> None:
        begun = {"status": Status.IN_PROGRESS, "started": system_clock(), "executed_on": self._host}
        with self._lock:  # `cancel` may come between
            if not entry.canceled.is_set():
                entry.change(**begun)
        try:
            self._perform(request, entry)
            status = Status.COMPLETED
        except Canceled:
            status = Status.CANCELED
            entry.change(canceled_from=self._host)
        except Exception as error:
            status = Status.FAILED
            entry.change(information=failed(request, entry.task.information, error))
            if isinstance(error, MailsliceError):
                log.warning("task %s failed: %s", request.id, error)
            else:
                log.exception("task %s failed", request.id)
        with self._lock:  # `cancel` finds it running, or ended
            entry.change(status=status, ended=system_clock())
            self._ended[request.id] = entry.task
            del self._entries[request.id]
            excess = range(len(self._ended) - MAX_TASKS)
            forgotten = [self._ended.popitem(last=False)[1] for _ in excess]
        try:
            self._location.write(_file(entry.task), _TASK.dump_json(entry.task))
            for task in forgotten:
                self._location.remove(_file(task))
        except MailsliceError as error:
            log.warning("task %s ended, but is not kept: %s", request.id, error)


def _file(task: Task) -> str:
    return f"{TASKS_FOLDER}/{task.submitted:%Y%m%dT%H%M%S.%f}-{task.id}.json"


def _saved(location: Artifacts) -> list[tuple[UUID, Task]]:
    """The tasks that ended, the oldest first. Skips a file that is no task, with a warning."""
    tasks = []
    for name in location.files(TASKS_FOLDER)[-MAX_TASKS:]:
        try:
            task = _TASK.validate_json(location.read(name) or b"")
            tasks.append((task.id, task))
        except ValueError:
            log.warning("%s is no task and is left out", location.uri(name))
    return tasks
