"""A real Airflow for one test (standalone, SQLite, free ports, own home), and a Spark standalone
cluster with one worker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import psutil

from mailslice.model.settings import clone_root
from stack.airflow import SHORT_LIVED_JVM
from stack.parts import java_home
from tests.ports import free_port, free_ports

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def until(what: str, seconds: float, look: Callable[[], Any]) -> Any:
    """Waits until `look()` is not None; returns its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.5)
    raise AssertionError(f"{what} took more than {seconds} s")


@contextmanager
def group(
    command: list[str], environ: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in a process group of its own. Ends the whole group after the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=dict(environ), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    family = psutil.Process(process.pid)
    try:
        yield process
    finally:
        children = family.children(recursive=True) if family.is_running() else []
        os.killpg(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs([family, *children], timeout=20)
        for each in alive:
            each.kill()
        process.wait(timeout=10)


class Airflow:
    """The REST API and the command line of Airflow."""

    def __init__(self, port: int, environ: Mapping[str, str], python: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.python = python
        self.environ = environ
        self._token: str | None = None

    def healthy(self) -> bool | None:
        try:
            health = self._call("GET", "/api/v2/monitor/health", None)
        except (URLError, ConnectionError, TimeoutError):
            return None
        return (
            True
            if all(
                health[name]["status"] == "healthy"
                for name in ("metadatabase", "scheduler", "dag_processor")
            )
            else None
        )

    @property
    def token(self) -> str:
        """The API token of the user admin."""
        if self._token is None:
            admin = {"username": "admin", "password": "admin"}
            self._token = str(self._call("POST", "/auth/token", admin)["access_token"])
        return self._token

    def api(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        return self._call(method, "/api/v2/" + path, body, self.token)

    def unpaused(self, dag: str) -> bool | None:
        """Unpauses the DAG. None: SQLite was locked, as while the DAG processor writes."""
        try:
            self.api("PATCH", f"dags/{dag}", {"is_paused": False})
        except HTTPError as error:
            if error.code != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return None
        return True

    def parsed(self, dag: str) -> bool | None:
        try:
            self.api("GET", f"dags/{dag}")
        except HTTPError as error:
            if error.code == 404:
                return None
            raise
        return True

    def trigger(self, dag: str, conf: dict[str, object]) -> str:
        return str(
            self.api("POST", f"dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})[
                "dag_run_id"
            ]
        )

    def wait(self, dag: str, run: str, seconds: float = 600) -> dict[tuple[str, str], str]:
        """Waits for the end of the run. Returns (task, queue) -> state of the task."""
        until(
            f"run {run}",
            seconds,
            lambda: (
                True
                if self.api("GET", f"dags/{dag}/dagRuns/{run}")["state"] in ("success", "failed")
                else None
            ),
        )
        tasks = self.api("GET", f"dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {
            (task["task_id"], task["rendered_map_index"] or ""): task["state"] for task in tasks
        }

    def state(self, dag: str, run: str) -> str:
        return str(self.api("GET", f"dags/{dag}/dagRuns/{run}")["state"])

    def command(self, *words: str) -> str:
        done = subprocess.run(
            [self.python.with_name("airflow"), *words],
            env=dict(self.environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
        return done.stdout

    def connect(self, host: str) -> None:
        """Creates or changes the connection `spark_default`."""
        body = {"connection_id": "spark_default", "conn_type": "spark", "host": host}
        try:
            self.api("PATCH", "connections/spark_default", body)
        except HTTPError as error:
            if error.code != 404:
                raise
            self.api("POST", "connections", body)

    def backfilled(self, dag: str) -> None:
        """Waits until the scheduler has ended all backfills of the DAG: it allows one at a time."""

        def over() -> bool | None:
            return (
                True
                if all(
                    each["completed_at"]
                    for each in self.api("GET", f"backfills?dag_id={dag}")["backfills"]
                )
                else None
            )

        until("the end of the backfill", 150, over)

    def _call(
        self, method: str, path: str, body: object, token: str | None = None
    ) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers=headers,
        )
        with _OPENER.open(request, timeout=120) as answer:
            found: dict[str, Any] = json.loads(answer.read() or b"{}")
            return found


@contextmanager
def airflow_standalone(
    home: Path,
    settings: Mapping[str, str],
    dags: Sequence[str] = ("queue_cleanup", "queue_size"),
    python: Path = Path(sys.executable),
) -> Iterator[Airflow]:
    """A healthy Airflow with this clone's DAGs and plugins; `dags` are parsed and unpaused. It has
    a Spark pool of one slot and no Spark connection. `python`: of the venv with Airflow.
    """
    root, (port, worker_logs, trigger_logs) = clone_root(), free_ports(3)
    home.mkdir(parents=True)
    (home / "passwords.json").write_text('{"admin": "admin"}', encoding="utf-8")
    given = {
        "CORE__DAGS_FOLDER": root / "dags",
        "CORE__PLUGINS_FOLDER": root / "plugins",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__PARALLELISM": "2",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": home / "passwords.json",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "API__HOST": "127.0.0.1",
        "API__PORT": port,
        "API__WORKERS": "1",
        "API__BASE_URL": f"http://127.0.0.1:{port}",
        "API_AUTH__JWT_SECRET": "t" * 64,
        "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # the files do not change
        "LOGGING__WORKER_LOG_SERVER_PORT": worker_logs,
        "LOGGING__TRIGGER_LOG_SERVER_PORT": trigger_logs,
    }
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "MAILSLICE_"))
    }
    environ = {
        **clean,
        **{f"AIRFLOW__{name}": str(value) for name, value in given.items()},
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(root / "include"),
        "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",
        "JAVA_HOME": str(java_home()),
        "MAILSLICE_STACK_SCHEDULES": "off",
        "SPARK_SUBMIT_OPTS": SHORT_LIVED_JVM,
        **settings,
    }
    command = [str(python.with_name("airflow")), "standalone"]
    with group(command, environ, home / "standalone.log"):
        airflow = Airflow(port, environ, python)
        until("starting Airflow", 400, airflow.healthy)
        for dag in dags:
            until(f"parsing {dag}", 200, lambda dag=dag: airflow.parsed(dag))
            until(f"unpausing {dag}", 60, lambda dag=dag: airflow.unpaused(dag))
        airflow.api(
            "POST",
            "pools",
            {"name": "spark", "slots": 1, "description": "", "include_deferred": False},
        )
        yield airflow


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """Runs a Spark standalone master and a worker on loopback. Gives the master's URL."""
    import pyspark

    folder.mkdir(parents=True)
    home, port = Path(pyspark.__file__).parent, free_port()
    java = [str(Path(java_home()) / "bin" / "java"), "-Xmx256m", "-cp", f"{home}/jars/*"]
    environ = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.12",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    master = [
        *java,
        "org.apache.spark.deploy.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        str(free_port()),
    ]
    url = f"spark://127.0.0.1:{port}"
    worker = [
        *java,
        "org.apache.spark.deploy.worker.Worker",
        "--host",
        "127.0.0.1",
        "--cores",
        "2",
        "--memory",
        "2g",
        "--webui-port",
        str(free_port()),
    ]
    with group(master, environ, folder / "master.log"):
        until("starting the Spark master", 60, lambda: _listens(port))
        with group(
            [*worker, "--work-dir", str(folder / "work"), url], environ, folder / "worker.log"
        ):
            until(
                "registering the Spark worker",
                60,
                lambda: (
                    True if "Registering worker" in (folder / "master.log").read_text() else None
                ),
            )
            yield url


def _listens(port: int) -> bool | None:
    with socket.socket() as probe:
        return True if probe.connect_ex(("127.0.0.1", port)) == 0 else None
