from __future__ import annotations

import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.duties.stuck_mails import actions
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
    stores: Any = SimpleNamespace(
        settings=settings, blobs=SimpleNamespace(get=lambda _id: b"Subject: x\r\n\r\n")
    )
    item = QueuedMail(
        EnqueueId(UUID(int=1)), Mail("m", sender, ("bob@example.net",)), BlobId("h"), BlobId("b")
    )
    caplog.set_level(logging.INFO)
    assert actions.send_bounce(stores, item, lambda: NOW) is told
    assert [mail.recipients for mail in entered] == ([(sender,)] if told else [])
    assert ("no report of" in caplog.text) is (sender == "a@[")
    assert "a@[" not in caplog.text
