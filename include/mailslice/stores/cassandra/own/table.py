"""The base class of mailslice's own tables, which creates and extends them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import ClassVar, Self

from cassandra.query import PreparedStatement

from mailslice.model.batches import batches
from mailslice.model.errors import BadSetting
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.settings import Settings
from mailslice.stores.cassandra import ddl
from mailslice.stores.cassandra.ids import IDS_A_REQUEST
from mailslice.stores.cassandra.references import columns_of
from mailslice.stores.cassandra.session import CassandraSession, Params, Row
from mailslice.stores.cassandra.table import Table, applied

TABLES: "dict[str, type[OwnTable]]" = {}
"""Every own table by name: each subclass of OwnTable adds itself."""
_LONGEST_TTL = timedelta(days=365 * 5)
_COMMA = re.compile(r", ?(?![^<]*>)")
"""A comma that is not within a type."""


class OwnTable(Table):
    """A subclass declares its columns, and has all CQL with its TTLs and conditions."""

    TABLE: ClassVar[str]
    SCHEMA: ClassVar[str]
    """CQL: the columns with their types, PRIMARY KEY last."""
    OPTIONS: ClassVar[str] = ""
    GC_GRACE_SECONDS: ClassVar[int] = 864_000
    COLUMNS: ClassVar[Mapping[str, str]]
    """Name -> type, by SCHEMA."""

    def __init_subclass__(cls, *, declared: bool = True) -> None:
        if not declared:
            return  # a base class of tables
        TABLES[cls.TABLE] = cls
        *columns, _ = _COMMA.split(" ".join(cls.SCHEMA.partition("PRIMARY")[0].split()))
        cls.COLUMNS = dict(column.split(" ", 1) for column in columns)

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        super().__init__(session, keyspace, self.TABLE)

    @classmethod
    def created(cls, session: CassandraSession, settings: Settings) -> Self:
        """Opens this table alone, created when missing, and prepared for an event loop."""
        table = cls(session, create(session, settings, [cls]))
        table.prepare()
        return table

    @classmethod
    def existing(cls, session: CassandraSession, settings: Settings) -> Self | None:
        """Opens this table alone; None if it was never created. Looks again until it exists."""
        keyspace = settings.own.keyspace
        key = (keyspace, cls.TABLE)
        known: Self | None = session.own_tables.get(key)
        if known is None and cls.TABLE in ddl.tables_of(session, keyspace):
            _add_missing(session, keyspace, [cls])
            known = session.own_tables.setdefault(key, cls(session, keyspace))
        return known

    @classmethod
    def prepared(cls, session: CassandraSession, settings: Settings) -> Self | None:
        """As `existing`, for an event loop."""
        table = cls.existing(session, settings)
        if table is not None:
            table.prepare()
        return table

    @classmethod
    def declaration(cls) -> str:
        """The columns and options for CREATE TABLE."""
        options = f"{cls.OPTIONS} AND " if cls.OPTIONS else ""
        grace = f"gc_grace_seconds = {cls.GC_GRACE_SECONDS}"
        return f"({' '.join(cls.SCHEMA.split())}) WITH {options}{grace}"

    @classmethod
    def key_columns(cls) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", cls.SCHEMA.partition("PRIMARY KEY")[2]))

    def _row(self, statement: PreparedStatement, params: Params) -> Row | None:
        rows = self._session.execute(statement, params)
        return rows[0] if rows else None

    def _rows_by_ids(
        self, statement: PreparedStatement, queue: QueueName, ids: Iterable[EnqueueId]
    ) -> Iterator[Row]:
        """The existing rows of these ids; 100 ids a request."""
        params = ([queue, batch] for batch in batches(dict.fromkeys(ids), IDS_A_REQUEST))
        for _, rows in self._session.map(statement, params, in_flight=8):
            yield from rows

    def _apply(self, statement: object, params: Params) -> bool:
        """Executes a conditional write; returns whether it was applied."""
        return applied(self._session.execute(statement, params))


def ttl_seconds(ttl: timedelta | None) -> int:
    """Seconds; 0 (no expiry) for None, and beyond five years: Cassandra refuses one after 2038."""
    return 0 if ttl is None or ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))


def create(session: CassandraSession, settings: Settings, tables: Iterable[type[OwnTable]]) -> str:
    """Creates these tables and their keyspace if they are missing. Returns the keyspace's name.

    Replication: MAILSLICE_OWN_REPLICATION, else that of James' keyspace, else one copy on a
    one-node cluster. Raises BadSetting when none of these applies, or the keyspace is James'.
    """
    keyspace = settings.own.keyspace
    if keyspace.lower() == settings.cassandra.keyspace.lower():
        raise BadSetting(
            f"MAILSLICE_OWN_KEYSPACE={keyspace} is James' keyspace; "
            "mailslice's own tables need another"
        )
    replication = settings.own.replication or ddl.replication_of(
        session, settings.cassandra.keyspace
    )
    ddl.create_keyspace(session, keyspace, replication or "")
    declared = {table.TABLE: table for table in tables}
    declarations = {name: table.declaration() for name, table in declared.items()}
    created = ddl.create_tables(session, keyspace, declarations)
    earlier = [table for name, table in declared.items() if name not in created]
    _add_missing(session, keyspace, earlier)
    _raise_gc_grace(session, keyspace, earlier)
    return keyspace


def _add_missing(
    session: CassandraSession, keyspace: str, tables: Iterable[type[OwnTable]]
) -> None:
    """Adds the columns that existing tables lack, because an earlier version made them.

    Several processes may do so at once. Raises BadSetting for a table that lacks a part of its key,
    which no ALTER adds: mailslice did not make it.
    """
    existing = _columns(session, keyspace)
    for table in tables:
        for name, kind in table.COLUMNS.items():
            if name in existing.get(table.TABLE, table.COLUMNS):
                continue
            if name in table.key_columns():
                raise BadSetting(
                    f"table {keyspace}.{table.TABLE} has no column {name}, a part of its key: "
                    "it is not mailslice's, see MAILSLICE_OWN_KEYSPACE"
                )
            try:
                session.execute(f"ALTER TABLE {keyspace}.{table.TABLE} ADD {name} {kind}")
            except BadSetting:
                if name not in _columns(session, keyspace).get(table.TABLE, ()):
                    raise
                # else another process was faster


def _columns(session: CassandraSession, keyspace: str) -> dict[str, set[str]]:
    tables = columns_of(session, keyspace.lower()).items()
    return {table: {column.name for column in columns} for table, columns in tables}


def _raise_gc_grace(
    session: CassandraSession, keyspace: str, tables: Iterable[type[OwnTable]]
) -> None:
    """Lengthens gc_grace of existing tables to a new one's: repairs are planned by the shortest."""
    stored = ddl.gc_grace_of(session, keyspace)
    for table in tables:
        least = table.GC_GRACE_SECONDS
        if stored.get(table.TABLE, least) < least:
            session.execute(f"ALTER TABLE {keyspace}.{table.TABLE} WITH gc_grace_seconds = {least}")
