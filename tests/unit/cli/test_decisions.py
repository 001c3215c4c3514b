"""`decisions list` over a session that counts its reads."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest

from mailslice.cli import decisions
from mailslice.cli.main import run
from mailslice.cli.output import iso
from mailslice.model.clock import system_clock
from mailslice.model.settings import DutySettings, PostalSettings, Settings
from mailslice.stores.cassandra.own import DecisionRow, Decisions
from mailslice.stores.own.codec import RowCodec
from mailslice.stores.own.postal_decisions import (
    POSTAL_DECISIONS,
    PostalDecision,
    PostalDecisions,
)
from tests.unit.duties.stuck_mails_postal.world import MemoryRecords

ROWS = RowCodec(DecisionRow, enqueue_id="enqueueid", age="age_ms")
NOW = system_clock()


class Session:
    """A table of decisions: queue and day -> rows; `reads`: days that were asked for."""

    def __init__(self):
        self.days, self.reads, self.scans, self.own_tables = {}, [], 0, {}

    def prepare(self, cql, **_options):
        return cql

    def execute(self, _insert, values):
        queue, day, *row, _ttl = values
        names = dict(zip(ROWS.columns, row, strict=True))
        decided = datetime.fromtimestamp(names["decided"] / 1000, UTC).replace(tzinfo=None)
        self.days.setdefault((queue, day), []).append(list((names | {"decided": decided}).values()))

    def stream(self, cql, params):
        if "DISTINCT" in cql:
            self.scans += 1
            return iter(self.days)
        self.reads.append(tuple(params))
        return iter(self.days.get(tuple(params), ()))


class Stores(SimpleNamespace):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def session(monkeypatch, tmp_path):
    """Decisions of two queues, on three days each."""
    session, settings = Session(), Settings(duty=DutySettings(artifacts=str(tmp_path)))
    table = Decisions(session, settings.own.keyspace)
    session.own_tables[settings.own.keyspace, Decisions.TABLE] = table
    for number, queue in enumerate(("one", "two")):
        for days in (1, 2, 40):
            decided = NOW - timedelta(days=days, minutes=number)
            id_ = UUID(int=number)
            words = (f"{queue}-{days}", "DATA", "w1", timedelta(0), "dead", "closed", "it hung")
            table.save(queue, DecisionRow(id_, *words, decided), timedelta(days=90))
    stores = Stores(cassandra=session, settings=settings)
    monkeypatch.setattr(decisions, "open_stores", lambda: stores)
    return session


@pytest.fixture
def listed(session, capsys):
    def ask(*words):
        assert run(["decisions", "list", *words, "--json"]) == 0
        out = capsys.readouterr().out.splitlines()
        return [(one["queue"], one["name"]) for one in map(json.loads, out)]

    return ask


def test_decisions_of_all_queues_are_by_time_each_with_its_own_queue(listed, session):
    expected = [("one", "one-1"), ("two", "two-1"), ("one", "one-2"), ("two", "two-2")]
    assert listed() == expected
    assert (session.scans, len(session.reads)) == (1, 4)


@pytest.mark.parametrize(
    "time",
    [
        ("--until", "2099-12-31"),
        ("--since", "0001-01-01"),
        ("--since", "0500-01-01", "--until", "9999-12-31"),
    ],
)
@pytest.mark.parametrize("queue", [(), ("--queue", "two")])
def test_a_time_of_any_length_reads_the_days_that_have_decisions_alone(
    listed, session, time, queue
):
    names = ("one", "two") if not queue else ("two",)
    days = (1, 2, 40) if "--since" in time else (1, 2)
    assert listed(*time, *queue) == [(name, f"{name}-{day}") for day in days for name in names]
    assert (session.scans, len(session.reads)) == (1, len(days) * len(names))


@pytest.mark.parametrize("until", ["36h", "0001-01-02"])
def test_an_end_alone_shows_the_week_before_it(listed, until):
    assert listed("--queue", "one", "--until", until) == (
        [("one", "one-2")] if until[-1] == "h" else []
    )


def test_of_one_queue_a_short_time_is_read_without_a_scan(listed, session):
    assert listed("--queue", "one", "--since", "36h") == [("one", "one-1")]
    assert session.scans == 0
    assert len(session.reads) in {2, 3}


@pytest.fixture
def by_a_person(tmp_path):
    """A decision about a mail of queue `one`."""
    folder = tmp_path / "decisions" / f"{NOW:%Y-%m-%d}"
    folder.mkdir(parents=True)
    about = {"time": NOW.isoformat(), "queue": "one", "name": "by a person"}
    (folder / "010203-ab.json").write_text(json.dumps(about))
    return ("one", "by a person")


def test_decisions_of_people_are_found_from_any_year_on(listed, by_a_person):
    assert by_a_person in listed("--since", "0500-01-01", "--until", "9999-12-31")


def test_beside_a_postal_alone_decisions_of_people_and_about_its_messages_are_listed(
    session, by_a_person, tmp_path, monkeypatch, capsys
):
    records = MemoryRecords(POSTAL_DECISIONS)
    message = PostalDecision(
        *(1, 2, 3, "worker-1", timedelta(hours=2), "maybe sent", "stuck", "closed"),
        *("it died", NOW - timedelta(hours=1), "mailslice-1", "ada", "r-1"),
    )
    PostalDecisions(records).save(message, timedelta(days=90))
    postal = PostalSettings(url="mysql://guest@127.0.0.1:1/postal")
    settings = Settings(duty=DutySettings(artifacts=str(tmp_path)), postal=postal)
    stores = Stores(settings=settings, existing_records=lambda _shape: records)
    monkeypatch.setattr(decisions, "open_stores", lambda: stores)
    assert run(["decisions", "list", "--json"]) == 0
    person, closed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (person["queue"], person["name"]) == by_a_person
    facts = closed.pop("facts")
    assert (facts["server"], facts["message"], facts["queuedMessage"]) == (1, 2, 3)
    assert closed == {
        "time": iso(NOW - timedelta(hours=1)),
        "queue": None,
        "action": "closed",
        "who": "ada",
        "reason": "it died",
        "mails": 1,
        "enqueueId": None,
        "name": None,
        "run": "r-1",
        "by": "stuck",
    }
    assert run(["decisions", "list", "--queue", "one", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
