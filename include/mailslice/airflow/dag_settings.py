"""What a deployment of Airflow sets about the DAGs: one YAML file, MAILSLICE_AIRFLOW_CONFIG.

Keys at the top hold for every DAG, those below `dags: {DUTY: ...}` for one. docs/airflow.md has an
example. DAG files are never edited.
"""

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import available_timezones

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from mailslice.actions.request import MAIL_ACTIONS
from mailslice.maintenance.registry import names
from mailslice.model.errors import BadSetting
from mailslice.model.setting_types import Time
from mailslice.model.settings import variable

CONFIG = "MAILSLICE_AIRFLOW_CONFIG"
BY_HAND = "none"
"""The value of `schedule` for a DAG that runs only when somebody triggers it."""
_OF_DUTIES = {"schedule", "after", "approve", "approve_within"}
"""Keys that mail_actions does not have: a person starts it, and has seen a preview."""


def _cron(value: str) -> str:
    if value == BY_HAND:
        return value
    from airflow.exceptions import AirflowTimetableInvalid
    from airflow.timetables.interval import CronDataIntervalTimetable

    try:
        CronDataIntervalTimetable(value, timezone="UTC").validate()
    except (AirflowTimetableInvalid, ValueError, KeyError) as error:
        raise ValueError(
            f"{error}; allowed: five cron fields, a preset such as @daily, or {BY_HAND}"
        ) from None
    return value


def _zone(value: str) -> str:
    if value not in available_timezones():
        raise ValueError("allowed: a name of the IANA time zones, such as Europe/Berlin")
    return value


def _duty(value: str, *, more: tuple[str, ...] = ()) -> str:
    if value not in (allowed := (*names(), *more)):
        raise ValueError(f"allowed: {', '.join(allowed)}")
    return value


def _by_hand(value: object) -> object:
    """YAML reads `off` and `no` as false, and `~` as null."""
    return BY_HAND if value in (None, False, "off") else value


_dag = partial(_duty, more=(MAIL_ACTIONS,))
Cron = Annotated[str, BeforeValidator(_by_hand), AfterValidator(_cron)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Prefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{0,60}$")]


class CommonSettings(BaseModel):
    """Keys of every DAG. An unset one comes from the top of the file, then from the DAG."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connection: _Name | None = None
    """Airflow's connection to Spark; `spark_default`"""
    pool: _Name | None = None
    """pool of the Spark tasks; `spark`"""
    tags: tuple[_Name, ...] = ()
    """tags besides those of mailslice"""
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    """in which cron expressions are read; UTC"""
    retries: Annotated[int, Field(ge=0, le=100)] | None = None
    """of a task whose store was not available; 3"""
    retry_delay: Time | None = None
    """before the first of them, doubled each time up to 10 minutes; 1m"""
    paused: bool | None = None
    """whether a DAG that Airflow sees for the first time is paused; a DAG that only reads is not"""
    approve: bool | None = None
    """whether every run asks a person before apply; no"""
    approve_within: Time | None = None
    """how long it waits for the answer, then it is no; a quarter of the DAG's time-out"""


class OneDag(CommonSettings):
    """Keys of one DAG, below `dags`."""

    schedule: Cron = ""
    """cron expression, or none: by hand only"""
    after: tuple[Annotated[str, AfterValidator(_duty)], ...] | None = None
    """duties whose assets start this DAG, instead of a schedule"""
    timeout: Time | None = None
    """of a whole run; a step has half of it"""
    deadline: Time | None = None
    """a run that has not ended by then is reported, and goes on"""


class DagSettings(CommonSettings):
    """The whole file."""

    prefix: Prefix = ""
    """before each DAG's id, and in the names of its assets"""
    shared_artifacts: bool = False
    """every worker of Airflow has the artifacts folder under the same path (NFS, a volume)"""
    dags: dict[Annotated[str, AfterValidator(_dag)], OneDag] = Field(default_factory=dict)

    def of(self, duty: str) -> OneDag:
        """The keys of one DAG. Those that it does not set are those of the top of the file."""
        own = self.dags.get(duty, OneDag())
        common = {
            name: getattr(self, name)
            for name in CommonSettings.model_fields
            if name not in own.model_fields_set
        }
        return own.model_copy(update={**common, "tags": (*self.tags, *own.tags)})


def load_dag_settings(environ: dict[str, str] | None = None) -> DagSettings:
    """The settings of the file, or the defaults. Raises BadSetting: file, key, what is allowed."""
    name = variable(CONFIG, os.environ if environ is None else environ)
    if not name:
        return DagSettings()
    try:
        content = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{CONFIG}={name!r} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise BadSetting(f"{name} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise BadSetting(f"{name} holds {str(content)[:40]!r}; allowed: keys and values")
    try:
        settings = DagSettings.model_validate(content or {})
    except ValidationError as error:
        raise BadSetting("; ".join(_sentence(name, one) for one in error.errors())) from None
    for duty, own in settings.dags.items():
        if own.after and own.schedule:
            raise BadSetting(f"{name}: dags.{duty} sets schedule and after; allowed: one of them")
        if duty == MAIL_ACTIONS and (wrong := own.model_fields_set & _OF_DUTIES):
            raise BadSetting(f"{name}: dags.{duty} sets {min(wrong)}; allowed for duties alone")
    return settings


def _sentence(file: str, problem: Any) -> str:
    parts = [str(part) for part in problem["loc"] if part != "[key]"]
    key = ".".join(parts)
    if problem["type"] == "extra_forbidden":
        known = OneDag if parts[:1] == ["dags"] else DagSettings
        return f"{file}: {key} is not a key; allowed: {', '.join(sorted(known.model_fields))}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    value = problem["input"]
    shown = repr(value) if isinstance(value, str | int | float | bool | timedelta | None) else "..."
    return f"{file}: {key}={shown}: {message}"
