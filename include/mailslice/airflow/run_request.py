"""The request of a step from its Airflow context: who asked, params, slices of a backfill."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from mailslice.maintenance.params import APPROVE, DRY_RUN, QUEUES
from mailslice.maintenance.registry import load
from mailslice.maintenance.run_request import RunRequest, queue_or_none, run_of_dag
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import BadInput

log = logging.getLogger(__name__)
OF_AIRFLOW = (QUEUES, APPROVE)
"""Params that only the DAG uses: which queues run, and whether a person is asked."""
_WITHOUT_A_FORM = ("scheduled", "backfill", "asset_triggered")
"""Types of runs that nobody started by the form. The form's default is a dry run."""
_SUNDAY = 6
_WORKING_SHARE = 0.8
"""The share of a step's time in which items begin. The rest is to end before Airflow kills it."""
_REPORTING_SHARE = 0.1
"""The last share of a run's time-out: no item begins in it, so that the report is written."""


def who(context: Mapping[str, Any]) -> str:
    """The Airflow user who triggered the run, else its type (`scheduled`, `backfill`)."""
    dag_run = context["dag_run"]
    return getattr(dag_run, "triggering_user_name", None) or _run_type(dag_run)  # 3.1.0 has no name


def is_dry(context: Mapping[str, Any]) -> bool:
    """Whether this run plans, checks and reports only."""
    return bool(duty_params(context).get(DRY_RUN))


def duty_params(context: Mapping[str, Any]) -> dict[str, Any]:
    """The form's params that have a value; for a backfill its slices [from, to).

    The form's default is a dry run. A run that Airflow starts is dry only where its conf says so.
    """
    params = {
        name: value
        for name, value in dict(context["params"]).items()
        if name not in OF_AIRFLOW and value not in (None, "")
    }
    dag_run = context["dag_run"]
    run_type = _run_type(dag_run)
    if run_type in _WITHOUT_A_FORM and DRY_RUN not in (getattr(dag_run, "conf", None) or {}):
        params.pop(DRY_RUN, None)
    if run_type == "backfill":
        params["slices_from"] = dag_run.data_interval_start.isoformat()
        params["slices_before"] = dag_run.data_interval_end.isoformat()
    return params


def request_of(
    context: Mapping[str, Any], duty: str, queue: str, clock: Clock = system_clock
) -> RunRequest:
    """The request for one queue, equal in all tasks and tries of a run except for `time_limit`.

    Raises BadInput.
    """
    dag_run = context["dag_run"].run_id
    limit = time_limit(context, clock)
    params = duty_params(context) | weekly_params(context, duty)
    if limit is not None:
        params = {"time_limit": f"{limit.total_seconds():.0f}s", **params}
    if "slices_from" in params and "slices_from" not in load(duty).params.model_fields:
        raise BadInput(
            f"{duty} works on what is there now: there is nothing to backfill; trigger it instead"
        )
    run = run_of_dag(duty, queue, dag_run)
    return RunRequest(duty, queue_or_none(queue), run, dag_run, who(context), params, tells=True)


def time_limit(context: Mapping[str, Any], clock: Clock) -> timedelta | None:
    """How long this task may begin items. Airflow kills it at its own time-out, and at that of the
    run, which all queues share. None: no time-out. 0: the items are left to the next run.
    """
    own = getattr(context.get("task"), "execution_timeout", None)
    timeouts = [own] if own else []
    of_run = getattr(context.get("dag"), "dagrun_timeout", None)
    started = getattr(context["dag_run"], "start_date", None)
    if of_run and started:
        remaining = started + of_run - clock()
        timeouts.append(remaining if remaining > of_run * _REPORTING_SHARE else timedelta())
    return min(timeouts) * _WORKING_SHARE if timeouts else None


def clear_of(context: Mapping[str, Any]) -> str:
    """A text that is the same in all tries of a task, until a person clears the task."""
    # Clearing a task that does not run raises its `max_tries`. All versions of Airflow count the
    # clears of a run that has ended, newer ones those of any run.
    cleared = getattr(context["dag_run"], "clear_number", None) or 0
    tries = getattr(context.get("ti"), "max_tries", None) or 0
    return f"{cleared}/{tries}"


def weekly_params(context: Mapping[str, Any], duty: str) -> dict[str, object]:
    """Further params of the scheduled run of a Sunday (UTC): the duty's `Params.WEEKLY`.

    The first success is enough: later runs of that Sunday do not get them. If none succeeded, the
    next scheduled runs get them until one does. Airflow names the last run that succeeded. One that
    was not scheduled does not count, as it may not have had them.
    """
    dag_run, weekly = context["dag_run"], dict(load(duty).params.WEEKLY)
    if not weekly or _run_type(dag_run) != "scheduled":
        return {}
    end: datetime = dag_run.data_interval_end
    sunday = (end - timedelta(days=(end.weekday() - _SUNDAY) % 7)).date()
    ti = context.get("ti")
    last = ti and ti.get_previous_dagrun(state="success")
    if last and _run_type(last) == "scheduled" and last.data_interval_end.date() >= sunday:
        return {}
    if end.date() == sunday:
        return weekly
    if not last:
        return {}
    words = "no scheduled run of %s has succeeded since Sunday %s: this one does what Sunday's does"
    log.warning(words, duty, sunday)
    return weekly


def _run_type(dag_run: Any) -> str:
    return str(getattr(dag_run.run_type, "value", dag_run.run_type))
