"""The deployments of mailslice that one Airflow looks after, each by an Airflow connection.

    MAILSLICE_CONNECTION=mailslice_prod                    one deployment, DAGs without a prefix
    MAILSLICE_CONNECTION=eu_=mailslice_eu,us_=mailslice_us each with DAGs of its own: eu_queue_size

The connection's extra is a JSON object of settings, `{"MAILSLICE_RABBITMQ_URL": "amqp://..."}`.
Airflow looks it up in its secrets backends, the environment and its database. Settings of the
connection win over those of the environment, which all deployments share.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mailslice.model.errors import BadSetting
from mailslice.model.settings import CONNECTION, PREFIX, Settings, load_settings

_ALLOWED = (
    "allowed: the id of an Airflow connection, or PREFIX=ID of several with commas between, "
    "each prefix and each id once"
)
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_ID = re.compile(r"[A-Za-z0-9_.:/#()-]{1,200}")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Stores and settings of one deployment. Without a connection: those of the environment."""

    prefix: str = ""
    """before the ids of its DAGs"""
    connection: str = ""

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment with the connection's settings; secrets are in it.

        Raises BadSetting for a connection that is missing or that holds anything but settings.
        """
        environment = dict(os.environ if environ is None else environ)
        environment.pop(CONNECTION, None)
        return {**environment, **(_settings_of(self.connection) if self.connection else {})}

    def settings(self) -> Settings:
        """The settings. Raises BadSetting."""
        return load_settings(self.environment())

    def enter(self) -> Settings:
        """As `settings`; this process and those that it starts work for this deployment from now.

        For a process of one task: the settings are put into its environment.
        """
        environment = self.environment()
        settings = load_settings(environment)
        os.environ.pop(CONNECTION, None)
        os.environ.update(environment)
        return settings


def deployments(environ: Mapping[str, str] | None = None) -> tuple[Deployment, ...]:
    """The deployments that MAILSLICE_CONNECTION names; the environment's own where it is unset.

    Looks no connection up: DAG files may call it at each parse. Raises BadSetting.
    """
    text = (os.environ if environ is None else environ).get(CONNECTION, "").strip()
    if not text:
        return (Deployment(),)
    found: list[Deployment] = []
    words = [word.strip() for word in text.split(",")]
    for word in words:
        prefix, equals, connection = (part.strip() for part in word.rpartition("="))
        valid = _ID.fullmatch(connection) and (
            _PREFIX.fullmatch(prefix) if equals else len(words) == 1
        )
        taken = any(prefix == one.prefix or connection == one.connection for one in found)
        if not valid or taken:
            raise BadSetting(f"{CONNECTION}={text!r}: {word!r}; {_ALLOWED}")
        found.append(Deployment(prefix, connection))
    return tuple(found)


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
        if isinstance(value, bool):
            settings[name] = str(value).lower()
        elif isinstance(value, str | int):
            settings[name] = str(value)
        else:
            raise BadSetting(
                f"{where}: {name} in its extra is {type(value).__name__}; allowed: a text, "
                "a whole number, true or false"
            )
    return settings


def _extra_of(connection: str, where: str) -> Mapping[str, Any]:
    from airflow.exceptions import AirflowNotFoundException
    from airflow.sdk import Connection

    try:
        found = Connection.get(connection)
    except AirflowNotFoundException:
        raise BadSetting(
            f"{where} does not exist; add it: airflow connections add {connection} "
            '--conn-type generic --conn-extra \'{"MAILSLICE_...": "..."}\''
        ) from None
    try:
        extra = found.extra_dejson
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise BadSetting(f"{where}: its extra is no JSON object") from None
    return extra
