"""Records of `stores.own` in Cassandra: conditional writes are LWT, single rows are read SERIAL."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from mailslice.model.batches import batches_by_key
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import applied, assignments, insert, select
from mailslice.stores.own import SHAPES
from mailslice.stores.own.records import TableShape, Values

_PARTITIONS_A_REQUEST = 20
"""Few, as the answer is not paged and a report may have 100 kB."""


class CassandraRecords(OwnTable, declared=False):
    """One table. Each statement is prepared at its first use."""

    SHAPE: ClassVar[TableShape]

    def put(self, values: Values, ttl: timedelta | None = None) -> None:
        # Later than the row that it replaces: that may be of a machine whose clock is ahead.
        key = {name: values[name] for name in self.SHAPE.key}
        columns = [f"WRITETIME({name})" for name in values if name not in key]
        before = self._run(select(columns, _where(key)), [*key.values()])
        times_us = [self._session.cluster.timestamp_generator()]
        times_us += [time_us + 1 for row in before for time_us in row if time_us]
        params = [*values.values(), ttl_seconds(ttl), max(times_us)]
        self._run(insert(values, "USING TTL ? AND TIMESTAMP ?"), params)

    def add(self, values: Values, ttl: timedelta | None = None) -> Values | None:
        # A write that the driver repeats may find its own row. Callers recognise their row.
        cql = insert(values, "IF NOT EXISTS USING TTL ?")
        key = {name: values[name] for name in self.SHAPE.key}
        while not applied(self._run(cql, [*values.values(), ttl_seconds(ttl)])):
            if (existing := self.get(key)) is not None:
                return existing
            # The existing row went before it was read, and ours was not written: try again.
        return None

    def get(self, key: Values) -> Values | None:
        columns = self.SHAPE.columns
        rows = self._run(select(columns, _where(key)), [*key.values()], serial=True)
        return dict(zip(columns, rows[0], strict=True)) if rows else None

    def rows(self, partition: Values, limit: int | None = None) -> Iterator[Values]:
        columns = self.SHAPE.columns
        limits = "" if limit is None else " LIMIT ?"
        cql = select(columns, _where(partition) + limits)
        params = [*partition.values(), *(() if limit is None else (limit,))]
        return self._stream(columns, cql, params)

    def first_rows(self, partitions: Iterable[Values], limit: int) -> Iterator[Values]:
        columns, (*first, last) = self.SHAPE.columns, self.SHAPE.partition
        conditions = " AND ".join((*(f"{name} = ?" for name in first), f"{last} IN ?"))
        cql = select(columns, f"{conditions} PER PARTITION LIMIT ?")
        statement = self.prepare_statement(cql, paged=False)
        keys = ((tuple(key[name] for name in first), key[last]) for key in partitions)
        by_first = batches_by_key(keys, _PARTITIONS_A_REQUEST)
        params = ([*key, batch, limit] for key, batch in by_first)
        for _, rows in self._session.map(statement, params, in_flight=8):
            yield from (dict(zip(columns, row, strict=True)) for row in rows)

    def stored_keys(self) -> Iterator[Values]:
        return self._stream(self.SHAPE.key, select(self.SHAPE.key))

    def partitions(self) -> Iterator[Values]:
        names = self.SHAPE.partition
        return self._stream(names, f"SELECT DISTINCT {', '.join(names)} FROM {{table}}")

    def change(
        self, key: Values, changes: Values, expected: Values, ttl: timedelta | None = None
    ) -> bool:
        cql = f"UPDATE {{table}} USING TTL ? SET {assignments(changes)} WHERE {_where(key)} "
        params = [ttl_seconds(ttl), *changes.values(), *key.values(), *expected.values()]
        # A repeat of a write that was done answers "not applied", so only the caller may repeat it.
        idempotent = changes == expected
        return applied(self._run(cql + f"IF {_where(expected)}", params, idempotent=idempotent))

    def remove(self, key: Values) -> None:
        self._run(f"DELETE FROM {{table}} WHERE {_where(key)}", [*key.values()])

    def remove_if(self, key: Values, expected: Values) -> bool:
        cql = f"DELETE FROM {{table}} WHERE {_where(key)} IF {_where(expected)}"
        return applied(self._run(cql, [*key.values(), *expected.values()], idempotent=False))

    def _stream(
        self, names: Iterable[str], cql: str, params: Sequence[object] = ()
    ) -> Iterator[Values]:
        for row in self._session.stream(self.prepare_statement(cql), params):
            yield dict(zip(names, row, strict=True))

    def _run(self, cql: str, params: list[Any], **options: bool) -> list[Any]:
        return self._session.execute(self.prepare_statement(cql, **options), params)


def _declare(shape: TableShape) -> type[CassandraRecords]:
    """Makes the class of a shape's table, which adds itself to TABLES."""
    columns = ", ".join(f"{name} {kind}" for name, kind in shape.columns.items())
    key = ", ".join((f"({', '.join(shape.partition)})", *shape.clustering))
    order = f"CLUSTERING ORDER BY ({shape.clustering[0]} DESC" if shape.newest_first else ""
    order += "".join(f", {name} ASC" for name in shape.clustering[1:]) + ")" if order else ""
    attributes = {
        "TABLE": shape.name,
        "SCHEMA": f"{columns}, PRIMARY KEY ({key})",
        "OPTIONS": order,
        "GC_GRACE_SECONDS": shape.gc_grace_seconds,
        "SHAPE": shape,
        "__doc__": f"The table {shape.name}.",
    }
    return type(f"{shape.name}_records", (CassandraRecords,), attributes)


RECORDS = {shape.name: _declare(shape) for shape in SHAPES}
"""The class of each table of `stores.own`, by its name."""


def _where(columns: Iterable[str]) -> str:
    return " AND ".join(f"{name} = ?" for name in columns)
