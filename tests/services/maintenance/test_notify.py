"""Alerts and failures, told without Airflow: by the log and to a real server of HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mailslice.maintenance.notify import notify_end
from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.settings import DutySettings
from tests.webhook import webhook

ALERT = {"name": "dead_letters", "value": 50, "limit": 10, "text": "50 messages are dead"}


def report(**more: object) -> dict[str, Any]:
    alert = {**ALERT, "since": "12:00", "told": "12:00"}
    about = {"duty": "queue_size", "queue": "spool", "run": "r1", "finished": "12:00"}
    return {**about, "alerts": [alert], **more}


@pytest.fixture
def hook() -> Iterator[tuple[list[dict[str, Any]], str]]:
    with webhook() as made:
        yield made


def test_new_alerts_are_told_once(hook, caplog) -> None:
    posted, url = hook
    settings = DutySettings(notify="log,webhook", notify_webhook=url + "/T0KEN")
    assert notify_end("queue_size", "spool", report(), None, settings)
    assert notify_end("queue_size", "spool", report(finished="12:15"), None, settings)
    assert [(message["text"], message["alerts"][0]["value"]) for message in posted] == [
        ("queue_size, queue spool: 50 messages are dead (run r1)", 50)
    ]
    assert caplog.messages == ["queue_size, queue spool: 50 messages are dead (run r1)"]


def test_a_hook_that_moved_was_not_told_and_the_log_says_so(hook, caplog) -> None:
    """A redirect of a POST is followed by a GET, without the message."""
    _, url = hook
    settings = DutySettings(notify="webhook", notify_webhook=url + "/moved")
    notify_end("queue_size", "spool", report(), None, settings)
    (message,) = caplog.messages
    assert message == "notifier webhook could not send: HTTP Error 301: Moved Permanently"


def test_an_error_is_told_where_no_alert_of_a_report_tells_it(hook) -> None:
    posted, url = hook
    settings = DutySettings(notify="webhook", notify_webhook=url)
    error = StoreUnavailable("Cassandra at c:9042 does not answer")
    notify_end("queue_size", "spool", None, error, settings)
    notify_end("blob_gc", None, {**report(), "alerts": []}, error, settings)
    notify_end("queue_size", "spool", report(), error, settings)
    notify_end("queue_size", "spool", {**report(), "alerts": []}, None, settings)
    assert [(message["dag"], message["run"], message["text"]) for message in posted] == [
        ("queue_size", None, "queue_size, queue spool: Cassandra at c:9042 does not answer"),
        ("blob_gc", "r1", "blob_gc: Cassandra at c:9042 does not answer"),
        ("queue_size", "r1", "queue_size, queue spool: 50 messages are dead (run r1)"),
    ]


def test_a_webhook_that_fails_stops_neither_the_log_nor_the_run_and_keeps_its_url(
    hook, caplog
) -> None:
    _, url = hook
    settings = DutySettings(notify="webhook,log", notify_webhook=url + "/refused")
    assert not notify_end("queue_size", "spool", report(), None, settings)
    assert notify_end("queue_size", "spool", report(finished="12:15"), None, settings)
    assert caplog.messages == [
        "notifier webhook could not send: HTTP Error 500: Internal Server Error",
        "queue_size, queue spool: 50 messages are dead (run r1)",
    ]
    assert "/refused" not in caplog.text


def test_email_needs_airflow_and_says_so() -> None:
    settings = DutySettings(notify="email", notify_email="ops@example.org")
    with pytest.raises(BadSetting, match="without Airflow allowed are log, webhook"):
        notify_end("queue_size", "spool", report(), None, settings)
