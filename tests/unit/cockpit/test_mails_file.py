"""The export of a queue in memory: it ends in time, also among rows that are done."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mailslice.cockpit import mails
from mailslice.cockpit.facts import Facts
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryStores
from tests.contracts.making import HOUR, NOW, row


@pytest.fixture
def facts():
    """Of a queue of one live mail behind 150 that are done."""
    stores = MemoryStores(load_settings({}, state_file=Path("/nonexistent")))
    rows = [row("spool", NOW - hours * HOUR) for hours in (*[2] * 150, 0)]
    stores.tables.v4.insert_many(rows)
    stores.tables.browse_starts.insert_first("spool", rows[0].partition.slice_start)
    stores.tables.deleted.mark_many("spool", [one.enqueue_id for one in rows[:-1]])
    return Facts(lambda: stores.settings, lambda: NOW, open_stores=lambda _settings: stores)


@pytest.mark.parametrize(
    ("seconds", "name", "lines"),
    [(60.0, "spool-1-mails.csv", 2), (-1.0, "spool-first-0-mails.csv", 1)],
)
def test_an_export_ends_in_time_among_dead_rows_and_its_name_says_so(
    facts, monkeypatch, seconds, name, lines
):
    monkeypatch.setattr(mails, "EXPORT_SECONDS", seconds)
    found = mails.export(facts, SimpleNamespace(queue="spool"), mails.MailsFilter())
    assert (found.name, len(found.text.splitlines())) == (name, lines)
