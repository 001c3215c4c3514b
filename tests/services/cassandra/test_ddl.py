"""Our DDL is our own text; Cassandra must make of it what James made (tests/golden/ddl)."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.names import QueueTable
from mailslice.stores.cassandra import ddl
from mailslice.stores.cassandra.session import CassandraSession

pytestmark = pytest.mark.new_keyspaces

GOLDEN = Path(__file__).parents[2] / "golden" / "ddl"


def described(text: str) -> dict[str, str]:
    """Table name -> its CREATE TABLE, without the keyspace's name and with equal blanks."""
    tables = re.findall(r"CREATE TABLE \w+\.(\w+) (\(.*?);", text, re.DOTALL)
    return {name: " ".join(body.split()) for name, body in tables}


@pytest.fixture(scope="module")
def session(fresh_module):
    with CassandraSession(fresh_module.settings.cassandra) as session:
        yield session


@pytest.mark.parametrize(
    ("table", "golden"), [(QueueTable.V4, "queue_v4.cql"), (QueueTable.V3, "queue_v3.cql")]
)
def test_created_tables_are_described_as_james_own(session, table, golden):
    wanted = ddl.queue_tables(table)
    ddl.create_queue_tables(session, wanted)
    ours = described(
        "\n".join(
            row[3]
            for row in session.execute(f"DESCRIBE KEYSPACE {session.settings.keyspace}")
            if row[1] == "table"
        )
    )
    james = described((GOLDEN / golden).read_text())
    assert len(wanted) == 5
    for name in wanted:
        if name in james:
            assert without_snapshot(ours[name]) == without_snapshot(james[name])
        else:
            assert table is QueueTable.V3
            assert name == "contentstart"


def without_snapshot(create: str) -> str:
    """James 3.5's event store has no snapshot yet; the column is created as James 3.8 does."""
    return create.replace("snapshot int static, ", "")


def test_what_exists_is_left_alone(session):
    names = ddl.queue_tables(QueueTable.V4)
    ddl.create_queue_tables(session, names)
    assert ddl.create_queue_tables(session, names) == ()


def test_a_missing_keyspace_is_created_with_the_given_replication(session, fresh_module):
    name = fresh_module.settings.cassandra.keyspace + "_new"
    try:
        ddl.create_keyspace(session, name, "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}")
        assert "NetworkTopologyStrategy" in ddl.replication_of(session, name)
        ddl.create_keyspace(session, name, "")
        assert "NetworkTopologyStrategy" in ddl.replication_of(session, name)
    finally:
        session.execute(f"DROP KEYSPACE IF EXISTS {name}")


def test_a_replication_that_is_no_map_is_refused(session):
    with pytest.raises(BadSetting, match=r"MAILSLICE_OWN_REPLICATION=.*is not a CQL map"):
        ddl.create_keyspace(
            session, "never_made", "{'class': 'SimpleStrategy'} AND durable_writes = false; DROP"
        )
    assert ddl.replication_of(session, "never_made") is None


@pytest.mark.parametrize(
    "replication",
    ["{'class': 'NetworkTopologyStrategy', 'dc9': 3}", "{'class': 'NoStrategy', 'dc1': 3}"],
)
def test_a_replication_that_cassandra_refuses_is_a_bad_setting(session, replication):
    with pytest.raises(BadSetting) as raised:
        ddl.create_keyspace(session, "never_made", replication)
    assert str(raised.value).startswith(f"MAILSLICE_OWN_REPLICATION={replication}: ")
    assert "dc9" in str(raised.value) or "NoStrategy" in str(raised.value)
    assert ddl.replication_of(session, "never_made") is None


def test_on_several_nodes_nobody_guesses_a_replication(session, monkeypatch):
    monkeypatch.setattr(type(session.cluster.metadata), "all_hosts", lambda _: ["a", "b", "c"])
    with pytest.raises(
        BadSetting, match=r"never_made is missing on 3 nodes.*MAILSLICE_OWN_REPLICATION"
    ):
        ddl.create_keyspace(session, "never_made", "")


def test_who_meets_a_table_in_the_making_can_use_it_at_once(session, fresh_module):
    """Cassandra shows a table before it can be read: of a dozen, one or two are met then."""
    keyspace = session.settings.keyspace
    wanted = {f"met{number}": "(a text PRIMARY KEY, b text)" for number in range(12)}

    def meet(value: str) -> list[str]:
        with CassandraSession(fresh_module.settings.cassandra) as mine:
            read = []
            for name, text in wanted.items():
                while name not in ddl.tables_of(mine, keyspace):
                    pass
                assert ddl.create_tables(mine, keyspace, {name: text}) == ()
                mine.execute(
                    mine.prepare(f"INSERT INTO {keyspace}.{name} (a, b) VALUES (?, ?)"),
                    [value, "b"],
                )
                read += [
                    row[0]
                    for row in mine.execute(
                        mine.prepare(f"SELECT a FROM {keyspace}.{name} WHERE a = ?"), [value]
                    )
                ]
            return read

    with ThreadPoolExecutor(2) as threads:
        meeting = [threads.submit(meet, value) for value in ("x", "y")]
        for name, text in wanted.items():
            session.execute(f"CREATE TABLE {keyspace}.{name} {text}")
        assert [each.result(100) for each in meeting] == [["x"] * 12, ["y"] * 12]


def test_who_reads_a_table_in_the_making_waits_for_it(session, fresh_module):
    keyspace = session.settings.keyspace
    names = [f"read{number}" for number in range(12)]

    def read() -> int:
        with CassandraSession(fresh_module.settings.cassandra) as mine:
            for name in names:
                while name not in ddl.tables_of(mine, keyspace):
                    pass
                assert mine.execute(mine.prepare(f"SELECT a FROM {keyspace}.{name}")) == []
        return len(names)

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        for name in names:
            session.execute(f"CREATE TABLE {keyspace}.{name} (a text PRIMARY KEY)")
        assert reading.result(250) == 12
