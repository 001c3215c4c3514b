"""Which audit of a queue others act by, and how `mailslice queue audit` tells of it."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from mailslice.cli import queue as queue_commands
from mailslice.cli.main import run
from mailslice.maintenance import audits
from mailslice.maintenance.audits import named_audit, newest_audit
from mailslice.model.errors import BadInput
from mailslice.model.settings import Settings

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)
TAKEN, NEEDLESS, NONE = {"taken": True}, {"taken": False, "needless": True}, {"taken": False}


@pytest.fixture
def ledger(monkeypatch):
    """What a ledger lists, the newest first: (run, hours ago, what it says of its census).

    Audits are their runs.
    """
    reports = []
    monkeypatch.setattr(audits, "Ledger", lambda *_: SimpleNamespace(list=lambda *_: reports))
    monkeypatch.setattr(audits, "audit_of", lambda _stores, _queue, run: run)

    def listed(*runs):
        reports[:] = [
            {
                "run": run,
                "status": "done",
                "started": (NOW - timedelta(hours=hours)).isoformat(),
                "census": census,
                "params": {},
            }
            | (more[0] if more else {})
            for run, hours, census, *more in runs
        ]
        return lambda **how: newest_audit(SimpleNamespace(settings=None), "spool", **how)

    return listed


def test_a_named_audit_is_one_of_its_queue_that_is_done(ledger):
    stores = SimpleNamespace(settings=None)
    ledger(("one", 1, NONE), ("running", 2, TAKEN, {"status": "running"}), ("dry", 3, TAKEN))
    assert named_audit(stores, "spool", "one") == "one"
    assert named_audit(stores, "spool", "dry") == "dry"
    for name in ("running", "of another queue"):
        with pytest.raises(BadInput, match=f"{name}' is not in the ledger, or not done; allowed"):
            named_audit(stores, "spool", name)


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([("new", 1, TAKEN), ("old", 2, TAKEN)], "new"),
        ([("no census", 1, NONE), ("old", 2, TAKEN)], "old"),
        ([("needless", 1, NEEDLESS), ("taken", 2, TAKEN)], "taken"),
        (
            [
                ("needless", 1, NEEDLESS),
                ("needless, too", 2, NEEDLESS),
                ("no census", 3, None),
                ("taken", 23, TAKEN),
            ],
            "taken",
        ),
        (
            [("needless", 1, NEEDLESS), ("needless, too", 2, NEEDLESS), ("too old", 25, TAKEN)],
            "needless",
        ),
        (
            [
                ("needless", 1, NEEDLESS),
                ("failed", 2, TAKEN, {"status": "failed"}),
                ("slices", 3, TAKEN, {"params": {"slices_from": "x"}}),
            ],
            "needless",
        ),
        ([("too old", 25, TAKEN), ("needless", 26, NEEDLESS)], "too old"),
        ([("no census", 1, NONE)], None),
        ([], None),
    ],
)
def test_an_audit_that_needed_no_census_hides_none_that_took_one_within_the_day(
    ledger, runs, found
):
    assert ledger(*runs)(census_since=NOW - DAY) == found


def test_without_a_census_asked_for_it_is_the_newest(ledger):
    assert ledger(("no census", 1, NONE), ("taken", 2, TAKEN))() == "no census"


@pytest.mark.parametrize(
    ("census", "needless", "words"),
    [
        (True, False, ", with a census"),
        (True, True, ", which needed no census: no mail was old enough"),
        (False, False, ""),
    ],
)
def test_a_listing_says_whether_a_census_was_taken(
    census, needless, words, monkeypatch, capsysbinary
):
    audit = SimpleNamespace(
        run="r-1",
        made_at=NOW,
        census=census,
        needless=needless,
        mails=lambda _: [],
    )
    monkeypatch.setattr(
        queue_commands,
        "open_queue",
        lambda _: nullcontext(SimpleNamespace(stores=SimpleNamespace(settings=Settings()))),
    )
    monkeypatch.setattr(audits, "newest_audit", lambda *_: audit)
    assert run(["queue", "audit", "spool"]) == 0
    assert f"audit r-1 of 2026-11-22T12:00:00Z{words}\n".encode() in capsysbinary.readouterr().err
