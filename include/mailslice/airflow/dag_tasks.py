"""James' tasks as runs of mailslice's DAGs. A task's id is the run's; Airflow keeps the rest."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from mailslice.actions.request import MAIL_ACTIONS, ActionRequest, MailAction, literal, of_literal
from mailslice.actions.run import ANY, result_of
from mailslice.airflow.runs import QUEUED, RUNNING, SUCCESS, DagRunState
from mailslice.cockpit.facts import Facts
from mailslice.maintenance.artifacts import FILES, RunFolder, artifacts
from mailslice.maintenance.registry import load
from mailslice.maintenance.result import PROGRESS
from mailslice.maintenance.run_request import NO_QUEUE, run_of_dag
from mailslice.model.durations import parse_duration
from mailslice.model.errors import BadInput, PlanRefused, TryAgain
from mailslice.model.mail import QueueName
from mailslice.webadmin.answers import instant
from mailslice.webadmin.queues import Queues
from mailslice.webadmin.tasks import DUTIES, Status, Task, TaskRequest, TaskType, figures

SUBMITTED_FROM = "airflow"
CANCELED = "canceled by DELETE /tasks"
MAX_TASKS, MAX_WHOLE = 1000, 100
_UUID = "________-____-____-____-____________"
_TEXTS = ("sender", "name", "recipient")
_ACTIONS = {
    TaskType.CLEAR: MailAction.CLEAR,
    TaskType.DELETE: MailAction.DELETE,
    TaskType.REPUBLISH: MailAction.REPUBLISH,
}
_STATUSES = {QUEUED: Status.WAITING, RUNNING: Status.IN_PROGRESS, SUCCESS: Status.COMPLETED}
_APPLY = ("apply_", "act")
"""Prefixes of the ids of Airflow tasks that change something."""
_PLAN = "plan_"
"""The prefix of the ids of Airflow tasks that may do all steps of a small plan."""
_CANCEL_TRIES = 10
"""Tries to end a run. One fails if a task begins between its check and the end."""

DagRuns = Any
"""The module `airflow.runs`, or what has its functions."""


class DagTasks:
    """See `webadmin.tasks.Tasks`. `dag_of`: duty, or mail_actions -> id of its DAG."""

    poll_seconds = 1.0

    def __init__(self, runs: DagRuns, facts: Facts, dag_of: Callable[[str], str]) -> None:
        self._runs, self._facts, self._dag_of = runs, facts, dag_of
        self._names = {dag_of(name): name for name in (MAIL_ACTIONS, *DUTIES.values())}

    def submit(self, request: TaskRequest) -> None:
        """See `tasks.Tasks`. Raises Refused where the DAG is missing or paused."""
        name, conf = conf_of(request)
        self._runs.start(self._dag_of(name), conf, request.who, str(request.id))

    def get(self, task: UUID) -> Task | None:
        run = self._runs.find(list(self._names), str(task))
        if run is None:
            return None
        try:
            return self._task(run, whole=True)
        except TryAgain:  # the stores do not tell what the run did, but its state is known
            return self._task(run, whole=False)

    def newest(self) -> Sequence[Task]:
        """See `tasks.Tasks`. The first hundred have their figures while the stores answer."""
        tasks, whole = list[Task](), MAX_WHOLE
        for run in self._runs.newest(list(self._names), _UUID, MAX_TASKS):
            try:
                task = self._task(run, whole=len(tasks) < whole)
            except TryAgain:
                task, whole = self._task(run, whole=False), 0
            if task is not None:
                tasks.append(task)
        return sorted(tasks, key=lambda task: task.submitted, reverse=True)

    def cancel(self, task: UUID) -> None:
        """See `tasks.Tasks`. A task whose run may have begun to change something goes on.

        Raises TryAgain.
        """
        for _ in range(_CANCEL_TRIES):
            run = self._runs.find(list(self._names), str(task))
            if run is None or run.state not in {QUEUED, RUNNING} or self._may_change(run):
                return
            if self._runs.fail(run, CANCELED):
                return
        raise TryAgain(f"the tasks of run {task} begin one after the other: try again")

    def _may_change(self, run: DagRunState) -> bool:
        """Whether the run changes or changed something, or may do so before another task begins."""
        if any(task.id.startswith(_APPLY) for task in run.began):
            return True
        duty, settings = self._names[run.dag], self._facts.settings
        plans = [task for task in run.began if task.id.startswith(_PLAN)]
        if not plans or not (settings.duty.small_rows and load(duty).small_first):
            return False
        queues = run.conf.get("queues") or ()
        if not queues or any(plan.running for plan in plans):
            return True
        # No plan task runs, so nothing more is done until another task begins. Apply saves its
        # progress before its first change.
        location = artifacts(settings)
        ids = ((name, run_of_dag(duty, name, run.run)) for name in queues)
        folders = (RunFolder(location, duty, name, id_) for name, id_ in ids)
        return any(location.exists(folder.file(PROGRESS)) for folder in folders)

    def _task(self, run: DagRunState, *, whole: bool) -> Task | None:
        type_ = _type(self._names[run.dag], run.conf)
        try:
            id_ = UUID(run.run)
        except ValueError:
            return None
        if type_ is None or str(id_) != run.run:
            return None
        status = _status(run)
        about = _about(run, type_) | (self._figures(run, type_, status) if whole else {})
        if status is Status.FAILED:
            about.setdefault("error", f"the run of {run.dag} failed: its log in Airflow has more")
        return Task(
            id_,
            type_,
            status,
            run.queued,
            SUBMITTED_FROM,
            started=run.started,
            ended=run.ended if status.is_final else None,
            executed_on=None if run.started is None else SUBMITTED_FROM,
            canceled_from=SUBMITTED_FROM if status is Status.CANCELED else None,
            information=about,
        )

    def _figures(self, run: DagRunState, type_: TaskType, status: Status) -> dict[str, Any]:
        """James' figures of the work; none where its report is gone. Raises TryAgain."""
        before = figures(type_, {})
        if not status.is_final:
            return before
        named = run.conf.get("queue") or next(iter(run.conf.get("queues") or ()), "")
        queue = QueueName(str(named))
        known: Mapping[str, Any] = {}
        error = None
        with suppress(PlanRefused):  # a damaged file counts as missing
            if type_ in _ACTIONS:
                result = result_of(self._facts.settings, queue, run.run) or {}
                known, error = result.get("information") or {}, result.get("failed")
            else:
                duty, queue = DUTIES[type_], queue or NO_QUEUE
                location, id_ = artifacts(self._facts.settings), run_of_dag(duty, queue, run.run)
                report = RunFolder(location, duty, queue, id_).read_json(FILES["report"]) or {}
                known, error = figures(type_, report) if report else {}, report.get("message")
        if status is not Status.COMPLETED:
            known = {**before, **known}
        return {**known, **({"error": error} if error and status is Status.FAILED else {})}


class DagQueues(Queues):
    """As Queues, but a flush is a DAG run, for which the request does not wait."""

    def __init__(self, facts: Facts, runs: DagRuns, dag_of: Callable[[str], str]) -> None:
        super().__init__(facts)
        self._runs, self._dag_of = runs, dag_of

    def flush(self, name: str, who: str, reason: str | None) -> int:
        """Start the delivery of delayed mails. Returns 0: the count is in the run's result."""
        conf = {"queue": self.require(name), "action": MailAction.FLUSH.value, "digest": ANY}
        self._runs.start(self._dag_of(MAIL_ACTIONS), {**conf, "reason": reason}, who)
        return 0


def conf_of(request: TaskRequest) -> tuple[str, dict[str, Any]]:
    """The id without prefix of the DAG that does the task, and the conf of its run."""
    params, reason = request.params, request.reason or "webadmin"
    if request.type in _ACTIONS:
        conf: dict[str, Any] = {"queue": request.queue, "digest": ANY, "reason": reason}
        conf["action"] = _ACTIONS[request.type].value
        if request.type is TaskType.DELETE:
            given = {name: params.get(name) for name in _TEXTS}
            conf |= {name: literal(text) for name, text in given.items() if text is not None}
        if request.type is TaskType.REPUBLISH:
            conf["older_than"] = params["olderThan"]
            conf["accept_duplicates"] = params["acceptDuplicates"]
        ActionRequest.of(conf)  # BadInput now, not in the run
        return MAIL_ACTIONS, conf
    conf = {"dry_run": False, "reason": reason}
    if request.queue is not None:
        conf["queues"] = [request.queue]
    if request.type is TaskType.COUNTERS:
        conf["trust_projection"] = params["trustMessageProjection"]
    return DUTIES[request.type], conf


def _type(name: str, conf: Mapping[str, Any]) -> TaskType | None:
    if name == MAIL_ACTIONS:
        return next((one for one, act in _ACTIONS.items() if act == conf.get("action")), None)
    return next(one for one, duty in DUTIES.items() if duty == name)


def _status(run: DagRunState) -> Status:
    ended = Status.CANCELED if run.note == CANCELED else Status.FAILED
    return _STATUSES.get(run.state, ended)


def _about(run: DagRunState, type_: TaskType) -> dict[str, Any]:
    at = run.ended or run.started or run.queued
    about: dict[str, Any] = {"type": type_.value, "timestamp": instant(at)}
    if "queue" in run.conf:
        about |= {"mailQueueName": run.conf["queue"], "queue": run.conf["queue"]}
    if type_ is TaskType.DELETE:
        about |= {name: of_literal(run.conf.get(name)) for name in _TEXTS}
    if type_ is TaskType.REPUBLISH:
        about["mailQueue"] = run.conf.get("queue")
        with suppress(BadInput, OverflowError):  # of a run that no route started
            age = parse_duration(str(run.conf.get("older_than") or "0s"), "older_than")
            about["olderThan"] = instant(run.queued - age)
    if type_ is TaskType.BROWSE_START:
        about["mailQueue"] = next(iter(run.conf.get("queues") or ()), None)
    return about
