"""One of mailslice's own tables: what it declares, and how it comes to be there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import ClassVar, Self

from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings
from mailslice.stores.cassandra.ddl import create_keyspace, create_tables, replication_of, tables_of
from mailslice.stores.cassandra.own.columns import add_missing, raise_gc_grace
from mailslice.stores.cassandra.session import CassandraSession, Params
from mailslice.stores.cassandra.table import Table, applied

TABLES: dict[str, type[OwnTable]] = {}
"""Every own table by name: each subclass of OwnTable adds itself."""
_LONGEST_TTL = timedelta(days=365 * 5)


class OwnTable(Table):
    """A subclass declares its columns, and has all CQL: each statement, its TTL and condition."""

    TABLE: ClassVar[str]
    COLUMNS: ClassVar[Mapping[str, str]]
    """Name -> type."""
    KEY: ClassVar[str]
    """What is in the parentheses of PRIMARY KEY."""
    OPTIONS: ClassVar[str] = ""
    GC_GRACE_SECONDS: ClassVar[int] = 864_000

    def __init_subclass__(cls) -> None:
        TABLES[cls.TABLE] = cls

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        super().__init__(session, keyspace, self.TABLE)

    @classmethod
    def created(cls, session: CassandraSession, settings: Settings) -> Self:
        """One table alone, created when missing: a worker need not wait for the making of all.

        It is prepared for an event loop.
        """
        table = cls(session, create(session, settings, [cls]))
        table.prepare()
        return table

    @classmethod
    def existing(cls, session: CassandraSession, settings: Settings) -> Self | None:
        """One table alone, or None where it was never needed: who only reads creates nothing."""
        keyspace = settings.own.keyspace
        if cls.TABLE not in tables_of(session, keyspace):
            return None
        add_missing(session, keyspace, [cls])
        return cls(session, keyspace)

    @classmethod
    def declaration(cls) -> str:
        """What follows CREATE TABLE and the name."""
        columns = ", ".join(f"{name} {kind}" for name, kind in cls.COLUMNS.items())
        options = f"{cls.OPTIONS} AND " if cls.OPTIONS else ""
        grace = f"gc_grace_seconds = {cls.GC_GRACE_SECONDS}"
        return f"({columns}, PRIMARY KEY ({cls.KEY})) WITH {options}{grace}"

    @classmethod
    def key_columns(cls) -> frozenset[str]:
        """The names of the key's columns."""
        return frozenset(re.findall(r"\w+", cls.KEY))

    def _apply(self, statement: object, params: Params) -> bool:
        """Execute a conditional write; whether it was done."""
        return applied(self._session.execute(statement, params))


def ttl_seconds(ttl: timedelta) -> int:
    """Cassandra refuses what would expire after January 2038; a longer one is for ever (0)."""
    return 0 if ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))


def create(session: CassandraSession, settings: Settings, tables: Iterable[type[OwnTable]]) -> str:
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
    declared = {table.TABLE: table for table in tables}
    created = create_tables(
        session, keyspace, {name: table.declaration() for name, table in declared.items()}
    )
    earlier = [table for name, table in declared.items() if name not in created]
    add_missing(session, keyspace, earlier)
    raise_gc_grace(session, keyspace, earlier)
    return keyspace
