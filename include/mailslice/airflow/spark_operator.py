"""One step of a duty as a Spark job; exit codes become final or retried failures."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection

from mailslice.airflow.approval import require_approval
from mailslice.airflow.dag_duty import DagDuty, final_errors
from mailslice.airflow.deployments import restore
from mailslice.airflow.run_request import clear_of, request_of
from mailslice.airflow.spark_target import Target, target_of
from mailslice.airflow.versions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    connection_of,
)
from mailslice.engine.scratch import scratch_folder
from mailslice.maintenance.artifacts import folder_of
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.maintenance.submission import Outcome, read_outcome
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.package_files import job_file
from mailslice.model.settings import Settings

DRY_RUN = "dry run: the plan stays in the report, nothing is applied"
_EXIT_CODES = re.compile(r"[Ee]rror code is: (-?\d+)(?:\. Kubernetes spark exit code is: (\d+))?")
_KILLED = (-9, 137)  # SIGKILL of the driver's JVM, which is spark-submit; of the driver's Python


class SparkStep(SparkSubmitOperator):
    """Runs `jobs/DUTY.py STEP` for one queue on the master of the connection `spark_default`.

    With the param `dry_run`, `apply` skips itself. Exit code 4 (a later try may succeed) and a
    killed driver raise StoreUnavailable, which Airflow retries; every other failure is final.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "mail_queue")

    def __init__(self, *, dag_duty: DagDuty, step: str, mail_queue: Any, **kwargs: Any) -> None:
        self.duty = duty = dag_duty.duty
        self.dag_duty = dag_duty
        self.step = step
        self.mail_queue = mail_queue
        super().__init__(
            application=str(job_file(duty)),
            conn_id=self.dag_duty.connection,
            name=f"mailslice {duty} {step}",
            pool=self.dag_duty.pool,
            map_index_template="{{ task.mail_queue }}",
            **kwargs,
        )

    def execute(self, context: Any) -> None:
        """Submit the job and wait for it."""
        with final_errors():
            request = request_of(context, self.duty, self.mail_queue)
            if self.step == "apply" and request.params.get("dry_run"):
                raise AirflowSkipException(DRY_RUN)
            settings, asks = self.dag_duty.ready(), self.dag_duty.asks(context)
            if asks and self.step == "apply":
                require_approval(request, settings)
            until = "check" if asks else "report"
            if self._runs_in_process(request, settings, until, clear_of(context)):
                return
            target = target_of(require_connection(self.dag_duty.connection), settings)
        folder = scratch_folder("mailslice-submit")
        try:
            self._submit(context, request, settings, target, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _submit(
        self, context: Any, request: RunRequest, settings: Settings, target: Target, folder: Path
    ) -> None:
        # As --name=value: the name of a queue or user may begin with a dash.
        options = {"queue": request.queue, "run": request.run, "dag-run": request.dag_run}
        options |= {"who": request.who, "params": json.dumps(request.params, sort_keys=True)}
        options["attempt"] = attempt = token_hex(8)
        file = target.settings_argument(settings, folder)
        options |= {"settings": file} if file else {}
        words = (f"--{name}={value}" for name, value in options.items())
        self.application_args = [self.step, *words]
        self.conf = target.options(folder)
        self.application = target.application(str(job_file(self.duty)))
        # The provider's `env_vars` go to the drivers of YARN and Kubernetes instead.
        try:
            with _environment(target.environment()):
                super().execute(context)
        except FileNotFoundError as error:
            raise AirflowFailException(
                f"{error.filename} was not found: install pyspark beside Airflow, or set SPARK_HOME"
            ) from error
        except AirflowException as error:
            outcome = read_outcome(folder_of(request, settings), attempt)
            raise _error(
                about(self.duty, self.step, self.mail_queue), outcome, target, str(error)
            ) from None  # the command is in the log already

    def _runs_in_process(
        self, request: RunRequest, settings: Settings, until: str, clear: str
    ) -> bool:
        """Whether a small plan has done the step, or the step is small and is done now.

        `until`: the last step that a small plan does, too. `clear`: see `run_small`.
        """
        from mailslice.maintenance.engine import TooLarge
        from mailslice.maintenance.registry import load
        from mailslice.maintenance.runner import is_small, run_small, run_step, small_run_summary

        if not (settings.duty.small_rows and load(self.duty).small_first):
            return False
        try:
            if self.step == "plan":
                run_small(request, settings, until, clear=clear)
            elif small_run_summary(self.step, request, settings) is None:
                if not is_small(request, settings):
                    return False
                run_step(self.step, request, settings)
        except TooLarge:
            return False
        return True


def about(duty: str, step: str, queue: str) -> str:
    """The step in words: `queue_cleanup plan of queue 'spool'`."""
    return " ".join(
        word for word in (duty, step, f"of queue {queue!r}" if queue != NO_QUEUE else "") if word
    )


def require_connection(name: str) -> Connection:
    """Spark's connection. Raises AirflowFailException for none: the provider would use YARN."""
    connection = connection_of(name)
    if connection is None or not connection.host:
        raise AirflowFailException(
            f"the Airflow connection {name!r} is missing or names no master: add it, e.g. "
            f"AIRFLOW_CONN_{name.upper()}='" + '{"conn_type":"spark","host":"local[*]"}\' or '
            "spark://HOST:PORT"
        )
    return connection


def _error(subject: str, outcome: Outcome | None, target: Target, reason: str) -> Exception:
    """The error of a failed submit: from the job's `outcome`, else from the provider's `reason`.

    The provider gives exit codes in its message only. That of spark-submit is 1, on Kubernetes 0,
    for any failure of a driver on a cluster; that of the driver's pod follows.
    """
    match = _EXIT_CODES.search(reason)
    of_submit, of_pod = map(int, match.groups("0")) if match else (None, 0)
    code = outcome.exit_code if outcome else of_pod or of_submit
    words = f": {outcome.message}" if outcome else "; the lines above say why"
    if code is None:
        return AirflowFailException(f"{subject} failed before spark-submit ran: {reason}")
    # A driver on a cluster may still run when spark-submit was killed.
    is_killed = code in _KILLED and (code == of_pod or not target.in_cluster)
    if is_killed:
        words = f"; its driver was killed (exit code {code}): out of memory, or by the machine"
    if is_killed or code == StoreUnavailable.exit_code:
        return StoreUnavailable(f"{subject}: a later try may succeed{words}")
    if code == Refused.exit_code:
        return AirflowFailException(f"{subject} was refused{words}; nothing more was changed")
    if not outcome and target.in_cluster:
        words = (
            "; its driver left no word in the run's folder. Its log is on the cluster, for YARN: "
            "yarn logs -applicationId ID"
        )
    return AirflowFailException(f"{subject} failed (exit code {code}){words}")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, which spark-submit inherits, within the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        restore(before)
