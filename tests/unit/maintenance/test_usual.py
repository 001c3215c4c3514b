"""A plan that is far larger than what the ledger says is usual."""

from types import SimpleNamespace

import pytest

from mailslice.maintenance import gates
from mailslice.maintenance.gates import usual_frames


@pytest.fixture
def context(monkeypatch):
    """A run whose ledger holds `reports`, newest first."""
    found = SimpleNamespace(
        request=SimpleNamespace(duty="d", queue="q", run="now"),
        settings=SimpleNamespace(duty=SimpleNamespace(usual_factor=10.0)),
        stores=None,
        reports=[],
    )
    ledger = SimpleNamespace(list=lambda _duty, _queue, limit: found.reports[:limit])
    monkeypatch.setattr(gates, "Ledger", lambda *_: ledger)
    return found


def report(applied, status="done", run="r", **params):
    return {"applied": applied, "status": status, "run": run, "params": params}


def late(applied, **counts):
    """Of a run that the time limit ended."""
    return {**report(applied), **counts}


def most(context, least=0, **more):
    """The most that a plan may list; None: nothing is expected of it."""
    frames = usual_frames(context, 7, least, **{"unusual": False, **more})
    assert all(frame.rows == [{"planned": 7}] for frame in frames)
    return frames[0].expectations[0].arguments["max_value"] if frames else None


@pytest.mark.parametrize(
    ("reports", "cap"),
    [
        ([], None),
        ([report(5), report(7)], None),
        ([report(5), report(7), report(900)], 70),
        ([report(5), report(7), report(0), report(9, "dry run"), report(9, "failed")], None),
        ([report(5), report(7), report(9, run="now")], None),
        ([*[report(1)] * 10, *[report(1000)] * 30], 10),
        ([*[report(0, "refused")] * 300, *[report(5)] * 3], 50),
        ([*[report(0, "nothing to do")] * 300, *[report(5)] * 3], 50),
        ([*[report(9000, slices_from="2026-01-01")] * 10, *[report(5)] * 3], 50),
        ([*[report(1, mailboxes=["m"])] * 10, *[report(5)] * 3], 50),
        ([*[report(1, users=["alice@a.example"])] * 10, *[report(5)] * 3], 50),
        ([report(5, mailboxes=[], users=[])] * 3, 50),
        ([late(5, remaining=95, left=95)] * 3, 1000),
        ([late(5, left=95)] * 3, 1000),
        ([late(5, remaining=0, skippedBy={"time limit": 95, "live again": 7})] * 3, 1000),
    ],
)
def test_a_plan_is_held_to_ten_times_the_median_of_runs_that_changed_something(
    context, reports, cap
):
    context.reports = reports
    assert most(context) == cap


def test_little_is_never_too_much_and_a_person_may_say_that_it_is_unusual(context):
    context.reports = [report(1)] * 3
    assert (most(context), most(context, 6), most(context, 7)) == (10, 10, None)
    assert most(context, unusual=True) is None
