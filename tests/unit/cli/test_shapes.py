"""What lists of mails say of contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mailslice.cli.shapes import view_row, with_content
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryStores
from tests.contracts.making import row


def test_a_mail_that_is_done_by_now_is_left_out_and_not_called_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores: Any = MemoryStores(load_settings({}, state_file=Path("/nonexistent")))
    queue = QueueName("spool")
    there, lost, done = (row(queue, name=name) for name in ("there", "lost", "done"))
    stores.tables.deleted.mark_many(queue, [done.enqueue_id])
    answers = [(True, True), (True, False), (False, False)]
    monkeypatch.setattr("mailslice.admin.evidence.contents_exist", lambda *_: answers)
    lines = with_content(stores, queue, map(view_row, (there, lost, done)))
    assert [(line["name"], line["content"]) for line in lines] == [
        ("there", "present"),
        ("lost", "content lost"),
    ]
