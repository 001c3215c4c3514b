"""A duty in one deployment: what each of its Airflow tasks must know."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mailslice.airflow.dag_settings import OneDag
from mailslice.airflow.run_request import is_dry
from mailslice.airflow.versions import AirflowFailException, conf
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.params import APPROVE
from mailslice.model.errors import BadSetting, MailsliceError, TryAgain
from mailslice.model.settings import Settings, load_settings

_ON_ONE_MACHINE = {"LocalExecutor", "SequentialExecutor", "DebugExecutor"}


@dataclass(frozen=True, kw_only=True)
class DagDuty:
    """The duty of a DAG, and what the settings of the deployment say about it."""

    duty: str
    settings: OneDag = field(default_factory=OneDag)
    prefix: str = ""
    reads_only: bool = False
    followed: bool = False
    """whether another DAG starts when a run of this one is over"""
    wait: timedelta = timedelta(hours=1)
    """how long a run waits for the answer to an approval"""
    shared_artifacts: bool = False
    load: Callable[[], Settings] = load_settings

    @property
    def connection(self) -> str:
        """Airflow's connection to Spark."""
        return self.settings.connection or "spark_default"

    @property
    def pool(self) -> str:
        """The pool of Spark tasks."""
        return self.settings.pool or "spark"

    def ready(self) -> Settings:
        """The settings. Raises BadSetting, also where workers do not share the artifacts."""
        settings = self.load()
        require_common_artifacts(settings, self.shared_artifacts)
        return settings

    def asks(self, context: Mapping[str, Any]) -> bool:
        """Whether a person is asked before this run applies: by its param, or by the settings."""
        is_requested = bool(self.settings.approve or context["params"].get(APPROVE))
        return is_requested and not self.reads_only and not is_dry(context)


def executor_of(setting: str) -> str:
    """The class that runs tasks: the first of `[core] executor`, without alias and module."""
    first = setting.split(",", maxsplit=1)[0].strip()
    return first.rpartition(":")[2].rpartition(".")[2]


def require_common_artifacts(settings: Settings, shared: bool, executor: str | None = None) -> None:
    """Raises BadSetting where tasks run on several machines and artifacts lie on one of them.

    `shared`: the DAG settings say that the folder is the same everywhere. `executor` as Airflow's
    setting has it; None: ask Airflow.
    """
    name = executor_of(executor or conf.get("core", "executor"))
    location = artifacts(settings)
    if name in _ON_ONE_MACHINE or shared or location.bucket is not None:
        return
    raise BadSetting(
        f"MAILSLICE_ARTIFACTS is the folder {location.location} of one machine, and {name} runs "
        "tasks on several: set MAILSLICE_ARTIFACTS=s3a://BUCKET/PREFIX in every Airflow process, "
        "or, where the folder is mounted on every worker, shared_artifacts: true in the file of "
        "MAILSLICE_AIRFLOW_CONFIG"
    )


@contextmanager
def final_errors() -> Iterator[None]:
    """Turn errors of mailslice into final failures of the task, except TryAgain."""
    try:
        yield
    except TryAgain:
        raise
    except MailsliceError as error:
        raise AirflowFailException(str(error)) from error
