"""Own tables of an earlier version get missing columns and today's gc_grace; James' get nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mailslice.model.errors import BadSetting
from mailslice.stores.cassandra.session import CassandraSession

_KEY = "PRIMARY KEY"
_GRACE = re.compile(r"gc_grace_seconds = (\d+)", re.ASCII)
_DEFAULT_GRACE = 864_000


def declared(table: str) -> dict[str, str]:
    """Name -> type of all columns, from what follows CREATE TABLE with the table's name."""
    parts = (part.strip() for part in _parts(table))
    columns = (part.replace(_KEY, "").split(None, 1) for part in parts if not part.startswith(_KEY))
    return {name: kind.strip() for name, kind in columns}


def add_missing(session: CassandraSession, keyspace: str, wanted: Mapping[str, str]) -> None:
    """Give the tables of `wanted` (name -> columns and options) that are there the columns that they lack. Of several that do it at once all succeed.

    Raises BadSetting for a table that lacks a part of its key, which no ALTER adds: it was not made by mailslice.
    """
    there = _there(session, keyspace)
    for table, text in wanted.items():
        for name, kind in declared(text).items():
            if table in there and name not in there[table]:
                if name in _key_of(text):
                    raise BadSetting(
                        f"table {keyspace}.{table} has no column {name}, a part of its key: it is not mailslice's, see MAILSLICE_OWN_KEYSPACE"
                    )
                _add(session, keyspace, table, name, kind)


def raise_gc_grace(session: CassandraSession, keyspace: str, wanted: Mapping[str, str]) -> None:
    """Give the tables of `wanted` that are there at least the gc_grace that a new one would have.

    Repairs are planned by the shortest: an operator may make it longer, never shorter.
    """
    query = session.prepare(
        "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?"
    )
    for table, seconds in session.execute(query, [keyspace.lower()]):
        if table in wanted and seconds < (least := _grace_of(wanted[table])):
            session.execute(f"ALTER TABLE {keyspace}.{table} WITH gc_grace_seconds = {least}")


def _grace_of(table: str) -> int:
    declared_grace = _GRACE.search(table)
    return int(declared_grace[1]) if declared_grace else _DEFAULT_GRACE


def _add(session: CassandraSession, keyspace: str, table: str, name: str, kind: str) -> None:
    try:
        session.execute(f"ALTER TABLE {keyspace}.{table} ADD {name} {kind}")
    except BadSetting:
        if name not in _there(session, keyspace).get(table, ()):
            raise
        # else another process was faster


def _there(session: CassandraSession, keyspace: str) -> dict[str, set[str]]:
    """Columns by table, as they are now."""
    query = session.prepare(
        "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?"
    )
    there: dict[str, set[str]] = {}
    for table, column in session.execute(query, [keyspace.lower()]):
        there.setdefault(table, set()).add(column)
    return there


def _parts(table: str) -> list[str]:
    """What stands between the outermost parentheses, apart by the commas that are in no others."""
    parts, depth = [""], 0
    for char in table:
        depth -= char in ")>"
        if depth == 0 and char == ")":
            break
        if depth == 1 and char == ",":
            parts.append("")
        elif depth:
            parts[-1] += char
        depth += char in "(<"
    return parts


def _key_of(table: str) -> set[str]:
    """The names of the key's columns."""
    found = set()
    for part in (part.strip() for part in _parts(table)):
        if part.startswith(_KEY):
            found |= {
                name.strip()
                for name in part.removeprefix(_KEY).replace("(", " ").replace(")", " ").split(",")
            }
        elif _KEY in part:
            found.add(part.split(None, 1)[0])
    return found
