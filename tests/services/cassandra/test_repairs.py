"""What Cassandra's own table of repairs says. Real repairs: test_three_nodes.py."""

from datetime import UTC, datetime, timedelta

import pytest

from mailslice.stores.cassandra.ranges import LOWEST
from mailslice.stores.cassandra.repairs import repaired, table_repairs
from mailslice.stores.cassandra.session import CassandraSession
from tests.services.cassandra.recorded_repairs import MIDDLE, record

pytestmark = pytest.mark.new_keyspaces

BEGAN = datetime(2026, 11, 22, 3, tzinfo=UTC)


@pytest.fixture
def session(fresh):
    with CassandraSession(fresh.settings.cassandra) as session:
        for name in ("rows", "marks"):
            session.execute(
                f"CREATE TABLE {session.settings.keyspace}.{name} (id uuid PRIMARY KEY) "
                "WITH gc_grace_seconds = 3600"
            )
        yield session


@pytest.fixture
def recorded(session):
    """A function that records a repair as Cassandra does."""

    def record_one(tables=("rows",), keyspace=session.settings.keyspace, **said):
        record(session, keyspace=keyspace, tables=tables, began=BEGAN, **said)

    return record_one


def since(session):
    return [each.since for each in repaired(session, session.settings.keyspace, ["rows", "marks"])]


def test_a_repair_of_all_ranges_counts_for_its_tables_with_their_gc_grace(session, recorded):
    recorded()
    rows, marks = repaired(session, session.settings.keyspace, ["rows", "marks"])
    assert (rows.since, rows.gc_grace, marks.since) == (BEGAN, timedelta(hours=1), None)
    began = "last repair of all ranges began"
    assert rows.sentence() == f"rows: {began}: 2026-11-22 03:00 UTC, gc_grace: 1h"
    assert marks.sentence() == f"marks: {began}: not known, gc_grace: 1h"


def test_repairs_of_parts_and_one_over_the_rings_end_add_up(session, recorded):
    recorded(ranges={f"({MIDDLE},0]"}, primaryRange="true")
    assert since(session) == [None, None]
    recorded(ranges={f"(0,{MIDDLE}]"}, tables=("rows", "marks"))
    assert since(session) == [BEGAN, None]


@pytest.mark.parametrize(
    "said",
    [
        {"finished": False},
        {"problem": "Some repair failed"},
        {"keyspace": "another"},
        {"ranges": {f"({LOWEST},{MIDDLE}]"}},
        {"ranges": {"(-1.5,x]"}},
        {"dataCenters": "dc1"},
        {"hosts": "[10.0.0.1]"},
        {"forceRepair": "true"},
        {"pullRepair": "true"},
        {"paxosOnly": "true"},
    ],
)
def test_what_is_no_repair_of_all_replicas_does_not_count(session, recorded, said):
    recorded(**said)
    assert since(session) == [None, None]


def test_where_a_row_has_one_replica_there_is_nothing_to_repair(session):
    assert table_repairs(session, session.settings.keyspace, ["rows"]) == ()
