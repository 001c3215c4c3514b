"""Own tables of an earlier version get missing columns and today's gc_grace; James' get nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mailslice.model.errors import BadSetting
from mailslice.stores.cassandra.session import CassandraSession

if TYPE_CHECKING:
    from mailslice.stores.cassandra.own.table import OwnTable


def add_missing(session: CassandraSession, keyspace: str, tables: Iterable[type[OwnTable]]) -> None:
    """Give those of `tables` that exist the columns that they lack.

    Of several that do it at once all succeed. Raises BadSetting for a table that lacks a part of
    its key, which no ALTER adds: it was not made by mailslice.
    """
    existing = _existing(session, keyspace)
    for table in tables:
        for name, kind in table.COLUMNS.items():
            if name in existing.get(table.TABLE, table.COLUMNS):
                continue
            if name in table.key_columns():
                raise BadSetting(
                    f"table {keyspace}.{table.TABLE} has no column {name}, a part of its key: "
                    "it is not mailslice's, see MAILSLICE_OWN_KEYSPACE"
                )
            _add(session, keyspace, table.TABLE, name, kind)


def raise_gc_grace(
    session: CassandraSession, keyspace: str, tables: Iterable[type[OwnTable]]
) -> None:
    """Give those of `tables` that exist at least the gc_grace that a new one would have.

    Repairs are planned by the shortest: an operator may make it longer, never shorter.
    """
    query = session.prepare(
        "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?"
    )
    stored: dict[str, int] = dict(session.execute(query, [keyspace.lower()]))
    for table in tables:
        least = table.GC_GRACE_SECONDS
        if stored.get(table.TABLE, least) < least:
            session.execute(f"ALTER TABLE {keyspace}.{table.TABLE} WITH gc_grace_seconds = {least}")


def _add(session: CassandraSession, keyspace: str, table: str, name: str, kind: str) -> None:
    try:
        session.execute(f"ALTER TABLE {keyspace}.{table} ADD {name} {kind}")
    except BadSetting:
        if name not in _existing(session, keyspace).get(table, ()):
            raise
        # else another process was faster


def _existing(session: CassandraSession, keyspace: str) -> dict[str, set[str]]:
    """Columns by table, as they are now."""
    query = session.prepare(
        "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?"
    )
    columns: dict[str, set[str]] = {}
    for table, column in session.execute(query, [keyspace.lower()]):
        columns.setdefault(table, set()).add(column)
    return columns
