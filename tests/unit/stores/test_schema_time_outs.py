"""A change of the schema may take longer than a read: Cassandra makes one at a time."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra import connection
from mailslice.stores.cassandra.session import CassandraSession


@pytest.mark.parametrize(
    ("statement", "seconds"),
    [
        ("CREATE TABLE k.t (a int PRIMARY KEY)", 12),
        ("ALTER TABLE k.t ADD b int", 12),
        ("DROP KEYSPACE IF EXISTS k", 12),
        ("SELECT a FROM k.t", 2),
    ],
)
def test_a_change_of_the_schema_has_six_time_outs(
    monkeypatch: pytest.MonkeyPatch, statement: str, seconds: float
) -> None:
    asked = []

    def execute_async(text: str, _params: object, *, timeout: float) -> SimpleNamespace:
        asked.append((text, timeout))
        return SimpleNamespace(result=list)

    driver = SimpleNamespace(execute_async=execute_async)
    monkeypatch.setattr(connection, "connect", lambda _: (SimpleNamespace(), driver))
    session = CassandraSession(CassandraSettings(timeout=timedelta(seconds=2)))
    assert session.execute(statement) == []
    assert asked == [(statement, seconds)]
