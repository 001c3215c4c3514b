"""The deployments of mailslice that one Airflow serves, each by a connection of Airflow.

    MAILSLICE_CONNECTION=mailslice_prod                    one deployment, DAGs without a prefix
    MAILSLICE_CONNECTION=eu_=mailslice_eu,us_=mailslice_us each with DAGs of its own: eu_queue_size

The connection's extra is a JSON object of settings, `{"MAILSLICE_RABBITMQ_URL": "amqp://..."}`.
Airflow looks it up in its secrets backends, the environment and its database. Settings of the
connection win over those of the environment, which all deployments share. A deployment with a
prefix has its artifacts in a folder that is named after the prefix.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mailslice.model.errors import BadSetting
from mailslice.model.settings import (
    CONNECTION,
    FILE_SUFFIX,
    PREFIX,
    Settings,
    artifacts_of,
    load_settings,
    secrets,
    variable,
)

_ALLOWED = (
    "allowed: the id of an Airflow connection, or PREFIX=ID of several with commas between, "
    "each prefix and each id once"
)
_ARTIFACTS = PREFIX + "ARTIFACTS"
_PAIR = (PREFIX + "RABBITMQ_URL", PREFIX + "RABBITMQ_MANAGEMENT_URL")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")
_ID = re.compile(r"[A-Za-z0-9_.:/#()-]{1,200}")


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment. Without a connection its settings are those of the environment."""

    prefix: str = ""
    """before the ids of its DAGs"""
    connection: str = ""

    def settings(self) -> Settings:
        """The settings. Raises BadSetting."""
        return self._load(self.environment())

    def enter(self) -> Settings:
        """As `settings`; also puts them into the environment of this process and its children.

        They stay until another deployment is entered. For the process of one task, not for threads.
        """
        own, put = _own_environment(), self.environment()
        settings = self._load(put)
        leave()
        _REPLACED.update({name: own.get(name) for name in put})
        os.environ.update(put)
        return settings

    def environment(self) -> dict[str, str]:
        """Variables that a process for this deployment needs besides this process's environment.

        They contain secrets. "" unsets a variable. Raises BadSetting for a connection that is
        missing, or that has anything but settings.
        """
        if not self.connection:
            return {}
        own = _settings_of(self.connection)
        # The connection's NAME unsets NAME_FILE, and vice versa: both together are an error.
        replaced = {_counterpart(name): "" for name in own if _counterpart(name) not in own}
        environment = {CONNECTION: "", _counterpart(CONNECTION): "", **replaced, **own}
        if self.prefix:
            # Scheduled runs of one minute have the same id in all deployments. None may find
            # the plan of another.
            location = artifacts_of(self._load(environment))
            environment[_ARTIFACTS] = f"{location.rstrip('/')}/{self.prefix}"
            environment[_counterpart(_ARTIFACTS)] = ""
        return environment

    def _load(self, put: Mapping[str, str]) -> Settings:
        """The settings of the environment, overridden by `put`, the connection's variables."""
        own, source = _own_environment(), f"the Airflow connection {self.connection!r}"
        others = (name.removesuffix(FILE_SUFFIX) for name in own if name.startswith(PREFIX))
        beside = tuple(name for name in others if name not in put)
        origin = Settings(source=source, beside=beside) if put else None
        return load_settings({**own, **put}, origin=origin)


_REPLACED: dict[str, str | None] = {}
"""Variables that `enter` replaced -> their values before; None: unset."""


def _own_environment() -> dict[str, str]:
    environment = dict(os.environ)
    for name, value in _REPLACED.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def leave() -> None:
    """Restore the environment that this process had before `enter`."""
    restore(_REPLACED)
    _REPLACED.clear()


def restore(before: Mapping[str, str | None]) -> None:
    """Restore variables of this process; None: unset it. All must be set now."""
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def deployments(environ: Mapping[str, str] | None = None) -> tuple[Deployment, ...]:
    """The deployments that MAILSLICE_CONNECTION names; the environment's own where it is unset.

    It looks up no connection, so DAG files may call it at each parse. Raises BadSetting.
    """
    text = variable(CONNECTION, _own_environment() if environ is None else environ).strip()
    if not text:
        return (Deployment(),)
    named: list[Deployment] = []
    words = [word.strip() for word in text.split(",")]
    for word in words:
        prefix, equals, connection = (part.strip() for part in word.rpartition("="))
        valid = _ID.fullmatch(connection) and (
            _PREFIX.fullmatch(prefix) if equals else len(words) == 1
        )
        taken = any(prefix == one.prefix or connection == one.connection for one in named)
        if not valid or taken:
            raise BadSetting(f"{CONNECTION}={text!r}: {word!r}; {_ALLOWED}")
        named.append(Deployment(prefix, connection))
    return tuple(named)


def _settings_of(connection: str) -> dict[str, str]:
    """The settings in the connection's extra, as text. No error shows a value."""
    where = f"{CONNECTION}: the Airflow connection {connection!r}"
    extra = _extra_of(connection, where)
    if not extra:
        raise BadSetting(
            f"{where} has no settings; its extra must be a JSON object such as "
            '{"MAILSLICE_S3_ENDPOINT": "https://..."}'
        )
    settings: dict[str, str] = {}
    for name, value in extra.items():
        if not name.startswith(PREFIX) or name == CONNECTION:
            raise BadSetting(f"{where}: {name} in its extra is not a setting of mailslice")
        if not isinstance(value, str | int | float):
            raise BadSetting(
                f"{where}: {name} in its extra is {type(value).__name__}; allowed: a text, "
                "a number, true or false"
            )
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    given = {name.removesuffix(FILE_SUFFIX) for name in settings}
    if len(given.intersection(_PAIR)) == 1:
        raise BadSetting(
            f"{where} has one of {' and '.join(_PAIR)}; allowed: both or none, or the broker's "
            "queues are compared with those of another broker"
        )
    _mask(settings)
    return settings


def _counterpart(name: str) -> str:
    return name.removesuffix(FILE_SUFFIX) if name.endswith(FILE_SUFFIX) else name + FILE_SUFFIX


def _mask(settings: Mapping[str, str]) -> None:
    """Have Airflow mask these values in task logs. Few have names that it masks by itself."""
    from airflow.sdk.log import mask_secret

    for name in settings.keys() & secrets():
        mask_secret(settings[name])


def _extra_of(connection: str, where: str) -> Mapping[str, Any]:
    from mailslice.airflow.versions import connection_of

    if (stored := connection_of(connection)) is None:
        raise BadSetting(
            f"{where} is in no secrets backend, environment or database of Airflow; add it: "
            f"airflow connections add {connection} --conn-type generic "
            '--conn-extra \'{"MAILSLICE_...": "..."}\''
        )
    try:
        extra = json.loads(stored.extra or "{}")  # extra_dejson gives {} for what is no JSON
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise BadSetting(f"{where}: its extra is no JSON object")
    return extra
