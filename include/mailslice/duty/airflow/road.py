"""The five steps of a duty as Airflow tasks, one chain a queue. A duty's DAG file is wiring of what stands here.

plan (Spark) -> check (Great Expectations) -> apply (Spark) -> verify (Great Expectations) -> report. The chains are mapped over the queues and do not
know each other: one queue that fails stops no other. The report runs whatever happened before it, and fails the run when a step did.
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
    Param,
    RetryAction,
    RetryRule,
    TriggerRule,
    get_current_context,
    task,
    task_group,
)
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from mailslice.duty.airflow.notifier import DutyNotifier
from mailslice.duty.airflow.request import QUEUES, request_of
from mailslice.duty.airflow.spark_step import DRY_RUN, SparkStep
from mailslice.duty.airflow.timetable import BackfillOnly
from mailslice.duty.report import FAILED, REFUSED
from mailslice.model.errors import MailsliceError, TryAgain

SCHEDULES = "MAILSLICE_STACK_SCHEDULES"
"""`off`: no schedule fires by itself (`make run`); backfills and runs by hand still work."""
GROUP = "queue"
BAD = (FAILED, REFUSED)
"""Statuses of a report that fail the DAG run."""
_DURATION = r"^(\s*\d+(\.\d+)?\s*(ms|s|m|h|d|w)|P[0-9DTHMSW.]+)?\s*$"


class Tag(StrEnum):
    """Tags of the DAG list."""

    MAIL_QUEUE = "mail queue"
    DELETES = "deletes"
    READS = "reads only"


def schedule_of(cron: str) -> Any:
    """The cron expression (UTC) with data intervals, so that backfills have slices to work on; for backfills alone where schedules are off."""
    quiet = os.environ.get(SCHEDULES, "").lower() == "off"
    return (BackfillOnly if quiet else CronDataIntervalTimetable)(cron, timezone="UTC")


def dag_arguments(*, tags: list[Tag], timeout: timedelta) -> dict[str, Any]:
    """What every duty's DAG has in common: one run at a time, no catch-up, time-outs, retries for stores that are away, the notifier.

    `timeout` is of the whole run; a step has half of it.
    """
    return {
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "dagrun_timeout": timeout,
        "tags": [tag.value for tag in tags],
        "render_template_as_native_obj": False,
        "on_failure_callback": DutyNotifier(),
        "default_args": {
            "owner": "mailslice",
            "retries": 3,
            "retry_delay": timedelta(minutes=1),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=10),
            "retry_policy": ExceptionRetryPolicy(rules=[RetryRule(exception=TryAgain, action=RetryAction.RETRY)], default=RetryAction.FAIL),
            "execution_timeout": timeout / 2,
        },
    }


def queues_param() -> Param:
    """The form's list of queues."""
    return Param([], type=["null", "array"], items={"type": "string"}, title="Queues", description="One name a line; none = every queue that RabbitMQ knows")


def dry_run_param() -> Param:
    """The form's switch that leaves out apply and verify."""
    return Param(False, type="boolean", title="Dry run", description="Plan, check and report; change nothing")


def reason_param() -> Param:
    """The form's reason."""
    return Param(None, type=["null", "string"], maxLength=500, title="Reason", description="Why, for the ledger")


def duration_param(default: str | None, *, title: str, description: str) -> Param:
    """A duration as people write it; empty = the setting's default."""
    return Param(default, type=["null", "string"], pattern=_DURATION, title=title, description=f"{description} (90s, 15m, 1h, PT1H)")


@task(task_id="list_queues")
def list_queues() -> list[str]:
    """The queues of the form, each once, or all that RabbitMQ knows. A name that is unknown fails in its own chain."""
    asked = dict.fromkeys(name.strip() for name in get_current_context()["params"][QUEUES] or () if name.strip())
    if asked:
        return list(asked)
    from mailslice.model.settings import load_settings
    from mailslice.queue.directory import known
    from mailslice.stores import open_stores

    with open_stores(load_settings()) as stores:
        return sorted(known(stores))


def five_steps(duty: str, noun: str, asset: Asset, *, apply_in_spark: bool = True) -> Callable[..., Any]:
    """The task group of one queue; `.expand(queue=list_queues())` maps it. Task ids: plan_NOUN, check_plan, apply_NOUN, verify, report.

    `asset` gets one event a queue, with the report's numbers. A small duty applies in the task itself (`apply_in_spark=False`).
    """

    @task_group(group_id=GROUP, prefix_group_id=False)
    def chain(queue: str) -> None:
        plan = SparkStep(task_id=f"plan_{noun}", duty=duty, step="plan", mail_queue=queue)
        check = _step("check_plan", duty, "check")(queue)
        name = f"apply_{noun}"
        apply = SparkStep(task_id=name, duty=duty, step="apply", mail_queue=queue) if apply_in_spark else _step(name, duty, "apply")(queue)
        verify = _step("verify", duty, "verify")(queue)
        report = _report(duty, asset, before=[f"plan_{noun}", "check_plan", name, "verify"])(queue)
        plan >> check >> apply >> verify >> report

    return chain


def _step(task_id: str, duty: str, step: str) -> Callable[[str], Any]:
    @task(task_id=task_id, map_index_template="{{ task.op_args[0] }}")
    def run(queue: str) -> dict[str, Any]:
        if step == "apply" and get_current_context()["params"].get("dry_run"):
            raise AirflowSkipException(DRY_RUN)
        return _told(_run(duty, step, queue))

    return run


def _report(duty: str, asset: Asset, before: list[str]) -> Callable[[str], Any]:
    @task(task_id="report", map_index_template="{{ task.op_args[0] }}", trigger_rule=TriggerRule.ALL_DONE, outlets=[asset])
    def report(queue: str) -> dict[str, Any]:
        context = get_current_context()
        failed = failed_steps(context, before)
        written = (_recorded(context, duty, queue) if failed else None) or _run(duty, "report", queue)
        told = {name: written.get(name) for name in ("run", "status", "planned", "applied", "failed")}
        context["outlet_events"][asset].extra = {"duty": duty, "queue": queue, **told}
        if failed or written["status"] in BAD:
            steps = f"{' and '.join(failed)} failed: " if failed else ""
            raise AirflowFailException(f"{duty} of queue {queue!r}: {steps}{written.get('message')} (run {written.get('run')})")
        return _told(written)

    return report


def failed_steps(context: Any, before: list[str]) -> list[str]:
    """Which of the tasks `before`, in this queue's chain, failed. Airflow is asked, because a killed task leaves no word of its own."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=before, map_index=ti.map_index, run_ids=[ti.run_id])[ti.run_id]
    return [name for name in before if any(state == "failed" for key, state in states.items() if key in (name, f"{name}_{ti.map_index}"))]


def _recorded(context: Any, duty: str, queue: str) -> dict[str, Any] | None:
    """The report that a step left when it raised, with its reason. None when there is none: a killed step says nothing, and the report step must."""
    from mailslice.duty.ledger import Ledger
    from mailslice.model.errors import BadInput
    from mailslice.model.settings import load_settings
    from mailslice.stores import open_stores

    settings = load_settings()
    with open_stores(settings) as stores, suppress(BadInput):
        found = Ledger(stores, settings).show(request_of(context, duty, queue).run)
        return found if found["status"] in BAD else None
    return None


def _told(summary: dict[str, Any]) -> dict[str, Any]:
    """What the task's XCom keeps: the single values. Lists of slices and the like stay in the run's folder."""
    return {name: value for name, value in summary.items() if value is None or isinstance(value, str | int | float)}


def _run(duty: str, step: str, queue: str) -> dict[str, Any]:
    """One step in this process. Refusals and wrong input are final; TryAgain goes through, to be tried again."""
    from mailslice.duty.road import run_step
    from mailslice.model.settings import load_settings

    logging.getLogger("great_expectations").setLevel(logging.WARNING)  # else a hundred lines of its own workings stand in the task's log
    try:
        return run_step(step, request_of(get_current_context(), duty, queue), load_settings())
    except TryAgain:
        raise
    except MailsliceError as error:
        raise AirflowFailException(str(error)) from error
