"""The cleanup of `make run`: one run of the DAG through Airflow's scheduler, watched to its end."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stack.airflow import SPARK_POOL, AirflowApi
from stack.program import CannotStart
from stack.steps import Step

DAG = "queue_cleanup"
_PARSE_SECONDS = 120
_RUN_SECONDS = 900
_ERROR = re.compile(r"(mailslice: |[\w.]*(Error|Exception|Failed|Refused|Unavailable)\w*: )\S")


def run_cleanup(api: AirflowApi, logs: Path, conf: dict[str, object], step: Step) -> str:
    """Triggers the DAG and waits; gives Airflow's run id.

    Raises CannotStart naming the task that failed and where its log is.
    """
    try:
        _pool(api)
        _wait_parsed(api, logs)
        api.call("PATCH", f"dags/{DAG}", {"is_paused": False})
        run = f"make_run__{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
        body = {"dag_run_id": run, "logical_date": None, "conf": conf}
        _post(api, f"dags/{DAG}/dagRuns", body, run)
        return _watched(api, run, logs, step)
    except ConnectionError as error:
        raise CannotStart(f"Airflow: {error}. Remedy: see {logs}") from error


def _watched(api: AirflowApi, run: str, logs: Path, step: Step) -> str:
    deadline = time.monotonic() + _RUN_SECONDS
    remedy = f"Remedy: see {api.url}/dags/{DAG}/runs/{run} and {logs}"
    while time.monotonic() < deadline:
        state = api.call("GET", f"dags/{DAG}/dagRuns/{run}")["state"]
        tasks = api.call("GET", f"dags/{DAG}/dagRuns/{run}/taskInstances")["task_instances"]
        if state == "success":
            step.show("all tasks green")
            return run
        if state == "failed":
            failed = [task for task in tasks if task["state"] == "failed"]
            causes = [_cause(api, run, task) for task in failed if task["task_id"] != "report"]
            raise CannotStart(f"{'; '.join(causes) or DAG + ' failed'}. {remedy}")
        busy = [task for task in tasks if task["state"] in ("running", "queued", "scheduled")]
        names = dict.fromkeys(str(task["task_id"]) for task in busy)
        step.show(", ".join(names) or "waiting for the scheduler")
        time.sleep(1)
    raise CannotStart(f"{DAG} did not end within {_RUN_SECONDS} s. {remedy}")


def _cause(api: AirflowApi, run: str, task: dict[str, Any]) -> str:
    """The task that failed and the last error of its log."""
    instance = f"dags/{DAG}/dagRuns/{run}/taskInstances/{task['task_id']}"
    path = f"{instance}/logs/{task['try_number']}?map_index={task['map_index']}"
    try:
        lines = api.call("GET", path).get("content") or []
    except ConnectionError:
        lines = []
    errors = [
        sentence for line in lines if isinstance(line, dict) and (sentence := _error_of(line))
    ]
    return f"{task['task_id']} failed" + (
        f" ({' '.join(errors[-1].split())[:300]})" if errors else ""
    )


def _error_of(line: dict[str, Any]) -> str | None:
    """The error in a line of a task's log, if any. A Spark job's own error stands in plain lines,
    before the line in which Airflow says that it failed.
    """
    event = str(line.get("event"))
    if _ERROR.match(event):
        return event
    detail = (line.get("error_detail") or [{}])[0]
    if detail.get("exc_type", "AirflowFailException") == "AirflowFailException":
        return None
    return f"{detail['exc_type']}: {detail['exc_value']}"


def _pool(api: AirflowApi) -> None:
    """One Spark job at a time on a small machine."""
    if api.find(f"pools/{SPARK_POOL}") is None:
        about = {"slots": 1, "description": "Spark jobs, one at a time", "include_deferred": False}
        _post(api, "pools", {"name": SPARK_POOL, **about}, SPARK_POOL)


def _post(api: AirflowApi, path: str, body: object, name: str) -> None:
    """Creates an object by its name.

    A missing answer is no failure when the object is there.
    """
    try:
        api.call("POST", path, body)
    except ConnectionError:
        if api.find(f"{path}/{name}") is None:
            raise


def _wait_parsed(api: AirflowApi, logs: Path) -> None:
    deadline = time.monotonic() + _PARSE_SECONDS
    while api.find(f"dags/{DAG}") is None:
        if time.monotonic() > deadline:
            errors = api.call("GET", "importErrors").get("import_errors") or []
            traces = [str(error["stack_trace"]).strip() for error in errors[:1]]
            cause = traces[0].splitlines()[-1] if traces else "it was not found"
            raise CannotStart(f"Airflow did not load the DAG {DAG} ({cause}). Remedy: see {logs}")
        time.sleep(1)
