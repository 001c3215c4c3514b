"""RowCodec of mailslice's own tables: dataclasses to columns and back, statements prepared once."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import SimpleNamespace
from uuid import uuid4

import pytest

from mailslice.model.mail import EnqueueId
from mailslice.stores.cassandra.own import TABLES
from mailslice.stores.cassandra.own.table import ttl_seconds
from mailslice.stores.cassandra.table import Statement, Table, insert, select
from mailslice.stores.own.codec import RowCodec
from mailslice.stores.own.locks import Locks
from mailslice.stores.own.runs import RUNS, Runs

AT = datetime(2026, 11, 22, 12, 30, 1, 234567, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Record:
    enqueue_id: EnqueueId
    colour: Colour
    at: datetime
    age: timedelta
    body: bytes
    ids: tuple[EnqueueId, ...]
    later: datetime | None
    who: str = "unknown"
    attempt: int = 1
    apart: int = 0


ROWS = RowCodec(Record, omit=("apart",), enqueue_id="enqueueid", age="age_ms")


def test_a_record_goes_into_columns_and_comes_back_with_milliseconds():
    one, other = EnqueueId(uuid4()), EnqueueId(uuid4())
    record = Record(
        one, Colour.RED, AT, timedelta(microseconds=2500), b"x", (one, other), AT, "a", 3, 7
    )
    assert ROWS.columns == tuple("enqueueid colour at age_ms body ids later who attempt".split())
    milliseconds = 1_795_350_601_234
    values = ROWS.values(record)
    assert values == [one, "red", milliseconds, 2, b"x", [one, other], milliseconds, "a", 3]
    back = ROWS.record(values, apart=7)
    assert (back.at, back.later) == (AT.replace(microsecond=234000),) * 2
    assert (back.colour, back.age, back.ids) == (
        Colour.RED,
        timedelta(milliseconds=2),
        (one, other),
    )
    assert (back.who, back.attempt, back.apart) == ("a", 3, 7)


def test_a_null_is_the_default_or_none_or_empty():
    one = EnqueueId(uuid4())
    naive = AT.replace(tzinfo=None)  # as the driver gives it
    record = ROWS.record([one, "red", naive, None, None, None, None, None, None])
    assert record == Record(one, Colour.RED, AT, timedelta(0), b"", (), None, "unknown", 1, 0)
    assert ROWS.values(record)[-3] is None


@pytest.mark.parametrize("column", [1, 2])
def test_a_null_that_nothing_stands_for_is_refused(column):
    values = [uuid4(), "red", AT, 0, b"", [], None, "a", 1]
    values[column] = None
    with pytest.raises((TypeError, ValueError, AttributeError)):
        ROWS.record(values)


def test_too_few_columns_are_refused():
    with pytest.raises(ValueError, match="argument"):
        ROWS.record([uuid4(), "red"])


class Session:
    def __init__(self):
        self.prepared = []

    def prepare(self, cql, **options):
        self.prepared.append((cql, options))
        return object()


class Things(Table):
    ON_EVENT_LOOP = ("_write",)
    _read = Statement(select(("a", "b"), "a = ?"), paged=False)
    _write = Statement(insert(("a", "b"), "USING TTL ?"))


def test_a_statement_is_prepared_once_at_its_first_use_with_the_table_of_its_instance():
    session = Session()
    one, other = Things(session, "k", "t"), Things(session, "other", "t")
    one.prepare()
    assert session.prepared == [("INSERT INTO k.t (a, b) VALUES (?, ?) USING TTL ?", {})]
    assert one._read is one._read
    assert other._read is not one._read
    assert session.prepared[1:] == [
        ("SELECT a, b FROM k.t WHERE a = ?", {"paged": False}),
        ("SELECT a, b FROM other.t WHERE a = ?", {"paged": False}),
    ]


def test_every_own_table_is_registered_with_its_columns():
    assert set(TABLES) == {
        *("runs", "locks", "delayed_mails", "queue_samples", "slice_statistics", "decisions"),
        *("dead_letter_notes", "counter_claims", "worker_records", "quarantine", "mail_stages"),
        *(
            "holds",
            "moving_mails",
            "republished_mails",
            "destinations",
            "postal_quarantine",
            "postal_decisions",
            "deletions",
            "undeleted_mails",
        ),
    }
    assert TABLES["locks"].declaration() == (
        "(name text, owner text, PRIMARY KEY ((name))) WITH gc_grace_seconds = 86400"
    )
    assert (
        TABLES["decisions"]
        .declaration()
        .endswith(
            "PRIMARY KEY ((queuename, day), decided, enqueueid, action)) WITH CLUSTERING ORDER BY "
            "(decided DESC, enqueueid ASC, action ASC) AND gc_grace_seconds = 864000"
        )
    )


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_key_is_of_declared_columns(table):
    assert table.key_columns()
    assert table.key_columns() <= table.COLUMNS.keys()


def test_a_ttl_beyond_2038_is_for_ever_and_never_nothing():
    assert ttl_seconds(timedelta(days=365 * 5 + 1)) == 0
    assert ttl_seconds(timedelta(days=365 * 5)) == 365 * 5 * 86400
    assert ttl_seconds(timedelta(milliseconds=1)) == 1
    assert ttl_seconds(None) == 0


def test_a_lock_that_expires_while_its_owner_renews_it_is_taken_anew():
    class Expiring:
        """Has the owner's row when it is asked for, and not any more when that is renewed."""

        added = 0

        def add(self, values, _ttl):
            self.added += 1
            return dict(values) if self.added == 1 else None

        def change(self, *_):
            return False

    records = Expiring()
    assert Locks(records).acquire("move/spool", "me", timedelta(seconds=30)) == "me"
    assert records.added == 2


def test_runs_of_one_duty_and_queue_are_read_from_their_partition_alone():
    asked = []
    records = SimpleNamespace(rows=lambda of, limit: asked.append((of, limit)) or iter(()))
    assert Runs(records).list("queue_size", "spool", 25) == []
    assert asked == [({"duty": "queue_size", "queuename": "spool"}, 25)]


def test_of_all_runs_no_more_are_in_memory_than_are_asked_for():
    alive, most = set(), []

    class Report(str):
        __slots__ = ()

        def __init__(self, _text):
            alive.add(id(self))

        def __del__(self):
            alive.discard(id(self))

    def rows(of, limit):
        for number in range(limit):
            most.append(len(alive))
            started = datetime(2026, 11, 21, tzinfo=UTC) - timedelta(days=number)
            values = dict.fromkeys(RUNS.columns) | {"started": started, "status": "done"}
            yield {**values, **of, "run": f"{of['queuename']}-{number}", "report": Report("{}")}

    partitions = [{"duty": "queue_size", "queuename": f"q{number:02}"} for number in range(50)]
    records = SimpleNamespace(rows=rows, partitions=lambda: iter(partitions))
    newest = Runs(records).list("queue_size", None, 60)
    assert [row.run for row in newest] == [
        *(f"q{number:02}-0" for number in reversed(range(50))),
        *(f"q{number:02}-1" for number in reversed(range(40, 50))),
    ]
    assert max(most) <= 60 + 3


def test_tombstones_stay_for_longer_than_a_week_unless_rows_end_by_ttl_within_a_day():
    """A node that missed a delete brings the row back once the others have purged its tombstone:
    a released hold would stop the mails of its queue again. Repairs are weekly.
    """
    short = {name for name, table in TABLES.items() if table.GC_GRACE_SECONDS < 864_000}
    assert short == {"locks", "worker_records", "destinations"}
