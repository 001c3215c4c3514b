"""Names that Airflow 3.1 to 3.3 have in different modules, or lack. Only here versions matter.

Without the retry policy (3.3) Airflow also retries unexpected errors; refusals stay final.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import Connection

try:  # 3.2
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:
    from airflow.timetables.interval import CronDataIntervalTimetable
try:  # 3.2
    from airflow.sdk.configuration import conf
except ImportError:
    from airflow.configuration import conf
try:  # 3.2
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
except ImportError:
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "CronDataIntervalTimetable",
    "conf",
    "connection_of",
    "deadline_arguments",
    "retry_arguments",
]


def connection_of(name: str) -> Connection | None:
    """Airflow's connection of that name; None when there is none."""
    try:
        return Connection.get(name)
    except AirflowNotFoundException:
        return None


def retry_arguments(error: type[Exception]) -> dict[str, Any]:
    """Operator arguments that let Airflow try again after `error` alone; none before 3.3."""
    try:
        from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
    except ImportError:
        return {}
    rule = RetryRule(exception=error, action=RetryAction.RETRY)
    return {"retry_policy": ExceptionRetryPolicy(rules=[rule], default=RetryAction.FAIL)}


def deadline_arguments(
    interval: timedelta, notifier: type, arguments: dict[str, Any]
) -> dict[str, Any]:
    """DAG arguments: the notifier is called when a run has not ended `interval` after queueing."""
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    try:  # 3.2
        from airflow.sdk.definitions.callback import AsyncCallback
    except ImportError:
        from airflow.sdk.definitions.deadline import AsyncCallback
    queued = DeadlineReference.DAGRUN_QUEUED_AT
    callback = AsyncCallback(notifier, kwargs=arguments)
    alert = DeadlineAlert(reference=queued, interval=interval, callback=callback)
    return {"deadline": alert}
