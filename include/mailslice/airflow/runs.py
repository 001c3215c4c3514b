"""Starts, finds and ends runs of mailslice's DAGs by Airflow's own functions, for HTTP routes.

Airflow's API server serves the routes; it has access to Airflow's database.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from mailslice.cockpit.app import PlanQuestion
from mailslice.model.errors import BadInput, Refused

QUEUED, RUNNING, SUCCESS = "queued", "running", "success"
_OVER = {"success", "failed", "skipped", "upstream_failed", "removed"}
_AT_WORK = {"running", "restarting"}


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task of a run that has run, or runs. `map_index` is -1 where it is not mapped."""

    id: str
    map_index: int = -1
    tries: int = 1
    running: bool = False


@dataclass(frozen=True, slots=True)
class DagRunState:
    """A run as it was when it was read. `began`: the tasks that have run, or run."""

    dag: str
    run: str
    state: str
    conf: Mapping[str, Any]
    queued: datetime
    started: datetime | None
    ended: datetime | None
    note: str | None
    began: frozenset[TaskState] = frozenset()


def start(dag: str, conf: Mapping[str, Any], who: str, run: str | None = None) -> str:
    """Start a run as user `who`; returns its id. Raises Refused if the DAG is missing or paused,
    BadInput for a conf that its params do not allow.
    """
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import ParamValidationError
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType
    from sqlalchemy import select

    with create_session() as session:
        model = session.scalar(select(DagModel).where(DagModel.dag_id == dag))
        if model is None or model.is_stale:
            raise Refused(f"Airflow has no DAG {dag}: it is not there, or was not parsed yet")
        if model.is_paused:
            raise Refused(
                f"the DAG {dag} is paused in Airflow: unpause it first. A DAG with a schedule then "
                "starts a run of its last interval at once, not dry"
            )
    try:
        made = trigger_dag(
            dag,
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name=who,
            run_id=run,
            conf=dict(conf),
        )
    except (ParamValidationError, ValueError) as error:
        raise BadInput(f"{dag}: {' '.join(str(error).split())[:500]}") from error
    if made is None:
        raise Refused(f"Airflow started no run of {dag}")
    return str(made.run_id)


def find(dags: Iterable[str], run: str) -> DagRunState | None:
    """The run of that id of one of these DAGs."""
    return next(iter(_runs(dags, run, 1, tasks=True)), None)


def newest(dags: Iterable[str], like: str, limit: int) -> Sequence[DagRunState]:
    """The newest runs whose id matches the SQL LIKE pattern `like`; `began` stays empty."""
    return _runs(dags, like, limit, tasks=False)


def questions(dag: str, session: Any) -> Iterator[PlanQuestion]:
    """The open questions to a person of the DAG's runs, the oldest first."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    rows = session.execute(
        select(HITLDetail.subject, HITLDetail.created_at, TaskInstance)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(
            TaskInstance.dag_id == dag,
            TaskInstance.state.in_(("deferred", "awaiting_input")),
            HITLDetail.responded_at.is_(None),
        )
        .order_by(HITLDetail.created_at)
    )
    for subject, since, task in rows:
        mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
        path = f"dags/{quote(dag)}/runs/{quote(task.run_id)}/tasks/{quote(task.task_id)}{mapped}"
        yield PlanQuestion(subject, since, f"{path}/required_actions")


def fail(one: DagRunState, note: str) -> bool:
    """End the run now: stop its tasks, and let no other begin. Does nothing and returns False if
    the run has ended, or another of its tasks has begun since `one` was read.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState as State
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    with create_session() as session:
        run_query = select(DagRun).where(DagRun.dag_id == one.dag, DagRun.run_id == one.run)
        row = session.scalar(run_query.with_for_update())
        if row is None or row.state not in {QUEUED, RUNNING}:
            return False
        # Airflow locks a task to start it: once these are locked, none starts.
        task_query = select(TaskInstance).where(
            TaskInstance.dag_id == one.dag, TaskInstance.run_id == one.run
        )
        tasks = session.scalars(task_query.with_for_update(of=TaskInstance)).all()
        if _began(tasks) != one.began:
            return False
        row.note = note
        for task in tasks:
            if task.state == TaskInstanceState.RUNNING:
                task.set_state(TaskInstanceState.FAILED, session=session)
            elif task.state not in _OVER:
                task.set_state(TaskInstanceState.SKIPPED, session=session)
        row.set_state(State.FAILED)
        return True


def _began(tasks: Iterable[Any]) -> frozenset[TaskState]:
    return frozenset(
        TaskState(task.task_id, task.map_index, task.try_number, task.state in _AT_WORK)
        for task in tasks
        if task.start_date is not None
    )


def _runs(dags: Iterable[str], like: str, limit: int, *, tasks: bool) -> Sequence[DagRunState]:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        rows = session.scalars(
            select(DagRun)
            .where(DagRun.dag_id.in_(list(dags)), DagRun.run_id.like(like))
            .order_by(DagRun.id.desc())
            .limit(limit)
        )
        return [
            DagRunState(
                dag=row.dag_id,
                run=row.run_id,
                state=str(getattr(row.state, "value", row.state)),
                conf=dict(row.conf or {}),
                queued=row.queued_at or row.run_after,
                started=row.start_date,
                ended=row.end_date,
                note=row.note,
                began=_began(row.get_task_instances(session=session) if tasks else ()),
            )
            for row in rows
        ]
