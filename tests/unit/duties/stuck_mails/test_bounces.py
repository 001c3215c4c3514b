from __future__ import annotations

import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.codec import message
from mailslice.duties.stuck_mails import actions
from mailslice.duties.stuck_mails.actions import StuckMailActions
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sender", "told"), [("alice@example.org", True), ("a@[", False), (None, False)]
)
def test_a_sender_of_whom_no_header_can_be_made_stops_no_run(
    sender: str | None,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered: list[Mail] = []

    def enter(
        _stores: Any, _queue: Any, item: QueuedMail, _content: bytes, _clock: Any
    ) -> QueuedMail:
        entered.append(item.mail)
        return item

    monkeypatch.setattr(actions, "enter", enter)
    settings = SimpleNamespace(
        worker=SimpleNamespace(bounce_queue="reports"),
        smtp_in=SimpleNamespace(hostname="mx.example.org"),
    )
    rabbitmq = SimpleNamespace(exists=lambda _queue: True)
    run: Any = SimpleNamespace(
        stores=SimpleNamespace(settings=settings, rabbitmq=rabbitmq), clock=lambda: NOW
    )
    quarantine: Any = SimpleNamespace(content=lambda _row: b"Subject: x\r\n\r\n")
    item = QueuedMail(
        EnqueueId(UUID(int=1)), Mail("m", sender, ("bob@example.net",)), BlobId("h"), BlobId("b")
    )
    row: Any = SimpleNamespace(message=message.encode(item), attempt=1)
    plan: Any = None
    caplog.set_level(logging.INFO)
    StuckMailActions(run, plan, quarantine, lambda _planned: None).send_bounce(row)
    assert [mail.recipients for mail in entered] == ([(sender,)] if told else [])
    assert ("no report of" in caplog.text) is (sender == "a@[")
    assert "a@[" not in caplog.text
