"""One step of a duty as a Spark job; exit codes become final or retried failures."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from mailslice.airflow.run_request import request_of
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.model.errors import BadInput, MailsliceError, Refused, StoreUnavailable, TryAgain
from mailslice.model.package_files import job_file
from mailslice.model.settings import clone_root

CONNECTION = "spark_default"
POOL = "spark"
DRY_RUN = "dry run: the plan stays in the report, nothing is applied"


class SparkStep(SparkSubmitOperator):
    """Runs `jobs/DUTY.py STEP` for one queue on the master of the connection `spark_default`.

    With the param `dry_run`, `apply` skips itself. Exit code 4 (a store is unavailable) raises
    StoreUnavailable, which Airflow retries; every other failure is final.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "mail_queue")

    def __init__(self, *, duty: str, step: str, mail_queue: Any, **kwargs: Any) -> None:
        self.duty = duty
        self.step = step
        self.mail_queue = mail_queue
        super().__init__(
            application=str(job_file(duty)),
            conn_id=CONNECTION,
            name=f"mailslice {duty} {step}",
            pool=POOL,
            map_index_template="{{ task.mail_queue }}",
            **kwargs,
        )

    def execute(self, context: Any) -> None:
        """Submit the job and wait for it."""
        try:
            request = request_of(context, self.duty, self.mail_queue)
        except BadInput as error:
            raise AirflowFailException(str(error)) from error
        if self.step == "apply" and request.params.get("dry_run"):
            raise AirflowSkipException(DRY_RUN)
        if self._runs_in_process(request):
            return
        master = require_connection()
        # In one word with its option: a queue's name, as a user's, may begin with a dash.
        options = {"queue": request.queue, "run": request.run, "dag-run": request.dag_run}
        options |= {"who": request.who, "params": json.dumps(request.params, sort_keys=True)}
        words = (f"--{name}={value}" for name, value in options.items())
        self.application_args = [self.step, *words]
        include = str(clone_root() / "include")
        self.conf = {
            "spark.log.level": "WARN",
            "spark.ui.showConsoleProgress": "false",
            "spark.executorEnv.PYTHONPATH": include,
        }
        self.env_vars = {
            # The venv's own spark-submit and Python, whatever the scheduler's PATH is.
            "PATH": _with(str(Path(sys.executable).parent), "PATH"),
            "PYTHONPATH": _with(include, "PYTHONPATH"),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **_locale(),
        }
        if master.startswith("local") or "127.0.0.1" in master:
            # The machine's name may resolve to an unreachable address; loopback needs none.
            self.env_vars["SPARK_LOCAL_IP"] = "127.0.0.1"
        try:
            super().execute(context)
        except AirflowException as error:
            raise _meaning(
                about(self.duty, self.step, self.mail_queue), self._exit_code(), str(error)
            ) from None  # the command is in the log already

    def _runs_in_process(self, request: RunRequest) -> bool:
        """Whether the step was done by a small plan, or is small and was done now."""
        from mailslice.maintenance.engine import TooLarge
        from mailslice.maintenance.registry import load
        from mailslice.maintenance.runner import done_ahead, is_small, run_small, run_step
        from mailslice.model.settings import load_settings

        settings = load_settings()
        if not (settings.duty.small_rows and load(self.duty).small_first):
            return False
        try:
            if self.step == "plan":
                run_small(request, settings)
            elif done_ahead(self.step, request, settings) is None:
                if not is_small(request, settings):
                    return False
                run_step(self.step, request, settings)
        except TooLarge:
            return False
        except TryAgain:
            raise
        except MailsliceError as error:
            raise AirflowFailException(str(error)) from error
        return True

    def _exit_code(self) -> int | None:
        process = getattr(self._hook, "_submit_sp", None)
        return None if process is None else process.returncode


def about(duty: str, step: str, queue: str) -> str:
    """The step in words: `queue_cleanup plan of queue 'spool'`."""
    return " ".join(
        word for word in (duty, step, f"of queue {queue!r}" if queue != NO_QUEUE else "") if word
    )


def require_connection() -> str:
    """Spark's master. Fails without one: the provider would submit to YARN silently."""
    try:
        connection = Connection.get(CONNECTION)
    except AirflowNotFoundException:
        connection = None
    if connection is None or not connection.host:
        raise AirflowFailException(
            f"the Airflow connection {CONNECTION!r} is missing or names no master: add it, e.g. "
            'AIRFLOW_CONN_SPARK_DEFAULT=\'{"conn_type":"spark","host":"local[*]"}\' or '
            "spark://HOST:PORT"
        )
    return str(connection.host)


def _meaning(subject: str, code: int | None, reason: str) -> Exception:
    """The error of a failed submit; `reason` is the provider's when spark-submit never ran."""
    if code is None:
        return AirflowFailException(f"{subject} failed before spark-submit ran: {reason}")
    if code == StoreUnavailable.exit_code:
        return StoreUnavailable(f"{subject}: a store is unavailable; the lines above name it")
    if code == Refused.exit_code:
        return AirflowFailException(
            f"{subject} was refused; the lines above say why, nothing more was changed"
        )
    return AirflowFailException(f"{subject} failed (exit code {code}); the lines above say why")


def _locale() -> dict[str, str]:
    """LC_ALL for the driver of a scheduler without UTF-8: the JVM would garble names."""
    chosen = next(
        (os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), ""
    )
    return {} if re.search(r"utf-?8", chosen, re.IGNORECASE) else {"LC_ALL": "C.UTF-8"}


def _with(first: str, variable: str) -> str:
    return os.pathsep.join(part for part in (first, os.environ.get(variable, "")) if part)
