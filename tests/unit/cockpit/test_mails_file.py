"""The export of a queue in memory: it ends in time, also among rows that are done."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.cockpit import mails
from mailslice.cockpit.facts import Facts
from mailslice.maintenance import audits
from mailslice.model.settings import load_settings
from mailslice.model.verdicts import Verdict
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


@pytest.mark.parametrize(("lost", "name"), [(1, "spool-1"), (2, "spool-first-1")])
def test_the_name_of_an_export_says_that_a_verdict_has_more_mails_than_a_file(
    facts, monkeypatch, lost, name
):
    with facts.stores() as stores:
        stores.existing_runs = object
        (live,) = MailQueue(stores, "spool", lambda: NOW).browse()
    ids = [str(live.enqueue_id), *map(str, range(1, lost))]
    judged = [SimpleNamespace(enqueue_id=one, verdict=Verdict.LOST) for one in ids]
    audit = SimpleNamespace(made_at=NOW, mails=lambda _location: iter(judged))
    monkeypatch.setattr(audits, "newest_audit", lambda *_: audit)
    monkeypatch.setattr(mails, "MAX_EXPORTED", 1)
    asked = mails.MailsFilter(verdict="lost")
    assert mails.export(facts, SimpleNamespace(queue="spool"), asked).name == f"{name}-mails.csv"
