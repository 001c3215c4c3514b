"""Notifies of a run that failed, is late or is over a limit (MAILSLICE_ALERT_...).

Channels: the log, email and webhook of MAILSLICE_DUTY_NOTIFY, and two connections of Airflow, which
are used whenever they exist. `mailslice_webhook` (HTTP): host, schema and port, or a URL as host;
extra `path` and `headers`; a password is sent as bearer token. `mailslice_email` (SMTP): extra `to`
names recipients, comma-separated, else MAILSLICE_DUTY_NOTIFY_EMAIL does. A failing channel is
logged and stops no other. Messages name DAGs, runs and tasks, never addresses of mails.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from airflow.sdk import BaseNotifier

from mailslice.airflow.deployments import Deployment
from mailslice.airflow.versions import connection_of
from mailslice.maintenance.alerts import new_alerts
from mailslice.maintenance.notify import Webhook, channels, hook_of, message_of_alerts, post, why
from mailslice.model.errors import BadSetting
from mailslice.model.settings import DutySettings, load_settings

log = logging.getLogger(__name__)

WEBHOOK, EMAIL = "mailslice_webhook", "mailslice_email"
_MISSED = "deadline missed"


class DutyNotifier(BaseNotifier):
    """Callback of a DAG's failure and of a missed deadline. Reads settings when it is called."""

    def __init__(self, connection: str = "", context: Any = None) -> None:
        """`connection`: of the deployment whose settings are used; empty: the environment's."""
        super().__init__(context)
        self.connection = connection

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments that make the same notifier in another process."""
        return {"connection": self.connection} if self.connection else {}

    def notify(self, context: Any) -> None:
        """Send the context's message on every channel of the settings."""
        send_message(message_of(context), self.connection)

    async def async_notify(self, context: Any) -> None:
        """As `notify`, for the triggerer, whose loop must not wait for a mail server."""
        import asyncio

        await asyncio.to_thread(self.notify, context)


def send_message(message: Mapping[str, Any], connected: str = "") -> bool:
    """Send the message on each channel and connection, even if another or the settings fail.

    False if every configured channel failed. The log counts only if it is the only channel.
    """
    sent: dict[str, bool] = {}
    named = channels(duty := DutySettings())
    try:
        settings = Deployment(connection=connected).settings() if connected else load_settings()
        named = channels(duty := settings.duty)
    except Exception:
        log.exception("the notifiers of MAILSLICE_DUTY_NOTIFY are not known")
    for channel in (*named, *_CONNECTIONS):
        try:
            if channel in _CHANNELS:
                _CHANNELS[channel](message, duty)
            elif (connection := connection_of(channel)) is not None:
                _CONNECTIONS[channel](message, duty, connection)
            else:
                continue
            if channel != "log":
                sent[channel] = True
        except Exception as error:  # noqa: BLE001 - it must not stop other channels
            log.error("notifier %s could not send: %s", channel, why(error))  # noqa: TRY400
            sent[channel] = False
    return not sent or any(sent.values())


def notify_alerts(report: Mapping[str, Any], prefix: str = "") -> bool:
    """Send the new alerts of a report, if it has any. False: all channels failed."""
    new = new_alerts(report)
    return not new or send_message(message_of_alerts(report, new, prefix))


def send_email(message: Mapping[str, Any], to: Sequence[str], **connection: str) -> None:
    """Send the message as a mail of its own, through Airflow's connection."""
    from airflow.providers.smtp.hooks.smtp import SmtpHook

    subject = f"{message['dag']} failed"
    if message["reason"] == _MISSED:
        subject = f"{message['dag']}: {_MISSED}"
    elif "alerts" in message:
        subject = f"{message['dag']}: {', '.join(alert['name'] for alert in message['alerts'])}"
    with SmtpHook(**connection) as hook:
        hook.send_email_smtp(
            to=list(to),
            subject=f"mailslice: {subject}",
            html_content=f"<p>{escape(message['text'])}</p>",
        )


_CHANNELS: dict[str, Callable[[Mapping[str, Any], DutySettings], None]] = {
    "log": lambda message, _: log.error("%s", message["text"]),
    "email": lambda message, settings: send_email(message, settings.notify_email),
    "webhook": lambda message, settings: post(message, hook_of(settings)),
}
_CONNECTIONS: dict[str, Callable[[Mapping[str, Any], DutySettings, Any], None]] = {
    EMAIL: lambda message, settings, connection: send_email(
        message, recipients_of(connection, settings.notify_email), smtp_conn_id=EMAIL
    ),
    WEBHOOK: lambda message, _settings, connection: post(message, webhook_of(connection)),
}


def webhook_of(connection: Any) -> Webhook:
    """The address in an HTTP connection. Raises BadSetting when it has none."""
    extra, host = connection.extra_dejson, connection.host or ""
    if not host:
        raise BadSetting(
            f"Airflow's connection {WEBHOOK} has no host; allowed: a host, or the URL of "
            "the hook as host"
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
    """The recipients of an email: the connection's, else `others`. Raises BadSetting for none."""
    words = str(connection.extra_dejson.get("to", "")).split(",")
    named = [word.strip() for word in words if word.strip()]
    if not (named or others):
        raise BadSetting(
            f"Airflow's connection {EMAIL} has no recipients; name them in its extra as "
            "`to`, or in MAILSLICE_DUTY_NOTIFY_EMAIL"
        )
    return named or list(others)


def message_of(context: Mapping[str, Any]) -> dict[str, Any]:
    """`{"dag", "run", "task", "reason", "text"}`; a deadline's context has no task."""
    run = context.get("dag_run")
    ti = context.get("ti") or context.get("task_instance")
    dag = _attribute(run, "dag_id") or _attribute(context.get("dag"), "dag_id") or "a DAG"
    run_id = _attribute(run, "run_id") or _attribute(run, "dag_run_id")
    task = _attribute(ti, "task_id")
    failure = context.get("exception") or context.get("reason") or "failed"
    reason = _MISSED if context.get("deadline") else str(failure)
    text = f"{dag} run {run_id}" + (f", task {task}" if task else "") + f": {reason}"
    return {"dag": dag, "run": run_id, "task": task, "reason": reason, "text": text}


def _attribute(source: Any, name: str) -> str | None:
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    return str(value) if value else None
