"""Airflow as `airflow standalone` (SQLite, LocalExecutor) on loopback, all by environment; and the
REST calls that the demo needs.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from stack.parts import java_home
from stack.program import Program, past_proxies, write_once
from stack.settings import StackSettings

USER = "admin"
PASSWORD = "admin"  # noqa: S105 - of a server on loopback, shown by `make run`
SCHEDULES = "MAILSLICE_STACK_SCHEDULES"
"""`off`: the DAG files give no schedule, so that nothing runs unless it is asked for."""
SPARK_POOL = "spark"
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1"
"""For drivers that end after seconds: the second compiler of the JVM takes a quarter of their CPU,
and pays off only later.
"""
_REPEATED_SECONDS = 120
"""How long a request is repeated: on a busy machine Airflow's server is late, not gone."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def airflow_environment(stack: StackSettings, settings: Mapping[str, str]) -> dict[str, str]:
    """Everything Airflow reads, and what its tasks read: the same for `airflow standalone`,
    `airflow dags test` and the tests.

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
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",  # a changed file is parsed sooner
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
    """The program of Airflow.

    Its children outlive a TERM to the parent alone: supervisor signals the group.
    """
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


class _AnsweredError(ConnectionError):
    """Airflow answered with an error code: `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AirflowApi:
    """The few calls of Airflow's REST API that the demo needs.

    Raises ConnectionError when Airflow does not answer as documented. A POST is sent once; other
    requests are repeated while no answer comes.
    """

    def __init__(self, stack: StackSettings) -> None:
        self.url = f"http://127.0.0.1:{stack.ports.airflow_port}"
        self._headers: dict[str, str] = {}

    def unhealthy(self) -> str | None:
        """None when database, scheduler and DAG processor are healthy; otherwise which is not."""
        try:
            health = self._call("GET", "/api/v2/monitor/health")
        except ConnectionError as error:
            return str(error)
        parts = ("metadatabase", "scheduler", "dag_processor")
        states = ((name, health[name]["status"]) for name in parts)
        return next((f"{name}: {state}" for name, state in states if state != "healthy"), None)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One call of /api/v2 as the demo's admin."""
        if not self._headers:
            user = {"username": USER, "password": PASSWORD}
            token = self._repeated("POST", "/auth/token", user)["access_token"]
            self._headers = {"Authorization": f"Bearer {token}"}
        send = self._call if method == "POST" else self._repeated
        return send(method, "/api/v2/" + path, body)

    def find(self, path: str) -> dict[str, Any] | None:
        """GET, None for 404."""
        try:
            return self.call("GET", path)
        except _AnsweredError as error:
            if error.status == 404:
                return None
            raise

    def _repeated(self, method: str, path: str, body: object) -> dict[str, Any]:
        attempts = Retrying(
            retry=retry_if_exception(_is_no_answer),
            wait=wait_exponential_jitter(0.5, 5),
            stop=stop_after_delay(_REPEATED_SECONDS),
            reraise=True,
        )
        return attempts(self._call, method, path, body)

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        url = self.url + path
        try:
            answer = urllib3.request(
                method, url, headers=self._headers, timeout=20, retries=False, json=body
            )
            if answer.status >= 400:
                text = answer.data[:300].decode(errors="replace")
                message = f"{method} {url}: HTTP {answer.status} {text}"
                raise _AnsweredError(message, answer.status)
            content: dict[str, Any] = answer.json() if answer.data else {}
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise ConnectionError(f"{method} {url}: {error}") from error
        return content


def _is_no_answer(error: BaseException) -> bool:
    """Whether no answer came, or that of a server that is not ready. Other answers are final."""
    if isinstance(error, _AnsweredError):
        return error.status >= 500
    return isinstance(error, ConnectionError)
