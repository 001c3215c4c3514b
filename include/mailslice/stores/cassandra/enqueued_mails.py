"""enqueuedMailsV3 and enqueuedMailsV4: the rows of the queue view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise

from cassandra.cluster import ResponseFuture
from cassandra.query import UNSET_VALUE, PreparedStatement

from mailslice.codec.row import COLUMNS, epoch_ms, from_row, instant, to_row
from mailslice.model.mail import EnqueueId, Place, QueueName, ViewRow
from mailslice.model.names import QueueTable
from mailslice.stores.cassandra.ids import TimedIds
from mailslice.stores.cassandra.packed import PackedPage
from mailslice.stores.cassandra.session import CassandraSession, Params, Pending, Row

_PLACE = "queuename = ? AND timerangestart = ? AND bucketid = ?"
_KEY_COLUMNS = 4
"""The first of COLUMNS are the key."""
_RING = 2**63
_RANGES = 16


@dataclass(frozen=True, slots=True)
class RowId:
    """What a cleanup needs of a row: `written_us` is the WRITETIME of the row, microseconds since the epoch; None where the row has no enqueued time."""

    enqueue_id: EnqueueId
    enqueued_time: datetime | None
    written_us: int | None


WrittenRow = tuple[ViewRow, int | None]
"""A row and its write time, microseconds since the epoch; None where the row has no enqueued time."""


class EnqueuedMails:
    """One of the two tables. Statements are prepared at their first use."""

    def __init__(self, session: CassandraSession, table: QueueTable) -> None:
        self._session = session
        self.table = table
        self._name = f"{session.settings.keyspace}.{table.cql}"

    def prepare(self) -> None:
        """Prepare what an event loop writes, as `DeletedMails.prepare` does the marks."""
        self._insert, self._replace  # noqa: B018 - cached properties

    def insert_future(self, row: ViewRow) -> ResponseFuture:
        """Write the row. Nothing is bound for what is null (nor, in V3, for empty collections): binding null would write a tombstone."""
        return self._session.submit(self._insert, self._bound(row))

    def replace_future(self, row: ViewRow) -> ResponseFuture:
        """Write the row's values over the row of its key, if there is one still: a row that a cleanup deleted meanwhile must not come back.

        All columns that are not null, so that the write time that a later cleanup reads is that of this write. An LWT: only for rare writes.
        """
        return self._session.submit(
            self._replace,
            [*self._bound(row)[_KEY_COLUMNS:], *_key(row.queue, row.place), row.enqueue_id],
        )

    def insert_many(self, rows: Iterable[ViewRow], in_flight: int = 128) -> int:
        """Write the rows; how many."""
        return self._session.run_many(self._insert, (self._bound(row) for row in rows), in_flight)

    def read(self, queue: QueueName, place: Place, enqueue_id: EnqueueId) -> ViewRow | None:
        """The row, or None."""
        rows = self._session.execute(self._read, [*_key(queue, place), enqueue_id])
        return from_row(rows[0]) if rows else None

    def rows(self, queue: QueueName, place: Place) -> Iterator[ViewRow]:
        """The rows of a partition, by enqueue id, a page at a time."""
        for _, rows in self.rows_of(queue, [place], in_flight=1):
            yield from rows

    def rows_of(
        self, queue: QueueName, places: Iterable[Place], in_flight: int = 8, *, ordered: bool = True
    ) -> Iterator[tuple[Place, list[ViewRow]]]:
        """Pages of rows of many partitions, `in_flight` read beside each other; an empty partition gives one empty page."""
        for place, rows in self._pages(self._rows, queue, places, in_flight, ordered=ordered):
            yield place, [from_row(row) for row in rows]

    def find(
        self, queue: QueueName, places: Iterable[Place], enqueue_id: EnqueueId, in_flight: int = 64
    ) -> Iterator[ViewRow]:
        """The row of this id, wherever in `places` it is."""
        for _, rows in self._session.map(
            self._read, ([*_key(queue, place), enqueue_id] for place in places), in_flight
        ):
            yield from map(from_row, rows)

    def some(
        self,
        queue: QueueName,
        wanted: Iterable[tuple[Place, Sequence[EnqueueId]]],
        in_flight: int = 8,
    ) -> Iterator[ViewRow]:
        """The rows of these ids in these partitions, at most 100 ids a request, in no order; those that are gone are left out."""
        for _, rows in self._session.map(self._some, _hundreds(queue, wanted), in_flight):
            yield from map(from_row, rows)

    def written_rows_of(
        self,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, list[WrittenRow]]]:
        """As `rows_of`, each row with its write time."""
        for place, rows in self._pages(
            self._written_rows, queue, places, in_flight, ordered=ordered
        ):
            yield place, [(from_row(row[:-1]), row[-1]) for row in rows]

    def some_written(
        self,
        queue: QueueName,
        wanted: Iterable[tuple[Place, Sequence[EnqueueId]]],
        in_flight: int = 8,
    ) -> Iterator[WrittenRow]:
        """As `some`, each row with its write time."""
        for _, rows in self._session.map(self._some_written, _hundreds(queue, wanted), in_flight):
            yield from ((from_row(row[:-1]), row[-1]) for row in rows)

    def copy_many(self, rows: Iterable[tuple[ViewRow, int]], in_flight: int = 128) -> int:
        """Write each row with the write time that it has elsewhere: what was written or deleted later stays as it is; how many."""
        return self._session.run_many(
            self._copy, ([*self._bound(row), written_us] for row, written_us in rows), in_flight
        )

    def some_ids(
        self,
        queue: QueueName,
        wanted: Iterable[tuple[Place, Sequence[EnqueueId]]],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, list[RowId]]]:
        """As `some`, with `RowId`s: which of these ids have a row, without reading the others of the partition."""
        for key, rows in self._session.map(
            self._some_ids, _hundreds(queue, wanted), in_flight, ordered=ordered
        ):
            yield key.place, [_row_id(row) for row in rows]  # type: ignore[attr-defined]

    def ids(self, queue: QueueName, place: Place) -> Iterator[RowId]:
        """Id, enqueued time and write time of each row of a partition."""
        for _, rows in self.ids_of(queue, [place], in_flight=1):
            yield from rows

    def ids_of(
        self,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, list[RowId]]]:
        """As `rows_of`, with `RowId`s."""
        for place, rows in self._pages(self._ids, queue, places, in_flight, ordered=ordered):
            yield place, [_row_id(row) for row in rows]

    def written_ids_of(
        self,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, list[tuple[EnqueueId, int | None]]]]:
        """As `rows_of`, with (enqueue id, write time) alone: a third less work than `ids_of`, for millions of rows."""
        yield from self._pages(self._written_ids, queue, places, in_flight, ordered=ordered)

    def bare_ids_of(
        self,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, list[EnqueueId]]]:
        """As `rows_of`, with enqueue ids alone: what counting needs, and the cheapest read there is."""
        for place, rows in self._pages(self._bare_ids, queue, places, in_flight, ordered=ordered):
            yield place, [row[0] for row in rows]

    def packed_ids_of(
        self,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, bytes]]:
        """As `bare_ids_of`, packed (`stores.cassandra.ids`): no object is made of a row."""
        for place, page in self._packed(self._bare_ids, queue, places, in_flight, ordered=ordered):
            yield place, page.data

    def timed_ids_of(
        self,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, TimedIds]]:
        """As `packed_ids_of`, with the enqueued times."""
        for place, page in self._packed(self._timed_ids, queue, places, in_flight, ordered=ordered):
            yield place, TimedIds.of_page(page.rows, page.data)

    def packed_written_ids_of(
        self,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Place, PackedPage]]:
        """As `written_ids_of`, a page as it came over the wire."""
        return self._packed(self._written_ids, queue, places, in_flight, ordered=ordered)

    def delete_partition(self, queue: QueueName, place: Place, timestamp_us: int) -> None:
        """Delete what was written into the partition up to `timestamp_us`, and nothing that was written later."""
        self._session.execute(self._delete_partition, [timestamp_us, *_key(queue, place)])

    def delete_partition_future(self, queue: QueueName, place: Place, timestamp_us: int) -> Pending:
        """As `delete_partition`, without waiting; its `result()` raises as that."""
        return self._session.begin(self._delete_partition, [timestamp_us, *_key(queue, place)])

    def places(self, queue: QueueName) -> Iterator[Place]:
        """Every partition of the queue: a scan of the partition keys of the whole table, by token ranges, in no order."""
        for _, rows in self._session.map(self._places, _token_ranges(), in_flight=4):
            for name, start, bucket in rows:
                if name == queue:
                    yield Place(instant(start), bucket)

    def _pages(
        self,
        statement: PreparedStatement,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int,
        *,
        ordered: bool,
    ) -> Iterator[tuple[Place, list[Row]]]:
        params = (_Key(queue, place) for place in places)
        for key, rows in self._session.map(statement, params, in_flight, ordered=ordered):
            yield key.place, rows  # type: ignore[attr-defined]

    def _packed(
        self,
        statement: PreparedStatement,
        queue: QueueName,
        places: Iterable[Place],
        in_flight: int,
        *,
        ordered: bool,
    ) -> Iterator[tuple[Place, PackedPage]]:
        for key, page in self._session.packed.pages(
            statement, (_Key(queue, place) for place in places), in_flight, ordered=ordered
        ):
            yield key.place, page

    def _bound(self, row: ViewRow) -> Params:
        values = to_row(row).values()
        if self.table is QueueTable.V3:
            return [
                UNSET_VALUE if value is None or value in ({}, []) else value for value in values
            ]
        return [UNSET_VALUE if value is None else value for value in values]

    @cached_property
    def _insert(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
        )

    @cached_property
    def _replace(self) -> PreparedStatement:
        values = ", ".join(f"{column} = ?" for column in COLUMNS[_KEY_COLUMNS:])
        return self._session.prepare(
            f"UPDATE {self._name} SET {values} WHERE {_PLACE} AND enqueueid = ? IF EXISTS",
            idempotent=False,
        )

    @cached_property
    def _copy(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) USING TIMESTAMP ?"
        )

    @cached_property
    def _written_rows(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(COLUMNS)}, WRITETIME(enqueuedtime) FROM {self._name} WHERE {_PLACE}"
        )

    @cached_property
    def _some_written(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(COLUMNS)}, WRITETIME(enqueuedtime) FROM {self._name} WHERE {_PLACE} AND enqueueid IN ?"
        )

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(COLUMNS)} FROM {self._name} WHERE {_PLACE} AND enqueueid = ?"
        )

    @cached_property
    def _rows(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(COLUMNS)} FROM {self._name} WHERE {_PLACE}"
        )

    @cached_property
    def _some(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(COLUMNS)} FROM {self._name} WHERE {_PLACE} AND enqueueid IN ?"
        )

    @cached_property
    def _some_ids(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid, enqueuedtime, WRITETIME(enqueuedtime) FROM {self._name} WHERE {_PLACE} AND enqueueid IN ?"
        )

    @cached_property
    def _ids(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid, enqueuedtime, WRITETIME(enqueuedtime) FROM {self._name} WHERE {_PLACE}"
        )

    @cached_property
    def _written_ids(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid, WRITETIME(enqueuedtime) FROM {self._name} WHERE {_PLACE}"
        )

    @cached_property
    def _bare_ids(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT enqueueid FROM {self._name} WHERE {_PLACE}")

    @cached_property
    def _timed_ids(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid, enqueuedtime FROM {self._name} WHERE {_PLACE}"
        )

    @cached_property
    def _delete_partition(self) -> PreparedStatement:
        return self._session.prepare(f"DELETE FROM {self._name} USING TIMESTAMP ? WHERE {_PLACE}")

    @cached_property
    def _places(self) -> PreparedStatement:
        token = "token(queuename, timerangestart, bucketid)"  # noqa: S105 - of the partitioner
        return self._session.prepare(
            f"SELECT DISTINCT queuename, timerangestart, bucketid FROM {self._name} WHERE {token} > ? AND {token} <= ?"
        )


class _Key(list[object]):
    """The bound key of a partition, and ids when some are asked for, which remembers the place."""

    def __init__(self, queue: QueueName, place: Place, *ids: list[EnqueueId]) -> None:
        super().__init__([*_key(queue, place), *ids])
        self.place = place


def _hundreds(
    queue: QueueName, wanted: Iterable[tuple[Place, Sequence[EnqueueId]]]
) -> Iterator[_Key]:
    return (
        _Key(queue, place, list(ids[at : at + 100]))
        for place, ids in wanted
        for at in range(0, len(ids), 100)
    )


def _row_id(row: Row) -> RowId:
    return RowId(row[0], None if row[1] is None else instant(row[1]), row[2])


def _key(queue: QueueName, place: Place) -> Sequence[object]:
    return [queue, epoch_ms(place.slice_start), place.bucket]


def _token_ranges() -> Iterator[Params]:
    """The ring of Murmur3 in equal parts. No key has the least token, so the open lower bound loses nothing."""
    edges = [-_RING + part * (2 * _RING // _RANGES) for part in range(_RANGES)] + [_RING - 1]
    return ([low, high] for low, high in pairwise(edges))
