"""What lists of mails say of contents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.cli.shapes import view_row, with_content
from mailslice.model.mail import Partition, QueueName
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryStores
from tests.contracts.making import HOUR, NOW, row


def test_a_mail_that_is_done_by_now_is_left_out_and_not_called_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores: Any = MemoryStores(load_settings({}, state_file=Path("/nonexistent")))
    name = QueueName("spool")
    rows = [row(name, name=one) for one in ("there", "lost", "done", "cleaned", "cleared")]
    there, lost, done, _, cleared = rows
    rows[4] = replace(cleared, partition=Partition(cleared.partition.slice_start - HOUR, 0))
    stores.tables.written.insert_many([there, lost, done, rows[4]])
    stores.tables.deleted.mark_many(name, [done.enqueue_id])
    stores.tables.browse_starts.write(name, lost.partition.slice_start, 1)
    answers = [(True, True), (True, False), (False, False), (False, False), (False, False)]
    monkeypatch.setattr("mailslice.admin.evidence.contents_exist", lambda *_: answers)
    queue = MailQueue(stores, name, lambda: NOW)
    lines = with_content(stores, queue, map(view_row, rows))
    assert [(line["name"], line["content"]) for line in lines] == [
        ("there", "present"),
        ("lost", "content lost"),
    ]
