"""Keyspaces of earlier tests: what the next test is given has nothing of them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from cassandra.cluster import Cluster

from tests.keyspaces import KeyspacePool, Keyspaces

FUTURE = 9 * 10**15


@pytest.fixture
def session(stack: Mapping[str, str]) -> Iterator[Any]:
    hosts = stack["MAILSLICE_CASSANDRA_CONTACT_POINTS"].split(",")
    port = int(stack["MAILSLICE_CASSANDRA_PORT"])
    cluster = Cluster(hosts, port=port, connect_timeout=30, control_connection_timeout=30)
    session = cluster.connect()
    session.default_timeout = 60
    yield session
    cluster.shutdown()


@pytest.fixture
def pool(session: Any, stack: Mapping[str, str]) -> KeyspacePool:
    return KeyspacePool(session, stack)


@pytest.fixture
def used(pool: KeyspacePool, session: Any) -> Iterator[Keyspaces]:
    """Two keyspaces of a test that wrote a row and a tombstone that outlasts any other write."""
    used = pool.take()
    table = f"{used.name}.browsestart"
    session.execute(f"INSERT INTO {table} (queuename, browsestart) VALUES ('a', 1)")
    session.execute(f"DELETE FROM {table} USING TIMESTAMP {FUTURE} WHERE queuename = 'b'")
    yield used
    pool.drop(used)


def after(pool: KeyspacePool, used: Keyspaces) -> Keyspaces:
    pool.expect()
    pool.release(used)
    return pool.take()


def test_they_are_emptied_of_rows_and_tombstones_and_dropped_when_somebody_still_writes(
    pool: KeyspacePool, session: Any, used: Keyspaces
) -> None:
    """One test: to make and drop all tables costs Cassandra three seconds of CPU."""
    assert after(pool, used) is used
    table = f"{used.name}.browsestart"
    assert session.execute(f"SELECT * FROM {table}").all() == []
    session.execute(f"INSERT INTO {table} (queuename, browsestart) VALUES ('b', 1)")
    assert len(session.execute(f"SELECT * FROM {table}").all()) == 1

    pool.expect()
    pool.release(used)
    session.execute(f"DELETE FROM {table} WHERE queuename = 'a'")
    require_another(pool, session, used, pool.take())


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {0}.browsestart WITH gc_grace_seconds = 60",
        pytest.param("CREATE TABLE {0}.more (id int PRIMARY KEY)", marks=pytest.mark.soak),
        pytest.param("DROP TABLE {0}_own.locks", marks=pytest.mark.soak),
        pytest.param("ALTER KEYSPACE {0} WITH durable_writes = true", marks=pytest.mark.soak),
    ],
)
def test_with_another_schema_they_are_dropped(
    pool: KeyspacePool, session: Any, used: Keyspaces, change: str
) -> None:
    session.execute(change.format(used.name))
    require_another(pool, session, used, after(pool, used))


def require_another(pool: KeyspacePool, session: Any, used: Keyspaces, taken: Keyspaces) -> None:
    names = [row.keyspace_name for row in session.execute("DESCRIBE KEYSPACES")]
    pool.drop(taken)
    assert taken.name in names
    assert not {*used.both} & {*names}
