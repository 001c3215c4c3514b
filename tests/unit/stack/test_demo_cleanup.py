"""`make run` triggers one DAG run, watches it, and says why it failed."""

from pathlib import Path
from typing import Any

import pytest

from stack import demo_cleanup
from stack.demo_cleanup import run_cleanup
from stack.program import CannotStart
from stack.steps import Steps

LOGS = Path("/state/log/airflow.log")


class _Api:
    """Airflow's API: the states of the run one after the other, the tasks, and the log of the task
    that failed.
    """

    url = "http://airflow"

    def __init__(
        self, states: list[str], log: list[dict[str, Any]] | None = None, *, parsed: bool = True
    ) -> None:
        self.calls: list[tuple[str, str, object]] = []
        self._states = states
        self._log = log or []
        self._parsed = parsed

    def find(self, path: str) -> dict[str, Any] | None:
        return {} if path.startswith("dags/") and self._parsed else None

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        self.calls.append((method, path, body))
        if path == "importErrors":
            return {
                "import_errors": [
                    {"stack_trace": "Traceback\n  line\nImportError: no module named colour\n"}
                ]
            }
        if "/logs/" in path:
            return {"content": self._log}
        if path.endswith("taskInstances"):
            return {
                "task_instances": [
                    {"task_id": "plan_cleanup", "state": "failed", "try_number": 2, "map_index": 0},
                    {"task_id": "report", "state": "failed"},
                ]
            }
        if method == "GET":
            return {"state": self._states.pop(0)}
        return {}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_cleanup.time, "sleep", lambda _: None)


def _run(api: _Api) -> str:
    with Steps(stderr=True).step("x") as step:
        return run_cleanup(api, LOGS, {"queues": ["spool"]}, step)  # type: ignore[arg-type]


def test_the_pool_is_made_the_dag_unpaused_and_one_run_triggered_and_awaited() -> None:
    api = _Api(["queued", "running", "success"])
    run = _run(api)
    writes = [(method, path, body) for method, path, body in api.calls if method != "GET"]
    assert writes[0][:2] == ("POST", "pools")
    assert writes[1] == ("PATCH", "dags/queue_cleanup", {"is_paused": False})
    assert writes[2] == (
        "POST",
        "dags/queue_cleanup/dagRuns",
        {"dag_run_id": run, "logical_date": None, "conf": {"queues": ["spool"]}},
    )
    assert len(writes) == 3


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            [
                {"event": "TypeError: not a number"},
                {
                    "event": "x",
                    "error_detail": [
                        {"exc_type": "AirflowFailException", "exc_value": "exit code 1"}
                    ],
                },
            ],
            "TypeError: not a number",
        ),
        (
            [
                {
                    "event": "Task failed",
                    "error_detail": [{"exc_type": "GateFailed", "exc_value": "no dead rows\nleft"}],
                }
            ],
            "GateFailed: no dead rows left",
        ),
        (
            [{"event": "mailslice: the clock differs"}, {"event": "all the rest"}],
            "mailslice: the clock differs",
        ),
    ],
)
def test_a_failed_task_is_named_with_the_error_of_its_log(
    log: list[dict[str, Any]], cause: str
) -> None:
    with pytest.raises(CannotStart) as raised:
        _run(_Api(["running", "failed"], log))
    assert str(raised.value).startswith(
        f"plan_cleanup failed ({cause}). Remedy: see "
        "http://airflow/dags/queue_cleanup/runs/make_run__"
    )


def test_a_dag_that_does_not_load_is_said_with_its_import_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter(range(0, 10_000, 10))
    monkeypatch.setattr(demo_cleanup.time, "monotonic", lambda: next(times))
    with pytest.raises(
        CannotStart,
        match=(
            r"did not load the DAG queue_cleanup \(ImportError: no module named colour\)\. "
            r"Remedy: see /state/log/airflow\.log"
        ),
    ):
        _run(_Api([], parsed=False))


def test_a_run_whose_answer_was_lost_is_there_and_awaited() -> None:
    class _LostAnswer(_Api):
        made = False

        def find(self, path: str) -> dict[str, Any] | None:
            return {} if "/dagRuns/" in path and self.made else super().find(path)

        def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
            if (method, path) == ("POST", "dags/queue_cleanup/dagRuns"):
                self.made = True
                raise ConnectionError("timed out")
            return super().call(method, path, body)

    assert _run(_LostAnswer(["running", "success"])).startswith("make_run__")


def test_an_airflow_that_does_not_answer_is_a_cause_in_one_line() -> None:
    class _Gone(_Api):
        def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
            raise ConnectionError(f"{method} http://airflow/{path}: timed out")

    with pytest.raises(
        CannotStart,
        match=(
            r"^Airflow: POST http://airflow/pools: timed out\. Remedy: see "
            r"/state/log/airflow\.log$"
        ),
    ):
        _run(_Gone([]))
