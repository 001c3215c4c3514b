"""How many mails are live, by reports of queue_size and queue_cleanup."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.duties.blob_gc.live_mails import live_mails
from mailslice.stores.own.runs import RunRow

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def size(live, minutes=10, queue="spool", status="done"):
    """A run of queue_size so many minutes ago."""
    return row("queue_size", minutes, queue, status, live=live)


def cleanup(minutes=10, queue="spool", status="done", **report):
    return row("queue_cleanup", minutes, queue, status, **report)


def row(duty, minutes, queue, status, **report):
    started = NOW - timedelta(minutes=minutes)
    return RunRow("r", duty, queue, started, status, json.dumps({"status": status, **report}))


DAY = 24 * 60


@pytest.mark.parametrize(
    ("newest", "live"),
    [
        ([], 0),
        ([[size(5), size(9, 25)]], 5),
        ([[size(5)], [size(7, queue="outgoing")]], 12),
        ([[size(0), size(900, 25)]], 0),
        ([[size(5, DAY)], [size(7, DAY + 1, "outgoing")]], 5),
        ([[size(None, 5, status="refused"), size(3, 6, status="failed"), size(9, 25)]], 9),
        ([[row("stuck_mails", 1, "spool", "done", live=99)], [size(5)]], 5),
        ([[size(900, 90)], [cleanup(before={"live": 800}, after={"live": 3})]], 3),
        ([[cleanup(90, after={"live": 3})], [size(900)]], 900),
        ([[cleanup(before={"live": 4}, after=None, status="dry run")]], 4),
        ([[cleanup(before={"live": 4}, after=None, status="failed")]], 0),
        ([[cleanup(5, after={"live": 1}, params={"slices_from": "2026-11-01"})], [size(9)]], 9),
        ([[cleanup(before=None, after=None)]], 0),
    ],
)
def test_each_queue_counts_as_its_newest_report_of_a_day_says(newest, live):
    assert live_mails(newest, NOW) == live
