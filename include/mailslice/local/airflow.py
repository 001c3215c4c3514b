"""Airflow as `airflow standalone` (SQLite, LocalExecutor) on loopback, all by environment; and the REST calls that the demo needs."""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.request
from collections.abc import Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from mailslice.local.parts import java_home
from mailslice.local.program import Program, past_proxies, write_once
from mailslice.local.settings import StackSettings

USER = "admin"
PASSWORD = "admin"  # noqa: S105 - of a server on loopback, shown by `make run`
SCHEDULES = "MAILSLICE_STACK_SCHEDULES"
"""`off`: the DAG files give no schedule, so that nothing runs unless it is asked for."""
SPARK_POOL = "spark"
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1"
"""For drivers that end after seconds: what the second compiler of the JVM would win comes after them, and takes a quarter of their CPU."""
_PATIENCE = 120
"""Seconds for which what may be asked twice is asked again: on a busy machine Airflow's server is late, not gone."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def airflow_environment(stack: StackSettings, settings: Mapping[str, str]) -> dict[str, str]:
    """Everything Airflow reads, and what its tasks read: the same for `airflow standalone`, `airflow dags test` and the tests.

    Writes the passwords file and the secret, once for each state folder.
    """
    home = stack.state / "airflow"
    home.mkdir(parents=True, exist_ok=True)
    passwords = home / "passwords.json"
    write_once(passwords, json.dumps({USER: PASSWORD}))
    secret = write_once(home / "jwt.secret", secrets.token_hex(32))
    bin_folder = Path(sys.executable).parent
    port = stack.ports.airflow_port
    core = {
        "CORE__DAGS_FOLDER": str(stack.root / "dags"),
        "CORE__PLUGINS_FOLDER": str(stack.root / "plugins"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__PARALLELISM": "4",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__BASE_URL": f"http://127.0.0.1:{port}",
        "API_AUTH__JWT_SECRET": secret,
        "DAG_PROCESSOR__REFRESH_INTERVAL": "15",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",  # one that changes is parsed sooner
        "LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(stack.ports.airflow_worker_log_port),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(stack.ports.airflow_trigger_log_port),
    }
    return {
        **{f"AIRFLOW__{name}": value for name, value in core.items()},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}
        ),
        "PYTHONPATH": str(stack.root / "include"),
        "PATH": f"{bin_folder}:{java_home() / 'bin'}:{_SYSTEM_PATH}",
        "JAVA_HOME": str(java_home()),
        "SPARK_SUBMIT_OPTS": SHORT_LIVED_JVM,
        "GX_ANALYTICS_ENABLED": "false",
        SCHEDULES: "off",
        **past_proxies(os.environ),
        **settings,
    }


def airflow(stack: StackSettings, settings: Mapping[str, str]) -> Program:
    """The program of Airflow. Its children outlive a TERM to the parent alone: supervisor signals the group."""
    ports = ("airflow_port", "airflow_worker_log_port", "airflow_trigger_log_port")
    return Program(
        name="airflow",
        command=(str(Path(sys.executable).parent / "airflow"), "standalone"),
        environment=airflow_environment(stack, settings),
        healthy=lambda: AirflowApi(stack).unhealthy(),
        ports=ports,
        stop_seconds=25,
        priority=100,
    )


class AirflowApi:
    """The few calls of Airflow's REST API that the demo needs. Raises ConnectionError when Airflow does not answer as documented.

    A POST is sent once; what may be asked twice is asked again while no answer comes.
    """

    def __init__(self, stack: StackSettings) -> None:
        self.url = f"http://127.0.0.1:{stack.ports.airflow_port}"
        self._token: str | None = None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def unhealthy(self) -> str | None:
        """None when database, scheduler and DAG processor are healthy; otherwise which is not."""
        try:
            health = self._call("GET", "/api/v2/monitor/health", None, {})
        except ConnectionError as error:
            return str(error)
        parts = ("metadatabase", "scheduler", "dag_processor")
        states = ((name, health[name]["status"]) for name in parts)
        return next((f"{name}: {state}" for name, state in states if state != "healthy"), None)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One call of /api/v2 as the demo's admin."""
        if self._token is None:
            user = {"username": USER, "password": PASSWORD}
            self._token = str(self._patiently("POST", "/auth/token", user, {})["access_token"])
        send = self._call if method == "POST" else self._patiently
        return send(method, "/api/v2/" + path, body, {"Authorization": f"Bearer {self._token}"})

    def find(self, path: str) -> dict[str, Any] | None:
        """GET, None for 404."""
        try:
            return self.call("GET", path)
        except ConnectionError as error:
            if isinstance(error.__cause__, HTTPError) and error.__cause__.code == 404:
                return None
            raise

    def _patiently(
        self, method: str, path: str, body: object, headers: dict[str, str]
    ) -> dict[str, Any]:
        again = Retrying(
            retry=retry_if_exception(_is_no_answer),
            wait=wait_exponential_jitter(0.5, 5),
            stop=stop_after_delay(_PATIENCE),
            reraise=True,
        )
        return again(self._call, method, path, body, headers)

    def _call(
        self, method: str, path: str, body: object, headers: dict[str, str]
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310
            self.url + path,
            data=data,
            method=method,
            headers={**headers, "Content-Type": "application/json"},
        )
        answer: HTTPResponse
        try:
            with self._opener.open(request, timeout=20) as answer:
                found: dict[str, Any] = json.loads(answer.read() or b"{}")
                return found
        except HTTPError as error:
            raise ConnectionError(
                f"{method} {self.url}{path}: HTTP {error.code} {error.read()[:300].decode(errors='replace')}"
            ) from error
        except (OSError, ValueError) as error:
            raise ConnectionError(f"{method} {self.url}{path}: {error}") from error


def _is_no_answer(error: BaseException) -> bool:
    """Nothing came back, or the word of a server that is not ready; any other answer stands."""
    cause = error.__cause__
    return isinstance(error, ConnectionError) and (
        not isinstance(cause, HTTPError) or cause.code >= 500
    )
