"""One of mailslice's own tables: what it declares, and how it comes to be there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, Self

from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings
from mailslice.stores.cassandra.ddl import create_keyspace, create_tables, replication_of, tables_of
from mailslice.stores.cassandra.own.columns import add_missing, raise_gc_grace
from mailslice.stores.cassandra.session import CassandraSession, Params
from mailslice.stores.cassandra.table import Table, applied

TABLES: dict[str, str] = {}
"""Name -> columns and options of every own table: each subclass of OwnTable adds its own."""
_LONGEST_TTL = timedelta(days=365 * 5)


class OwnTable(Table):
    """A subclass says TABLE and COLUMNS, and has all CQL: each statement, its TTL and condition."""

    TABLE: ClassVar[str]
    COLUMNS: ClassVar[str]
    """What follows CREATE TABLE and the name: columns, key and options."""

    def __init_subclass__(cls) -> None:
        TABLES[cls.TABLE] = cls.COLUMNS

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        super().__init__(session, keyspace, self.TABLE)

    @classmethod
    def created(cls, session: CassandraSession, settings: Settings) -> Self:
        """One table alone, created when missing: a worker need not wait for the making of all.

        It is prepared for an event loop.
        """
        table = cls(session, create(session, settings, {cls.TABLE: cls.COLUMNS}))
        table.prepare()
        return table

    @classmethod
    def existing(cls, session: CassandraSession, settings: Settings) -> Self | None:
        """One table alone, or None where it was never needed: who only reads creates nothing."""
        keyspace = settings.own.keyspace
        if cls.TABLE not in tables_of(session, keyspace):
            return None
        add_missing(session, keyspace, {cls.TABLE: cls.COLUMNS})
        return cls(session, keyspace)

    def _apply(self, statement: object, params: Params) -> bool:
        """Execute a conditional write; whether it was done."""
        return applied(self._session.execute(statement, params))


def ttl_seconds(ttl: timedelta) -> int:
    """Cassandra refuses what would expire after January 2038; a longer one is for ever (0)."""
    return 0 if ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))


def create(session: CassandraSession, settings: Settings, tables: Mapping[str, str]) -> str:
    """Create those tables and their keyspace where missing; the name of the keyspace.

    Replication: MAILSLICE_OWN_REPLICATION, else that of James' keyspace, else one copy on a
    one-node cluster. Raises BadSetting when none of these is there.
    """
    keyspace = settings.own.keyspace
    if keyspace.lower() == settings.cassandra.keyspace.lower():
        raise BadSetting(
            f"MAILSLICE_OWN_KEYSPACE={keyspace} is James' keyspace; "
            "mailslice's own tables need another"
        )
    replication = settings.own.replication or replication_of(session, settings.cassandra.keyspace)
    create_keyspace(session, keyspace, replication or "")
    created = create_tables(session, keyspace, tables)
    earlier = {name: columns for name, columns in tables.items() if name not in created}
    add_missing(session, keyspace, earlier)
    raise_gc_grace(session, keyspace, earlier)
    return keyspace
