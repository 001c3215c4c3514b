"""The DAG of a duty: its file in dags/ declares it, the deployment's settings change it.

    @duty_dag("queue_size", doc=__doc__, schedule="*/15 * * * *", tags=[...], ...)
    def queue_size(chain):
        chain.five_steps("size", apply_in_spark=False)

A DAG that only reads is on when Airflow first sees it; every other DAG is paused.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

from airflow.sdk import DAG

from mailslice.airflow.assets import run_asset
from mailslice.airflow.dag_doc import dag_doc
from mailslice.airflow.dag_duty import DagDuty
from mailslice.airflow.dag_settings import BY_HAND, DagSettings, OneDag, load_dag_settings
from mailslice.airflow.deployments import Deployment, deployments
from mailslice.airflow.notifier import DutyNotifier
from mailslice.airflow.task_chain import Chain
from mailslice.airflow.timetable import BackfillOnly
from mailslice.airflow.trigger_form import form_of
from mailslice.airflow.versions import (
    CronDataIntervalTimetable,
    deadline_arguments,
    retry_arguments,
)
from mailslice.maintenance.registry import names
from mailslice.model.errors import BadSetting, TryAgain

W = TypeVar("W", bound=Callable[..., None])
SCHEDULES = "MAILSLICE_STACK_SCHEDULES"
"""`off`: no schedule fires by itself (`make run`); backfills and runs by hand still work."""


class Tag(StrEnum):
    """Tags of the DAG list."""

    MAIL_QUEUE = "mail queue"
    DELETES = "deletes"
    READS = "reads only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a DAG file says about its DAG. The settings of the deployment win."""

    duty: str
    doc: str | None
    tags: Sequence[Tag]
    timeout: timedelta
    """of a whole run; a step has half of it"""
    deadline: timedelta
    """a run that has not ended this long after it was queued is reported, and goes on"""
    schedule: str = BY_HAND
    """cron expression"""

    @property
    def reads_only(self) -> bool:
        """Whether no run of it changes a store."""
        return Tag.READS in self.tags


FOLLOWED = {"reclaim": ("queue_cleanup",)}
"""DAG -> the duties whose assets start it by default; those emit an asset event at the end."""


def duty_dag(duty: str, *, doc: str | None, **more: Any) -> Callable[..., Callable[[Chain], None]]:
    """Declares the DAG of a duty in each deployment; the decorated function wires its tasks.

    `more` are the fields of Declaration. Raises BadSetting, which Airflow shows as import error.
    """
    return per_deployment(build, Declaration(duty=duty, doc=doc, **more))


def per_deployment(
    build: Callable[[Declaration, W, DagSettings, Deployment], DAG], declaration: Declaration
) -> Callable[[W], W]:
    """Builds the DAG in each deployment; the decorated function wires its tasks."""

    def declare(wire: W) -> W:
        settings = load_dag_settings()
        for deployment in deployments():
            dag = build(declaration, wire, settings, deployment)
            dag.fileloc = wire.__code__.co_filename
        return wire

    return declare


def build(
    declaration: Declaration,
    wire: Callable[[Chain], None],
    settings: DagSettings,
    deployment: Deployment,
) -> DAG:
    """The DAG, registered with the file that is being parsed."""
    duty, own = declaration.duty, settings.of(declaration.duty)
    prefix, reads_only = settings.prefix + deployment.prefix, declaration.reads_only
    dag_duty = DagDuty(
        duty=duty,
        prefix=prefix,
        load=deployment.enter,
        settings=own,
        reads_only=reads_only,
        wait=own.approve_within or (own.timeout or declaration.timeout) / 4,
        shared_artifacts=settings.shared_artifacts,
        followed=any(duty in _after(other, settings) for other in names()),
    )
    with DAG(
        dag_id=f"{prefix}{duty}",
        doc_md=dag_doc(duty, declaration.doc or "", reads_only=reads_only),
        schedule=schedule_of(declaration, settings, prefix),
        params=form_of(duty, dry=not reads_only, approve=None if reads_only else bool(own.approve)),
        tags=[*(tag.value for tag in declaration.tags), *own.tags],
        is_paused_upon_creation=own.paused if own.paused is not None else not reads_only,
        **dag_arguments(declaration, own, DutyNotifier(deployment.connection)),
    ) as dag:
        wire(Chain(dag_duty))
    return dag


def schedule_of(declaration: Declaration, settings: DagSettings, prefix: str) -> Any:
    """A timetable with data intervals, the assets that start the DAG, or None: by hand only.

    Raises BadSetting for a DAG that starts after others where some start each other for ever.
    """
    quiet = os.environ.get(SCHEDULES, "").lower() == "off"
    if followed := _after(declaration.duty, settings):
        try:
            TopologicalSorter({duty: _after(duty, settings) for duty in names()}).prepare()
        except CycleError as error:
            circle = " -> ".join(error.args[1])
            raise BadSetting(
                f"MAILSLICE_AIRFLOW_CONFIG: after: {circle} never ends; allowed: no circle"
            ) from None
        return None if quiet else [run_asset(duty, prefix) for duty in followed]
    own = settings.of(declaration.duty)
    cron = own.schedule or declaration.schedule
    if cron == BY_HAND:
        return None
    return (BackfillOnly if quiet else CronDataIntervalTimetable)(cron, own.timezone or "UTC")


def dag_arguments(declaration: Declaration, own: OneDag, notifier: DutyNotifier) -> dict[str, Any]:
    """Arguments of the DAG: one run at a time, no catch-up, time-outs, retries, deadline, notifier.

    A deployment's `approve_within` is added to time-out and deadline. Raises BadSetting.
    """
    wait = timedelta() if declaration.reads_only else own.approve_within or timedelta()
    timeout = own.timeout or declaration.timeout
    deadline = own.deadline or declaration.deadline * (timeout / declaration.timeout)
    if deadline >= timeout:
        raise BadSetting(
            f"the deadline of {declaration.duty} is {deadline}, its timeout {timeout}; allowed: a "
            "deadline below the timeout"
        )
    return {
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "dagrun_timeout": timeout + wait,
        "render_template_as_native_obj": False,
        "on_failure_callback": notifier,
        **deadline_arguments(deadline + wait, DutyNotifier, notifier.arguments),
        "default_args": {
            "owner": "mailslice",
            "retries": 3 if own.retries is None else own.retries,
            "retry_delay": own.retry_delay or timedelta(minutes=1),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=10),
            **retry_arguments(TryAgain),
            "execution_timeout": timeout / 2,
        },
    }


def _after(duty: str, settings: DagSettings) -> tuple[str, ...]:
    own = settings.of(duty)
    if own.after is not None:
        return own.after
    return () if own.schedule else FOLLOWED.get(duty, ())
