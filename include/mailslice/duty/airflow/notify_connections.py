"""Where notifiers speak by Airflow's connections: one that exists is spoken to, whatever MAILSLICE_DUTY_NOTIFY says.

`mailslice_webhook` (type HTTP): host, schema and port, or a whole URL as host; extra `path`, extra `headers` (an object); a password is sent as a bearer token.
`mailslice_email` (type SMTP): the mail server; extra `to` names the recipients, comma-separated, else MAILSLICE_DUTY_NOTIFY_EMAIL does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from mailslice.model.errors import BadSetting

WEBHOOK, EMAIL = "mailslice_webhook", "mailslice_email"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Who gets one JSON object by POST. Not for logs: the URL of a hook is a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def found(name: str) -> Any | None:
    """Airflow's connection of that name; None when there is none."""
    try:
        return Connection.get(name)
    except AirflowNotFoundException:
        return None


def webhook_of(connection: Any) -> Webhook:
    """The address in an HTTP connection. Raises BadSetting when it has none."""
    extra, host = connection.extra_dejson, connection.host or ""
    if not host:
        raise BadSetting(
            f"Airflow's connection {WEBHOOK} has no host; allowed: a host, or the URL of the hook as host"
        )
    if "://" not in host:
        port = f":{connection.port}" if connection.port else ""
        host = f"{connection.schema or 'https'}://{host}{port}"
    if not host.startswith(("http://", "https://")):
        raise BadSetting(f"Airflow's connection {WEBHOOK} is not of http or https")
    headers = {"Authorization": f"Bearer {connection.password}"} if connection.password else {}
    headers |= {str(name): str(value) for name, value in dict(extra.get("headers", {})).items()}
    return Webhook(host + str(extra.get("path", "")), headers)


def recipients_of(connection: Any, others: Sequence[str]) -> list[str]:
    """Whom an email goes to. Raises BadSetting when nobody is named."""
    words = str(connection.extra_dejson.get("to", "")).split(",")
    named = [word.strip() for word in words if word.strip()]
    if not (named or others):
        raise BadSetting(
            f"Airflow's connection {EMAIL} has no recipients; name them in its extra as `to`, or in MAILSLICE_DUTY_NOTIFY_EMAIL"
        )
    return named or list(others)
