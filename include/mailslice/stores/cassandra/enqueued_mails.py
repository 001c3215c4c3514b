"""enqueuedMailsV3 and enqueuedMailsV4: the rows of the queue view."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from cassandra.cluster import ResponseFuture
from cassandra.query import UNSET_VALUE

from mailslice.codec.row import COLUMNS, epoch_ms, from_row, instant, to_row
from mailslice.model.batches import batches_by_key
from mailslice.model.mail import EnqueueId, Partition, QueueName, ViewRow
from mailslice.model.names import QueueTable
from mailslice.stores.cassandra.ids import IDS_A_REQUEST, TimedIds
from mailslice.stores.cassandra.packed import PackedPage
from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST, split
from mailslice.stores.cassandra.session import CassandraSession, Params, Pending, Row
from mailslice.stores.cassandra.table import Statement, Table, assignments, insert, select

_PARTITION = "queuename = ? AND timerangestart = ? AND bucketid = ?"
_SLICES = "queuename = ? AND bucketid = ? AND timerangestart IN ?"
_BY_IDS = f"{_PARTITION} AND enqueueid IN ?"
_KEY_COLUMNS = 4
"""So many of the first COLUMNS are the primary key."""
_WRITTEN = "WRITETIME(enqueuedtime)"
_ROW_ID = ("enqueueid", "enqueuedtime", _WRITTEN)
_TOKEN = "token(queuename, timerangestart, bucketid)"  # noqa: S105 - of the partitioner
_RANGES = 16

Page = TypeVar("Page")
IdsByPartition: TypeAlias = Iterable[tuple[Partition, Sequence[EnqueueId]]]


@dataclass(frozen=True, slots=True)
class RowId:
    """A row's id and times. `written_us`: WRITETIME, µs since the epoch; None without a time."""

    enqueue_id: EnqueueId
    enqueued_time: datetime | None
    written_us: int | None


WrittenRow = tuple[ViewRow, int | None]
"""A row and its write time, microseconds since the epoch; None if it has no enqueued time."""


ReadPages: TypeAlias = Callable[..., Iterator[tuple[Partition, Page]]]
"""`EnqueuedMails.pages` of one PartitionQuery."""


class PartitionQuery(Generic[Page]):
    """A method of EnqueuedMails that SELECTs columns. `packed`: `decode` gets undecoded pages."""

    def __init__(
        self, columns: Iterable[str], decode: Callable[[Any], Page], *, packed: bool = False
    ) -> None:
        self.cql = select(columns, _PARTITION)
        self.decode = decode
        self.packed = packed

    def __get__(self, table: "EnqueuedMails", _owner: type) -> ReadPages[Page]:
        return partial(EnqueuedMails.pages, table, self)


class EnqueuedMails(Table):
    """One of the two tables. Statements are prepared at their first use."""

    ON_EVENT_LOOP = ("_insert", "_replace", "_read")

    rows_of = PartitionQuery(COLUMNS, lambda rows: [from_row(row) for row in rows])
    written_rows_of = PartitionQuery((*COLUMNS, _WRITTEN), lambda rows: [*map(_written_row, rows)])
    ids_of = PartitionQuery(_ROW_ID, lambda rows: [_row_id(row) for row in rows])
    packed_ids_of = PartitionQuery[bytes](("enqueueid",), lambda page: page.data, packed=True)
    timed_ids_of = PartitionQuery(
        ("enqueueid", "enqueuedtime"),
        lambda page: TimedIds.of_page(page.rows, page.data),
        packed=True,
    )
    packed_written_ids_of = PartitionQuery[PackedPage](
        ("enqueueid", _WRITTEN), lambda page: page, packed=True
    )

    _insert = Statement(insert(COLUMNS))
    _copy = Statement(insert(COLUMNS, "USING TIMESTAMP ?"))
    _replace = Statement(
        f"UPDATE {{table}} SET {assignments(COLUMNS[_KEY_COLUMNS:])} "
        f"WHERE {_PARTITION} AND enqueueid = ? IF EXISTS",
        idempotent=False,
    )
    _read = Statement(select(COLUMNS, f"{_PARTITION} AND enqueueid = ?"))
    _find = Statement(select(COLUMNS, f"{_SLICES} AND enqueueid = ?"), paged=False)
    # Paged: Cassandra then reads the partitions one by one, and no row beyond the limit.
    _first_ids = Statement(
        select(("timerangestart", "enqueueid", "enqueuedtime"), f"{_SLICES} LIMIT ?")
    )
    _by_ids = Statement(select(COLUMNS, _BY_IDS))
    _written_by_ids = Statement(select((*COLUMNS, _WRITTEN), _BY_IDS))
    _row_ids_by_ids = Statement(select(_ROW_ID, _BY_IDS))
    _delete_partition = Statement(f"DELETE FROM {{table}} USING TIMESTAMP ? WHERE {_PARTITION}")
    _partitions = Statement(
        "SELECT DISTINCT queuename, timerangestart, bucketid FROM {table} "
        f"WHERE {_TOKEN} > ? AND {_TOKEN} <= ?"
    )

    def __init__(self, session: CassandraSession, table: QueueTable) -> None:
        super().__init__(session, session.settings.keyspace, table.cql)
        self.table = table

    def insert_future(self, row: ViewRow) -> ResponseFuture:
        """Writes the row. Leaves null values unbound: a bound null writes a tombstone."""
        return self._session.submit(self._insert, self._bound(row))

    def replace_future(self, row: ViewRow) -> ResponseFuture:
        """Overwrites the row, if it still exists.

        A row that a cleanup deleted meanwhile must not come back. Writes all columns that are not
        null, so that a later cleanup reads this write's time. It is an LWT, for rare writes: it
        loses to a row that was written by a clock ahead of Cassandra's.
        """
        key = [*_key(row.queue, row.partition), row.enqueue_id]
        return self._session.submit(self._replace, [*self._bound(row)[_KEY_COLUMNS:], *key])

    def insert_many(self, rows: Iterable[ViewRow], in_flight: int = 128) -> int:
        return self._session.run_many(self._insert, (self._bound(row) for row in rows), in_flight)

    def copy_many(self, rows: Iterable[tuple[ViewRow, int]]) -> int:
        """Writes each row with its given write time; returns how many. Later writes win."""
        params = ([*self._bound(row), written_us] for row, written_us in rows)
        return self._session.run_many(self._copy, params)

    def row(self, queue: QueueName, partition: Partition, enqueue_id: EnqueueId) -> ViewRow | None:
        rows = self._session.execute(self._read, [*_key(queue, partition), enqueue_id])
        return from_row(rows[0]) if rows else None

    def row_future(
        self, queue: QueueName, partition: Partition, enqueue_id: EnqueueId
    ) -> ResponseFuture:
        return self._session.submit(self._read, [*_key(queue, partition), enqueue_id])

    def find(
        self, queue: QueueName, partitions: Iterable[Partition], enqueue_id: EnqueueId
    ) -> Iterator[ViewRow]:
        """The rows of this id in `partitions`."""
        params = ([*slices, enqueue_id] for slices in _slices(queue, partitions))
        for _, rows in self._session.map(self._find, params, in_flight=8):
            yield from map(from_row, rows)

    def first_ids(
        self, queue: QueueName, partitions: Iterable[Partition], limit: int
    ) -> Iterator[tuple[Partition, TimedIds]]:
        """Rows of `partitions`: all of them, or at least `limit`."""
        params = ([*slices, limit] for slices in _slices(queue, partitions))
        for (_, bucket, *_), rows in self._session.map(self._first_ids, params, in_flight=2):
            for start, group in groupby(rows, key=itemgetter(0)):
                times = TimedIds.of_rows((row[1], row[2] and instant(row[2])) for row in group)
                yield Partition(instant(start), bucket), times

    def ids(self, queue: QueueName, partition: Partition) -> Iterator[RowId]:
        for _, ids in self.ids_of(queue, [partition], in_flight=1):
            yield from ids

    def by_ids(
        self, queue: QueueName, ids_by_partition: IdsByPartition, in_flight: int = 8
    ) -> Iterator[ViewRow]:
        """The existing rows of these ids, in no order, at most 100 ids a request."""
        keys = _id_batches(queue, ids_by_partition)
        for _, rows in self._session.map(self._by_ids, keys, in_flight):
            yield from map(from_row, rows)

    def written_by_ids(
        self, queue: QueueName, ids_by_partition: IdsByPartition, in_flight: int = 8
    ) -> Iterator[WrittenRow]:
        """As `by_ids`, each row with its write time."""
        keys = _id_batches(queue, ids_by_partition)
        for _, rows in self._session.map(self._written_by_ids, keys, in_flight):
            yield from map(_written_row, rows)

    def existing_ids(
        self,
        queue: QueueName,
        ids_by_partition: IdsByPartition,
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Partition, list[RowId]]]:
        """As `by_ids`, but with `RowId`s: which of these ids have a row. Reads no other rows."""
        keys = _id_batches(queue, ids_by_partition)
        for key, rows in self._session.map(self._row_ids_by_ids, keys, in_flight, ordered=ordered):
            yield key.partition, [_row_id(row) for row in rows]

    def delete_partition_future(
        self, queue: QueueName, partition: Partition, timestamp_us: int
    ) -> Pending:
        """Deletes what was written into the partition up to `timestamp_us`, and nothing later."""
        return self._session.begin(self._delete_partition, [timestamp_us, *_key(queue, partition)])

    def partitions(self, queue: QueueName) -> Iterator[Partition]:
        """Every partition of the queue, in no order. Scans all partition keys of the table."""
        # No key has the least token, so the open bound excludes none.
        ring = split(LOWEST, HIGHEST, _RANGES)
        for _, rows in self._session.map(self._partitions, ring, in_flight=4):
            for name, start, bucket in rows:
                if name == queue:
                    yield Partition(instant(start), bucket)

    def pages(
        self,
        read: PartitionQuery[Page],
        queue: QueueName,
        partitions: Iterable[Partition],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Partition, Page]]:
        """(partition, page), at least one page each; in the partitions' order if `ordered`."""
        keys = (_Key(queue, partition) for partition in partitions)
        ask: Any = self._session.packed.pages if read.packed else self._session.map
        statement = self.prepare_statement(read.cql)
        for key, page in ask(statement, keys, in_flight, ordered=ordered):
            yield key.partition, read.decode(page)

    def _bound(self, row: ViewRow) -> Params:
        unset: tuple[object, ...] = (None, {}, []) if self.table is QueueTable.V3 else (None,)
        return [UNSET_VALUE if value in unset else value for value in to_row(row).values()]


class _Key(list[object]):
    """The bound key of a partition, with ids if requested. It remembers the partition."""

    def __init__(self, queue: QueueName, partition: Partition, *ids: list[EnqueueId]) -> None:
        super().__init__([*_key(queue, partition), *ids])
        self.partition = partition


def _id_batches(queue: QueueName, ids_by_partition: IdsByPartition) -> Iterator[_Key]:
    return (
        _Key(queue, partition, list(ids[at : at + IDS_A_REQUEST]))
        for partition, ids in ids_by_partition
        for at in range(0, len(ids), IDS_A_REQUEST)
    )


def _slices(queue: QueueName, partitions: Iterable[Partition]) -> Iterator[list[Any]]:
    """Bound values: queue, bucket and the starts of at most 100 slices."""
    starts = ((partition.bucket, epoch_ms(partition.slice_start)) for partition in partitions)
    return ([queue, *batch] for batch in batches_by_key(starts, IDS_A_REQUEST))


def _row_id(row: Row) -> RowId:
    return RowId(row[0], None if row[1] is None else instant(row[1]), row[2])


def _written_row(row: Row) -> WrittenRow:
    return from_row(row[:-1]), row[-1]


def _key(queue: QueueName, partition: Partition) -> Sequence[object]:
    return [queue, epoch_ms(partition.slice_start), partition.bucket]
