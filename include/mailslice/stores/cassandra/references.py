"""Blob ids in any table: lists a table's columns, and scans some of them by token range."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mailslice.stores.cassandra.ranges import TokenRange
from mailslice.stores.cassandra.session import CassandraSession

_TEXTS = re.compile(r"\b(?:text|ascii|blob)\b")


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `kind` is Cassandra's. `position` is that in the partition key, or else -1."""

    name: str
    type: str
    position: int
    kind: str = "regular"

    @property
    def holds_text(self) -> bool:
        """Whether it can hold a blob id: text, bytes, or a collection of them."""
        return _TEXTS.search(self.type) is not None


def columns_of(session: CassandraSession, keyspace: str) -> dict[str, tuple[Column, ...]]:
    """Table -> columns, as they are now; empty if the keyspace does not exist."""
    statement = session.prepare(
        "SELECT table_name, column_name, type, kind, position FROM system_schema.columns WHERE "
        "keyspace_name = ?"
    )
    by_table: dict[str, list[Column]] = {}
    for table, name, kind_of_value, kind, position in session.execute(statement, [keyspace]):
        at = position if kind == "partition_key" else -1
        by_table.setdefault(table, []).append(Column(name, kind_of_value, at, kind))
    return {table: tuple(columns) for table, columns in by_table.items()}


def estimated_sizes(session: CassandraSession, keyspace: str) -> dict[str, tuple[int, int]]:
    """Table -> (partitions, bytes), as one node estimates. Tables without estimate are absent."""
    statement = session.prepare(
        "SELECT table_name, partitions_count, mean_partition_size FROM system.size_estimates "
        "WHERE keyspace_name = ?"
    )
    nodes = max(1, len(session.cluster.metadata.all_hosts()))
    estimates: dict[str, tuple[int, int]] = {}
    for table, count, mean in session.execute(statement, [keyspace]):
        partitions, size = estimates.get(table, (0, 0))
        estimates[table] = partitions + count * nodes, size + count * nodes * mean
    return estimates


def partition_key(columns: Iterable[Column]) -> tuple[str, ...]:
    """The column names of the partition key, in its order."""
    ordered = sorted(columns, key=lambda column: column.position)
    return tuple(column.name for column in ordered if column.position >= 0)


@dataclass(frozen=True, slots=True)
class ReferenceColumns:
    """Columns of one table that hold blob ids. Names are unquoted and case-sensitive."""

    keyspace: str
    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]

    def rows(
        self, session: CassandraSession, ranges: Sequence[TokenRange], in_flight: int = 4
    ) -> Iterator[tuple[TokenRange, list[tuple[Any, ...]]]]:
        """Pages (range, rows), at least one a range. Raises if a range was not read completely."""
        token = f"token({', '.join(map(_quoted, self.key))})"
        names = ", ".join(map(_quoted, self.columns))
        statement = session.prepare(
            f"SELECT {names} FROM {_quoted(self.keyspace)}.{_quoted(self.table)} WHERE {token} > ? "
            f"AND {token} <= ?"
        )
        for token_range, rows in session.map(statement, ranges, in_flight):
            yield (int(str(token_range[0])), int(str(token_range[1]))), rows


def texts(value: object) -> Iterator[str | bytes]:
    """The texts and bytes in a column's value: itself, or the members of a collection."""
    if isinstance(value, str | bytes):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from texts(key)
            yield from texts(member)
    elif isinstance(value, Iterable):
        for member in value:
            yield from texts(member)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
