"""The overview of queues while a store gives nothing, or the newest audits could not look."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cassandra import AuthenticationFailed, InvalidRequest, OperationTimedOut, Unauthorized
from cassandra.cluster import NoHostAvailable

from mailslice.maintenance.health import Health
from mailslice.maintenance.overview import overview
from mailslice.model.mail import QueueName
from mailslice.model.settings import DutySettings, Settings
from mailslice.stores.cassandra.failures import translated
from mailslice.stores.own.runs import RunRow

NOW = datetime(2026, 11, 29, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            NoHostAvailable("no host", {"db:9042": AuthenticationFailed("bad password")}),
            "Cassandra at db:9042 refuses the credentials of MAILSLICE_CASSANDRA_USERNAME, ",
        ),
        (
            Unauthorized("User u has no SELECT permission"),
            "Cassandra at db:9042: the user of MAILSLICE_CASSANDRA_USERNAME, ",
        ),
        (
            InvalidRequest("Keyspace 'jmaes' does not exist"),
            "Cassandra at db:9042 refuses a statement, are MAILSLICE_CASSANDRA_KEYSPACE and ",
        ),
        (OperationTimedOut({"db": "slow"}), "Cassandra did not answer"),
    ],
)
def test_an_unknown_queue_says_whether_cassandra_was_silent_or_refused(error, why):
    def newest_runs():
        raise translated(error, "db:9042")

    stores = SimpleNamespace(
        settings=Settings(),
        management=SimpleNamespace(queues=lambda _columns: []),
        existing_runs=newest_runs,
    )
    (one,) = overview(stores, lambda: NOW, [QueueName("spool")])
    assert (one.verdict.health, one.verdict.next) == (Health.UNKNOWN, "mailslice config check")
    assert one.verdict.why.startswith(why)


def report(hours, **fields):
    finished = (NOW - timedelta(hours=hours)).isoformat()
    return {"status": "done", "finished": finished, "params": {}, "applied": 0, **fields}


def overview_of(reports, retention=timedelta(days=90)):
    """The overview of a queue with these reports, while its mails cannot be counted."""
    settings = Settings(duty=DutySettings(retention=retention))

    def rows(_limit, duties, queues):
        for duty in duties:
            if found := reports.get(duty):
                yield [
                    RunRow("r", duty, queues[0], NOW, "done", json.dumps(one), finished=NOW)
                    for one in found
                ]

    def workers_of(_queues):
        raise translated(OperationTimedOut({"db": "slow"}), "db:9042")

    stores = SimpleNamespace(
        settings=settings,
        management=SimpleNamespace(queues=lambda _columns: []),
        existing_runs=lambda: SimpleNamespace(newest=rows, list=lambda *_: []),
        workers_of=workers_of,
    )
    (one,) = overview(stores, lambda: NOW, [QueueName("spool")])
    return one


@pytest.mark.parametrize(
    ("newest", "lost"),
    [
        ({"lossProof": {"run": "census", "verdicts": {"lost": 3}}}, 3),
        ({"lossProof": {"run": "census", "verdicts": {"lost": 3}}, "status": "failed"}, 3),
        ({"lossProof": {"run": "later", "verdicts": {"lost": 0}}}, 0),
        ({"verdicts": {"lost": 0, "unknown": 0}}, 0),
        ({"verdicts": {"lost": 4, "unknown": 2}}, 4),
    ],
)
@pytest.mark.parametrize("put_back", [0, 2])
def test_a_loss_stays_until_an_audit_that_could_look(newest, lost, put_back):
    """However many audits came since that could not, and how long ago it was."""

    if proof := newest.get("lossProof"):
        proof |= {"finished": (NOW - timedelta(days=3)).isoformat(), "params": {}}
    unknown = {"lost": 0, "unknown": 3}
    reports = {
        "queue_audit": [
            report(1, **{"run": "newest", "verdicts": unknown, **newest}),
            *(report(hours, run=f"r{hours}", verdicts=unknown) for hours in (5, 9)),
        ],
        "republish_lost": [report(2, audit={"run": "census"}, applied=put_back)],
    }

    one = overview_of(reports)
    left = lost - put_back if (newest.get("lossProof") or {}).get("run") == "census" else lost
    words = f"found {left} mail" in one.verdict.why
    assert (words, one.verdict.health is Health.LOST) == (left > 0, left > 0)
    if left and "lossProof" in newest:
        assert one.verdict.why.startswith("the audit 3 days ago found ")


@pytest.mark.parametrize(
    ("size", "measured", "lost"),
    [(0, 1, 0), (2, 1, 2), (9, 1, 3), (0, 5, 3)],
    ids=["none is left", "two are left", "three may be left", "counted before the audit"],
)
def test_no_more_mails_are_lost_than_are_there(size, measured, lost):
    """A lost mail is live until somebody deletes it."""
    at = (NOW - timedelta(hours=measured)).isoformat()
    audit = report(3, run="census", verdicts={"lost": 3, "unknown": 1})
    measurement = report(measured, size=size, measuredAt=at)
    one = overview_of({"queue_audit": [audit], "queue_size": [measurement]})
    words = f"found {lost} mail" in one.verdict.why
    assert (words, one.verdict.health is Health.LOST) == (lost > 0, lost > 0)


@pytest.mark.parametrize(("retention", "is_lost"), [(timedelta(days=2), False), (None, True)])
def test_a_loss_is_not_told_for_longer_than_what_was_put_back_is_remembered(retention, is_lost):
    """The row of the republish expires. The audits since then repeat the loss as `lossProof`."""
    at = (NOW - timedelta(days=3)).isoformat()
    proof = {"run": "census", "finished": at, "verdicts": {"lost": 3}, "params": {}}
    audit = report(1, run="newest", verdicts={"lost": 0, "unknown": 1}, lossProof=proof)
    one = overview_of({"queue_audit": [audit]}, retention or timedelta(days=4))
    assert (one.verdict.health is Health.LOST) is is_lost
