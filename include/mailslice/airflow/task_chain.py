"""The five steps of a duty as Airflow tasks, one chain a queue; DAG files only wire them.

plan (Spark) -> check (Great Expectations) -> apply (Spark) -> verify (Great Expectations) ->
report. A queue that fails stops no other. The report always runs, and fails the run when a step
failed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow.sdk import (
    Asset,
    CronDataIntervalTimetable,
    ExceptionRetryPolicy,
    RetryAction,
    RetryRule,
    TriggerRule,
    get_current_context,
    task,
    task_group,
)
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from mailslice.airflow.notifier import DutyNotifier, notify_alerts
from mailslice.airflow.run_request import QUEUES, request_of
from mailslice.airflow.spark_operator import DRY_RUN, SparkStep, about
from mailslice.airflow.timetable import BackfillOnly
from mailslice.maintenance.report import FAILED, REFUSED
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.errors import MailsliceError, TryAgain

SCHEDULES = "MAILSLICE_STACK_SCHEDULES"
"""`off`: no schedule fires by itself (`make run`); backfills and runs by hand still work."""
GROUP = "queue"
BAD = (FAILED, REFUSED)
"""Statuses of a report that fail the DAG run."""


class Tag(StrEnum):
    """Tags of the DAG list."""

    MAIL_QUEUE = "mail queue"
    DELETES = "deletes"
    READS = "reads only"


def schedule_of(cron: str) -> Any:
    """The cron schedule (UTC) with data intervals; for backfills alone where schedules are off."""
    quiet = os.environ.get(SCHEDULES, "").lower() == "off"
    return (BackfillOnly if quiet else CronDataIntervalTimetable)(cron, timezone="UTC")


def dag_arguments(
    *, tags: list[Tag], timeout: timedelta, deadline: timedelta | None = None
) -> dict[str, Any]:
    """Common arguments: one run at a time, no catch-up, time-outs, retries, the notifier.

    `timeout` is of the whole run; a step has half of it. A run that has not ended `deadline`
    after it was queued is reported, and goes on.
    """
    queued, callback = DeadlineReference.DAGRUN_QUEUED_AT, AsyncCallback(DutyNotifier)
    late = deadline and DeadlineAlert(reference=queued, interval=deadline, callback=callback)
    return {
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "dagrun_timeout": timeout,
        "tags": [tag.value for tag in tags],
        "render_template_as_native_obj": False,
        "on_failure_callback": DutyNotifier(),
        "deadline": late,
        "default_args": {
            "owner": "mailslice",
            "retries": 3,
            "retry_delay": timedelta(minutes=1),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=10),
            "retry_policy": ExceptionRetryPolicy(
                rules=[RetryRule(exception=TryAgain, action=RetryAction.RETRY)],
                default=RetryAction.FAIL,
            ),
            "execution_timeout": timeout / 2,
        },
    }


@task(task_id="list_queues")
def list_queues() -> list[str]:
    """The queues of the form, or all that RabbitMQ knows. An unknown one fails in its own chain."""
    requested = get_current_context()["params"][QUEUES] or ()
    asked = dict.fromkeys(name.strip() for name in requested if name.strip())
    if requested and not asked:
        raise AirflowFailException(
            f"{QUEUES}={list(requested)!r} names no queue: allowed are names, or nothing "
            "at all for every queue"
        )
    if asked:
        return list(asked)
    from mailslice.admin.queues import known
    from mailslice.model.settings import load_settings
    from mailslice.stores import open_stores

    with open_stores(load_settings()) as stores:
        return sorted(known(stores))


def five_steps(
    duty: str, noun: str, asset: Asset, *, plan_in_spark: bool = True, apply_in_spark: bool = True
) -> Callable[..., Any]:
    """The task group of one queue; `.expand(queue=list_queues())` maps it.

    Task ids: plan_NOUN, check_plan, apply_NOUN, verify, report. `asset` gets one event a queue,
    with the report's numbers.
    """

    @task_group(group_id=GROUP, prefix_group_id=False)
    def chain(queue: str) -> None:
        _chain(duty, noun, asset, queue, plan_in_spark=plan_in_spark, apply_in_spark=apply_in_spark)

    return chain


def one_chain(
    duty: str, noun: str, asset: Asset, *, plan_in_spark: bool = True, apply_in_spark: bool = True
) -> None:
    """The five tasks of a duty that is not about one queue: as `five_steps`, once."""
    _chain(duty, noun, asset, NO_QUEUE, plan_in_spark=plan_in_spark, apply_in_spark=apply_in_spark)


def _chain(
    duty: str, noun: str, asset: Asset, queue: str, *, plan_in_spark: bool, apply_in_spark: bool
) -> None:
    def step(task_id: str, name: str, in_spark: bool) -> Any:
        if in_spark:
            return SparkStep(task_id=task_id, duty=duty, step=name, mail_queue=queue)
        return _step(task_id, duty, name)(queue)

    plan = step(f"plan_{noun}", "plan", plan_in_spark)
    check = step("check_plan", "check", False)
    apply = step(f"apply_{noun}", "apply", apply_in_spark)
    verify = step("verify", "verify", False)
    before = [f"plan_{noun}", "check_plan", f"apply_{noun}", "verify"]
    report = _report(duty, asset, before)(queue)
    plan >> check >> apply >> verify >> report


def _step(task_id: str, duty: str, step: str) -> Callable[[str], Any]:
    @task(task_id=task_id, map_index_template="{{ task.op_args[0] }}")
    def run(queue: str) -> dict[str, Any]:
        if step == "apply" and get_current_context()["params"].get("dry_run"):
            raise AirflowSkipException(DRY_RUN)
        return _xcom_of(run_in_process(duty, step, queue))

    return run


def _report(duty: str, asset: Asset, before: list[str]) -> Callable[[str], Any]:
    @task(
        task_id="report",
        map_index_template="{{ task.op_args[0] }}",
        trigger_rule=TriggerRule.ALL_DONE,
        outlets=[asset],
    )
    def report(queue: str) -> dict[str, Any]:
        context = get_current_context()
        failed = failed_steps(context, before)
        recorded = _recorded(context, duty, queue) if failed else None
        written = recorded or run_in_process(duty, "report", queue)
        notify_alerts(written)
        names = ("run", "status", "planned", "applied", "failed")
        fields = {name: written.get(name) for name in names}
        context["outlet_events"][asset].extra = {"duty": duty, "queue": queue, **fields}
        if failed or written["status"] in BAD:
            steps = f"{' and '.join(failed)} failed: " if failed else ""
            raise AirflowFailException(
                f"{about(duty, '', queue)}: {steps}{written.get('message')} "
                f"(run {written.get('run')})"
            )
        return _xcom_of(written)

    return report


def failed_steps(context: Any, before: list[str]) -> list[str]:
    """The failed tasks of this queue's chain, asked of Airflow: a killed task writes nothing."""
    ti = context["ti"]
    states = ti.get_task_states(
        dag_id=ti.dag_id, task_ids=before, map_index=ti.map_index, run_ids=[ti.run_id]
    )[ti.run_id]
    failed = {key for key, state in states.items() if state == "failed"}
    return [name for name in before if failed & {name, f"{name}_{ti.map_index}"}]


def _recorded(context: Any, duty: str, queue: str) -> dict[str, Any] | None:
    """The report of a step that raised; None for a killed step, whose report must be made.

    The row alone proves nothing: it may be of a try before the tasks were cleared.
    """
    from mailslice.maintenance.artifacts import RunFolder, artifacts
    from mailslice.maintenance.ledger import Ledger
    from mailslice.maintenance.runner import FAILURE
    from mailslice.model.errors import BadInput
    from mailslice.model.settings import load_settings
    from mailslice.stores import open_stores

    settings = load_settings()
    with suppress(BadInput):
        request = request_of(context, duty, queue)
        folder = RunFolder(artifacts(settings), duty, request.queue, request.run)
        if folder.read_json(FAILURE) is not None:
            with open_stores(settings) as stores:
                row = Ledger(stores, settings).show(request.run)
            return row if row["status"] in BAD else None
    return None


def _xcom_of(summary: dict[str, Any]) -> dict[str, Any]:
    """The single values for XCom; lists stay in the run's folder."""
    single = (str, int, float, type(None))
    return {name: value for name, value in summary.items() if isinstance(value, single)}


def run_in_process(duty: str, step: str, queue: str) -> dict[str, Any]:
    """Run one step in this process. TryAgain is retried; all other errors are final."""
    from mailslice.maintenance.runner import done_ahead, run_step
    from mailslice.model.settings import load_settings

    logging.getLogger("great_expectations").setLevel(
        logging.WARNING
    )  # else a hundred lines of its own workings stand in the task's log
    try:
        request, settings = request_of(get_current_context(), duty, queue), load_settings()
        return done_ahead(step, request, settings) or run_step(step, request, settings)
    except TryAgain:
        raise
    except MailsliceError as error:
        raise AirflowFailException(str(error)) from error
