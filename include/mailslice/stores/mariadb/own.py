"""Records of `stores.own` in a MariaDB database of mailslice's own.

A row is invisible after its `expires_at`, by the server's clock. It is deleted when its key is
written again or when the table is pruned.
"""

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.errors import BadSetting
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.settings import Settings
from mailslice.stores.mariadb.client import MariaDb, Row, quoted
from mailslice.stores.mariadb.failures import AlreadyThere, Contended, NoRight, NoSuchObject
from mailslice.stores.own import SHAPES, OwnRecords
from mailslice.stores.own.records import TableShape, Values

DATABASE = "mailslice"
_TYPES = {
    "text": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "int": "INT",
    "bigint": "BIGINT",
    "timestamp": "BIGINT",
}
_KEY_TEXT = "VARCHAR(180) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
"""Four of these fit into an index of InnoDB (3,072 bytes)."""
_ALIVE = "(expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6))"
_END = "UTC_TIMESTAMP(6) + INTERVAL %s SECOND"
_LONGEST = timedelta(days=365 * 5)
"""A longer TTL means no expiry, as in Cassandra."""
_NEEDED_RIGHTS = ("ALTER", "CREATE", "DELETE", "INSERT", "SELECT", "UPDATE")
_TRIES = 5
PRUNED_AT_ONCE = 1000
"""Rows of one DELETE, so that none takes long."""
_PRUNINGS = 20


class OwnDatabase:
    """The database, by one connection that threads share. The constructor creates nothing."""

    def __init__(self, settings: Settings) -> None:
        self.url, setting = own_url(settings)
        self._db = MariaDb(self.url, settings.postal, setting=setting)
        self._setting = setting
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def existing(self, shape: TableShape) -> "MariaDbRecords | None":
        """A table, or None if it was never created. NoRight: the user may not read it."""
        names, table = _names(shape.columns), quoted(self.url.database, shape.name)
        try:
            self.rows(f"SELECT {names}, expires_at FROM {table} LIMIT 0")
        except NoSuchObject:
            if shape.name not in self._add_missing([shape]):
                return None
        return MariaDbRecords(self, shape)

    def created(self) -> OwnRecords:
        """All tables, created when missing. Raises BadSetting if the user may not create them."""
        self.require_own()
        try:
            if not self.exists():
                self.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(self.url.database)}")
            existing = self._add_missing(SHAPES)
            for shape in SHAPES:
                if shape.name not in existing:
                    self.execute(_create_table(self.url.database, shape))
        except NoRight as error:
            user, name = self.url.user, f"`{self.url.database}`"
            raise BadSetting(
                f"{error}. mailslice's own database cannot be made or changed. Remedy: "
                f"CREATE DATABASE {name}; GRANT ALL ON {name}.* TO '{user}'@'%'; or set "
                "MAILSLICE_OWN_URL"
            ) from None
        return OwnRecords(lambda shape: MariaDbRecords(self, shape))

    def prune(self) -> int:
        """Deletes expired rows, at most 20,000 a table; returns how many."""
        return sum(self._pruned(quoted(self.url.database, shape.name)) for shape in SHAPES)

    def _pruned(self, table: str) -> int:
        delete = f"DELETE FROM {table} WHERE expires_at <= UTC_TIMESTAMP(6)"
        total = 0
        for _ in range(_PRUNINGS):
            count = self.execute(f"{delete} ORDER BY expires_at LIMIT {PRUNED_AT_ONCE}")
            total += count
            if count < PRUNED_AT_ONCE:
                break
        return total

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[Row]:
        with self._lock:
            return self._db.rows(sql, params)

    @retry(retry=retry_if_exception_type(Contended), stop=stop_after_attempt(_TRIES), reraise=True)
    def execute(self, sql: str, params: Sequence[object] = ()) -> int:
        """As MariaDb.execute, but repeats a statement that was Contended."""
        with self._lock:
            return self._db.execute(sql, params)

    def require_own(self) -> None:
        """Raises BadSetting if the database is one of Postal's."""
        postal_tables = self.rows(
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name IN ('queued_messages', 'deliveries')",
            (self.url.database,),
        )
        if postal_tables:
            raise self._not_own(f"is Postal's (it has {postal_tables[0][0]})")

    def exists(self) -> bool:
        """Whether the database exists, as far as the user may see."""
        databases = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
        return bool(self.rows(databases, (self.url.database,)))

    def missing_rights(self) -> list[str] | None:
        """Missing rights to create and use the tables; None if a role may grant them."""
        own = "REPLACE(grantee, '''', '') = CURRENT_USER()"
        rows = self.rows(
            f"SELECT privilege_type FROM information_schema.user_privileges WHERE {own} UNION "
            "SELECT privilege_type FROM information_schema.schema_privileges "
            f"WHERE {own} AND %s LIKE table_schema",
            (self.url.database,),
        )
        granted = {str(privilege) for (privilege,) in rows}
        missing = [right for right in _NEEDED_RIGHTS if right not in granted]
        if missing and self.rows("SELECT CURRENT_ROLE()") != [(None,)]:
            return None
        return missing

    def _add_missing(self, shapes: Sequence[TableShape]) -> Collection[str]:
        """Adds missing columns to those of these tables that exist. Returns the database's tables.
        BadSetting: one lacks a part of its key, or `expires_at`, so it is not mailslice's.
        """
        name, existing = self.url.database, defaultdict[str, set[str]](set)
        columns = "SELECT table_name, column_name FROM information_schema.columns"
        for table, column in self.rows(f"{columns} WHERE table_schema = %s", (name,)):
            existing[table].add(column)
        present = [shape for shape in shapes if shape.name in existing]
        for shape in present:
            if missing := sorted({*shape.key, "expires_at"} - existing[shape.name]):
                raise self._not_own(f"has a table {shape.name} without {', '.join(missing)}")
        for shape in present:
            change = f"ALTER TABLE {quoted(name, shape.name)} ADD COLUMN IF NOT EXISTS"
            for column in shape.columns.keys() - existing[shape.name]:
                self.execute(f"{change} {quoted(column)} {_type(shape, column)}")
        return existing

    def _not_own(self, why: str) -> BadSetting:
        where = f"{self._setting}: database {self.url.database!r} at {self.url.address}"
        return BadSetting(f"{where} {why}; mailslice's own tables need another: MAILSLICE_OWN_URL")


class MariaDbRecords:
    """One table of mailslice's own."""

    def __init__(self, database: OwnDatabase, shape: TableShape) -> None:
        self._database = database
        self._shape = shape
        self._name = quoted(database.url.database, shape.name)

    def put(self, values: Values, ttl: timedelta | None = None) -> None:
        columns = [*values, "expires_at"]
        own = ", ".join(f"{quoted(name)} = VALUES({quoted(name)})" for name in columns)
        sql, params = self._insert(values, ttl)
        self._database.execute(f"{sql} ON DUPLICATE KEY UPDATE {own}", params)

    def add(self, values: Values, ttl: timedelta | None = None) -> Values | None:
        key = {name: values[name] for name in self._shape.key}
        ended = f"DELETE FROM {self._name} WHERE {_where(key)} AND NOT {_ALIVE}"
        sql, params = self._insert(values, ttl)
        while True:
            try:
                self._database.execute(sql, params)
            except AlreadyThere:
                if (existing := self.get(key)) is not None:
                    return existing
                self._database.execute(ended, _bound(key))
            else:
                return None

    def get(self, key: Values) -> Values | None:
        return next(self._select(key, self._shape.columns), None)

    def rows(self, partition: Values, limit: int | None = None) -> Iterator[Values]:
        end = " DESC" if self._shape.newest_first else ""  # of all: a mixed order needs a sort
        order = ", ".join(quoted(name) + end for name in self._shape.clustering)
        more = (f" ORDER BY {order}" if order else "") + ("" if limit is None else " LIMIT %s")
        params = () if limit is None else (limit,)
        return self._select(partition, self._shape.columns, more, params)

    def first_rows(self, partitions: Iterable[Values], limit: int) -> Iterator[Values]:
        return (row for partition in partitions for row in self.rows(partition, limit))

    def stored_keys(self) -> Iterator[Values]:
        return self._select({}, self._shape.key)

    def partitions(self) -> Iterator[Values]:
        names = self._shape.partition
        return self._select({}, names, f" GROUP BY {_names(names)}")

    def change(
        self, key: Values, changes: Values, expected: Values, ttl: timedelta | None = None
    ) -> bool:
        end, seconds = _end(ttl)
        assigned = ", ".join(f"{quoted(name)} = %s" for name in changes)
        condition = f"{_where((*key, *expected))} AND {_ALIVE}"
        sql = f"UPDATE {self._name} SET {assigned}, expires_at = {end} WHERE {condition}"
        params = [*_bound(changes), *seconds, *_bound(key), *_bound(expected)]
        return bool(self._database.execute(sql, params))

    def remove(self, key: Values) -> None:
        self._database.execute(f"DELETE FROM {self._name} WHERE {_where(key)}", _bound(key))

    def remove_if(self, key: Values, expected: Values) -> bool:
        sql = f"DELETE FROM {self._name} WHERE {_where((*key, *expected))} AND {_ALIVE}"
        return bool(self._database.execute(sql, [*_bound(key), *_bound(expected)]))

    def _insert(self, values: Values, ttl: timedelta | None) -> tuple[str, list[Any]]:
        end, seconds = _end(ttl)
        marks = ", ".join("%s" for _ in values)
        sql = f"INSERT INTO {self._name} ({_names(values)}, expires_at) VALUES ({marks}, {end})"
        return sql, [*_bound(values), *seconds]

    def _select(
        self, key: Values, columns: Iterable[str], more: str = "", params: Sequence[object] = ()
    ) -> Iterator[Values]:
        names = tuple(columns)
        where = f"{_where(key)} AND {_ALIVE}" if key else _ALIVE
        sql = f"SELECT {_names(names)} FROM {self._name} WHERE {where}{more}"
        times = [name for name in names if self._shape.columns[name] == "timestamp"]
        for row in self._database.rows(sql, [*_bound(key), *params]):
            values = dict(zip(names, row, strict=True))
            stored = {name: values[name] for name in times if values[name] is not None}
            yield values | {name: instant(value) for name, value in stored.items()}


def own_url(settings: Settings) -> tuple[MariaDbUrl, str]:
    """The URL of the own tables' database, and the variable that sets it. BadSetting: none."""
    if settings.own.url is not None:
        return MariaDbUrl.parse(settings.own.url.get_secret_value()), "MAILSLICE_OWN_URL"
    if settings.postal.url is None:
        raise BadSetting(
            "MAILSLICE_POSTAL_URL is not set: mysql://user:password@host:port/database"
        )
    url = MariaDbUrl.parse(settings.postal.url.get_secret_value())
    return url.with_database(DATABASE), "MAILSLICE_POSTAL_URL"


def _create_table(database: str, shape: TableShape) -> str:
    columns = ", ".join(f"{quoted(name)} {_type(shape, name)}" for name in shape.columns)
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(database, shape.name)} ({columns}, "
        f"expires_at DATETIME(6) NULL, PRIMARY KEY ({_names(shape.key)}), INDEX (expires_at)) "
        "ENGINE=InnoDB"
    )


def _type(shape: TableShape, column: str) -> str:
    kind = shape.columns[column]
    if column not in shape.key:
        return f"{_TYPES[kind]} NULL"
    return f"{_KEY_TEXT if kind == 'text' else _TYPES[kind]} NOT NULL"


def _end(ttl: timedelta | None) -> tuple[str, list[float]]:
    if ttl is None or ttl > _LONGEST:
        return "NULL", []
    return _END, [ttl.total_seconds()]


def _bound(values: Values) -> list[Any]:
    """The values to bind: a datetime that was read becomes milliseconds again."""
    return [epoch_ms(value) if isinstance(value, datetime) else value for value in values.values()]


def _where(columns: Iterable[str]) -> str:
    return " AND ".join(f"{quoted(name)} = %s" for name in columns)


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quoted, columns))
