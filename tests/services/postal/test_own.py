"""mailslice's own tables in MariaDB."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, load_settings
from mailslice.stores import open_stores
from mailslice.stores.mariadb.client import MariaDb, quoted
from mailslice.stores.mariadb.failures import NoRight
from mailslice.stores.mariadb.own import OwnDatabase
from mailslice.stores.own.locks import LOCKS
from mailslice.stores.own.runs import RUNS
from tests.contracts.own_records import DAY, OwnRecordsContract, run_row

_SERVERS = itertools.count(1)


@pytest.fixture
def database(mariadb_root: Any) -> Iterator[str]:
    name = f"own-50%-{uuid4().hex[:12]}"
    yield name
    MariaDb(mariadb_root(), Settings().postal).execute(f"DROP DATABASE IF EXISTS {quoted(name)}")


def settings_of(mariadb_root: Any, database: str, user: str = "root") -> Settings:
    server = f"mysql://{user}@{mariadb_root().address}"
    return load_settings(
        {
            "MAILSLICE_POSTAL_URL": f"{server}/postal",
            "MAILSLICE_OWN_URL": f"mariadb://{user}@{mariadb_root().address}/{quote(database)}",
        },
        state_file=Path("/nonexistent"),
    )


class TestMariaDb(OwnRecordsContract):
    @pytest.fixture
    def own(self, mariadb_root, database):
        with open_stores(settings_of(mariadb_root, database)) as stores:
            yield stores.records

    @pytest.fixture
    def name(self):
        return uuid4().hex

    @pytest.fixture
    def server(self):
        return next(_SERVERS)


def test_looking_creates_nothing(mariadb_root: Any, database: str) -> None:
    own = OwnDatabase(settings_of(mariadb_root, database))
    assert own.existing(RUNS) is None
    assert own.rows("SHOW DATABASES LIKE %s", (database,)) == []
    own.created().runs.save(run_row("q"), DAY)
    assert own.existing(RUNS) is not None


def test_a_column_of_a_later_version_is_added(mariadb_root: Any, database: str) -> None:
    own = OwnDatabase(settings_of(mariadb_root, database))
    own.created()
    own.execute(f"ALTER TABLE {quoted(database, 'runs')} DROP COLUMN report")
    own.created().runs.save(run_row("q"), DAY)
    assert own.created().runs.get("r1") == run_row("q")
    own.execute(f"ALTER TABLE {quoted(database, 'runs')} DROP COLUMN report")
    records = OwnDatabase(settings_of(mariadb_root, database)).existing(RUNS)
    assert records is not None
    assert [row["report"] for row in records.rows({})] == [None]


def test_a_table_of_somebody_else_is_refused_and_stays_as_it_is(
    mariadb_root: Any, database: str
) -> None:
    own = OwnDatabase(settings_of(mariadb_root, database))
    own.execute(f"CREATE DATABASE {quoted(database)}")
    own.execute(f"CREATE TABLE {quoted(database, 'locks')} (id int, holder text)")
    for look in (own.created, lambda: own.existing(LOCKS)):
        with pytest.raises(BadSetting, match="MAILSLICE_OWN_URL") as raised:
            look()
        assert "has a table locks without expires_at, name;" in str(raised.value)
    columns = [column[0] for column in own.rows(f"SHOW COLUMNS FROM {quoted(database, 'locks')}")]
    assert columns == ["id", "holder"]
    assert own.rows(f"SHOW TABLES FROM {quoted(database)}") == [("locks",)]


def test_a_database_of_postal_is_refused(mariadb_root: Any, database: str) -> None:
    own = OwnDatabase(settings_of(mariadb_root, database))
    own.execute(f"CREATE DATABASE {quoted(database)}")
    own.execute(f"CREATE TABLE {quoted(database, 'deliveries')} (id int)")
    with pytest.raises(BadSetting, match="is Postal's"):
        own.created()
    assert own.rows(f"SHOW TABLES FROM {quoted(database)}") == [("deliveries",)]


def test_a_user_without_the_right_is_told_what_to_grant(mariadb_root: Any, database: str) -> None:
    root = MariaDb(mariadb_root(), Settings().postal)
    root.execute("CREATE USER IF NOT EXISTS 'guest'@'%%'")
    own = OwnDatabase(settings_of(mariadb_root, database, "guest"))
    with pytest.raises(NoRight):
        own.existing(RUNS)
    with pytest.raises(BadSetting, match="GRANT ALL ON"):
        own.created()


class Explained(OwnDatabase):
    """Keeps what MariaDB says of how it reads."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.extra: list[str] = []

    def rows(self, sql: str, params: Any = ()) -> list[Any]:
        self.extra = [str(row[-1]) for row in super().rows(f"EXPLAIN {sql}", params)]
        return super().rows(sql, params)


def test_the_newest_rows_come_by_the_key_and_nothing_is_sorted(
    mariadb_root: Any, database: str
) -> None:
    own = Explained(settings_of(mariadb_root, database))
    runs = own.created().runs
    for number in range(60):
        runs.save(run_row("q", f"r{number}", number), DAY)
    newest = runs.list("stuck_mails_postal", QueueName("q"), 5)
    assert [row.run for row in newest] == [f"r{number}" for number in range(59, 54, -1)]
    assert own.extra == ["Using where"]
