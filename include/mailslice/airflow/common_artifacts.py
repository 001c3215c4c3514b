"""Whether every worker of this Airflow sees the same artifacts."""

from __future__ import annotations

from mailslice.airflow.versions import conf
from mailslice.maintenance.artifacts import artifacts
from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings

_ON_ONE_MACHINE = {"LocalExecutor", "SequentialExecutor", "DebugExecutor"}


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
