"""Previews over a queue in memory: they end in time, also among rows that are done."""

from pathlib import Path

import pytest

from mailslice.actions.preview import preview
from mailslice.actions.request import ActionRequest
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryStores
from tests.contracts.making import HOUR, NOW, row


@pytest.fixture
def stores():
    """A live mail behind 150 that are done."""
    stores = MemoryStores(load_settings({}, state_file=Path("/nonexistent")))
    rows = [row("spool", NOW - hours * HOUR) for hours in (*[2] * 150, 0)]
    stores.tables.v4.insert_many(rows)
    stores.tables.browse_starts.insert_first("spool", rows[0].partition.slice_start)
    stores.tables.deleted.mark_many("spool", [one.enqueue_id for one in rows[:-1]])
    stores.blobs.heads = dict.fromkeys
    return stores


@pytest.mark.parametrize(
    "asked", [{"action": "clear"}, {"action": "delete", "name": "mail-1"}], ids=["all", "name"]
)
def test_a_preview_ends_in_time_among_dead_rows_and_says_where(stores, asked):
    request = ActionRequest.of({"queue": "spool", **asked})
    whole = preview(stores, request, lambda: NOW)
    assert (whole.count, whole.cut) == (1, None)
    cut = preview(stores, request, lambda: NOW, seconds=-1)
    assert (cut.count, cut.cut) == (0, "looked for -1 s, up to mails of 2026-11-20 10:00 UTC")
