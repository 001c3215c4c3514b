"""Notifies people of alerts and failed runs, by the log and by a webhook. Airflow's DAGs and
`duty run --notify` send the same messages.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

from mailslice.maintenance.alerts import new_alerts
from mailslice.model.errors import BadSetting, MailsliceError
from mailslice.model.settings import DutySettings

log = logging.getLogger(__name__)

CHANNELS = ("log", "email", "webhook")
_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Webhook:
    """The receiver of a message as JSON by POST. Keep it out of logs: the URL is a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def hook_of(settings: DutySettings) -> Webhook:
    """The webhook of the settings."""
    url = settings.notify_webhook
    return Webhook(url.get_secret_value() if url else "")


def channels(settings: DutySettings) -> list[str]:
    """The channels that are set. Raises BadSetting for an unknown one or a missing address."""
    requested = [name.strip() for name in settings.notify.split(",") if name.strip()]
    for name in requested:
        if name not in CHANNELS:
            raise BadSetting(
                f"MAILSLICE_DUTY_NOTIFY={settings.notify!r}: {name!r} is no notifier; "
                f"allowed: {', '.join(CHANNELS)}"
            )
    for name, address, missing in (
        ("email", settings.notify_email, "the recipients"),
        ("webhook", settings.notify_webhook, "its URL"),
    ):
        if name in requested and not address:
            empty = f"MAILSLICE_DUTY_NOTIFY_{name.upper()} is empty: name {missing}"
            raise BadSetting(f"MAILSLICE_DUTY_NOTIFY names {name}, {empty}")
    return requested


def channels_without_airflow(settings: DutySettings) -> list[str]:
    """As `channels`. Raises BadSetting for email, too: it needs a connection of Airflow."""
    requested = channels(settings)
    if "email" in requested:
        raise BadSetting(
            f"MAILSLICE_DUTY_NOTIFY={settings.notify!r}: email goes by Airflow's connection "
            "smtp_default; without Airflow allowed are log, webhook"
        )
    return requested


def notify(message: Mapping[str, Any], settings: DutySettings) -> bool:
    """Send the message on each channel, without Airflow. A channel that fails stops no other.

    False: all failed that are set; the log counts only where it is alone.
    """
    sent: dict[str, bool] = {}
    for channel in channels_without_airflow(settings):
        try:
            if channel == "log":
                log.error("%s", message["text"])
            else:
                post(message, hook_of(settings))
                sent[channel] = True
        except Exception as error:  # noqa: BLE001 - the run's own end matters more
            log.error("notifier %s could not send: %s", channel, why(error))  # noqa: TRY400
            sent[channel] = False
    return not sent or any(sent.values())


def why(error: Exception) -> str:
    """The error for a log: its type only, where its text may show the URL, which is a secret."""
    return str(error) if isinstance(error, OSError | MailsliceError) else type(error).__name__


def notify_end(
    duty: str,
    queue: str | None,
    report: Mapping[str, Any] | None,
    error: BaseException | None,
    settings: DutySettings,
) -> bool:
    """Send the new alerts of a run, else its error. False: it has new alerts, and all failed."""
    if report is not None and (new := new_alerts(report)):
        return notify(message_of_alerts(report, new), settings)
    if error is not None:
        notify(message_of_failure(duty, queue, report, error), settings)
    return True


class _NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: urllib would follow it by a GET, without the message."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(message: Mapping[str, Any], hook: Webhook) -> None:
    """Send the message to a webhook."""
    headers = {**hook.headers, "Content-Type": "application/json"}
    request = Request(hook.url, json.dumps(dict(message)).encode(), headers)  # noqa: S310
    build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S).close()


def message_of_alerts(
    report: Mapping[str, Any], alerts: Sequence[Mapping[str, Any]], prefix: str = ""
) -> dict[str, Any]:
    """`{"dag", "run", "task", "reason", "text", "queue", "alerts"}` of a report's new alerts."""
    dag, queue = f"{prefix}{report['duty']}", report.get("queue")
    texts = "; ".join(str(alert["text"]) for alert in alerts)
    text = f"{_subject(dag, queue)}: {texts} (run {report['run']})"
    run = report.get("dagRun") or report["run"]
    fields = {"dag": dag, "run": run, "task": "report", "reason": "alerts", "text": text}
    return {**fields, "queue": queue, "alerts": [dict(alert) for alert in alerts]}


def message_of_failure(
    duty: str, queue: str | None, report: Mapping[str, Any] | None, error: BaseException
) -> dict[str, Any]:
    """As `message_of_alerts`, of a run that failed and has no new alerts."""
    text = f"{_subject(duty, queue)}: {error}"
    run = (report or {}).get("run")
    fields = {"dag": duty, "run": run, "task": None, "reason": str(error), "text": text}
    return {**fields, "queue": queue, "alerts": []}


def _subject(duty: object, queue: object) -> str:
    return f"{duty}, queue {queue}" if queue else str(duty)
