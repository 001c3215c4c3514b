"""James' tasks as runs of our DAGs: the task's id is the id of the run. Airflow keeps the rest."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from mailslice.actions.request import MAIL_ACTIONS, MailAction, literal, of_literal
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
MOST_TASKS, MOST_WHOLE = 1000, 100
_UUID = "________-____-____-____-____________"
_TEXTS = ("sender", "name", "recipient")
_ACTIONS = {
    TaskType.CLEAR: MailAction.CLEAR,
    TaskType.DELETE: MailAction.DELETE,
    TaskType.REPUBLISH: MailAction.REPUBLISH,
}
_APPLY = ("apply_", "act")
"""How the ids of tasks begin that change something."""
_PLAN = "plan_"
"""How the ids of tasks begin that may do all steps of a small plan."""
_LOOKS = 10
"""Tries to end a run: in each, a task may begin between the check and the end."""

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
        found = self._runs.find(list(self._names), str(task))
        if found is None:
            return None
        try:
            return self._task(found, whole=True)
        except TryAgain:  # what the run did is not known now; its state is
            return self._task(found, whole=False)

    def newest(self) -> Sequence[Task]:
        """See `tasks.Tasks`. The first hundred have their figures while the stores answer."""
        tasks: list[Task] = []
        whole = MOST_WHOLE
        for one in self._runs.newest(list(self._names), _UUID, MOST_TASKS):
            try:
                task = self._task(one, whole=len(tasks) < whole)
            except TryAgain:
                task, whole = self._task(one, whole=False), 0
            if task is not None:
                tasks.append(task)
        return sorted(tasks, key=lambda task: task.submitted, reverse=True)

    def cancel(self, task: UUID) -> None:
        """See `tasks.Tasks`. A task whose run may have begun to change something goes on.

        Raises TryAgain.
        """
        for _ in range(_LOOKS):
            found = self._runs.find(list(self._names), str(task))
            if found is None or found.state not in {QUEUED, RUNNING} or self._may_change(found):
                return
            if self._runs.fail(found, CANCELED):
                return
        raise TryAgain(f"the tasks of run {task} begin one after the other: try again")

    def _may_change(self, one: DagRunState) -> bool:
        """Whether the run changes something, has done so, or may begin to without another task."""
        if any(task.id.startswith(_APPLY) for task in one.began):
            return True
        duty, settings = self._names[one.dag], self._facts.settings
        plans = [task for task in one.began if task.id.startswith(_PLAN)]
        if not plans or not (settings.duty.small_rows and load(duty).small_first):
            return False
        queues = one.conf.get("queues") or ()
        if not queues or any(plan.running for plan in plans):
            return True
        # No plan is at work: what they did stays as it is until another task begins. Apply saves
        # its progress before its first change.
        location = artifacts(settings)
        runs = (RunFolder(location, duty, name, run_of_dag(duty, name, one.run)) for name in queues)
        return any(location.exists(run.file(PROGRESS)) for run in runs)

    def _task(self, one: DagRunState, *, whole: bool) -> Task | None:
        type_ = _type(self._names[one.dag], one.conf)
        try:
            id_ = UUID(one.run)
        except ValueError:
            return None
        if type_ is None or str(id_) != one.run:
            return None
        status = _status(one)
        about = _about(one, type_) | (self._figures(one, type_, status) if whole else {})
        if status is Status.FAILED:
            about.setdefault("error", f"the run of {one.dag} failed: its log in Airflow has more")
        return Task(
            id_,
            type_,
            status,
            one.queued,
            SUBMITTED_FROM,
            started=one.started,
            ended=one.ended if status.is_final else None,
            executed_on=None if one.started is None else SUBMITTED_FROM,
            canceled_from=SUBMITTED_FROM if status is Status.CANCELED else None,
            information=about,
        )

    def _figures(self, one: DagRunState, type_: TaskType, status: Status) -> dict[str, Any]:
        """James' figures of the work; none where its report is gone. Raises TryAgain."""
        before = figures(type_, {})
        if not status.is_final:
            return before
        named = one.conf.get("queue") or next(iter(one.conf.get("queues") or ()), "")
        queue = QueueName(str(named))
        known: Mapping[str, Any] = {}
        error = None
        with suppress(PlanRefused):  # a file that is damaged is none
            if type_ in _ACTIONS:
                result = result_of(self._facts.settings, queue, one.run) or {}
                known, error = result.get("information") or {}, result.get("failed")
            else:
                duty, queue = DUTIES[type_], queue or NO_QUEUE
                location, run = artifacts(self._facts.settings), run_of_dag(duty, queue, one.run)
                report = RunFolder(location, duty, queue, run).read_json(FILES["report"]) or {}
                known, error = figures(type_, report) if report else {}, report.get("message")
        if status is not Status.COMPLETED:
            known = {**before, **known}
        return {**known, **({"error": error} if error and status is Status.FAILED else {})}


class DagQueues(Queues):
    """As Queues; a flush is a run, too, for which nobody waits."""

    def __init__(self, facts: Facts, runs: DagRuns, dag_of: Callable[[str], str]) -> None:
        super().__init__(facts)
        self._runs, self._dag_of = runs, dag_of

    def flush(self, name: str, who: str, reason: str | None) -> int:
        """Have delayed mails delivered now. How many is in the run's result: 0 here."""
        conf = {"queue": self.require(name), "action": MailAction.FLUSH.value, "digest": ANY}
        self._runs.start(self._dag_of(MAIL_ACTIONS), {**conf, "reason": reason}, who)
        return 0


def conf_of(request: TaskRequest) -> tuple[str, dict[str, Any]]:
    """The DAG that does the task, without prefix, and the conf of its run."""
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


def _status(one: DagRunState) -> Status:
    if one.state == QUEUED:
        return Status.WAITING
    if one.state == RUNNING:
        return Status.IN_PROGRESS
    if one.state == SUCCESS:
        return Status.COMPLETED
    return Status.CANCELED if one.note == CANCELED else Status.FAILED


def _about(one: DagRunState, type_: TaskType) -> dict[str, Any]:
    at = one.ended or one.started or one.queued
    about: dict[str, Any] = {"type": type_.value, "timestamp": instant(at)}
    if "queue" in one.conf:
        about |= {"mailQueueName": one.conf["queue"], "queue": one.conf["queue"]}
    if type_ is TaskType.DELETE:
        about |= {name: of_literal(one.conf.get(name)) for name in _TEXTS}
    if type_ is TaskType.REPUBLISH:
        about["mailQueue"] = one.conf.get("queue")
        with suppress(BadInput, OverflowError):  # of a run that no route started
            age = parse_duration(str(one.conf.get("older_than") or "0s"), "older_than")
            about["olderThan"] = instant(one.queued - age)
    if type_ is TaskType.BROWSE_START:
        about["mailQueue"] = next(iter(one.conf.get("queues") or ()), None)
    return about
