"""The tables of the queue view in memory: the same methods and write times, no server.

For tests and experiments. The contract tests (tests/contracts) run on these and on
Cassandra. Write times are microseconds of a counter that only grows, unless `now_us` is set.
Options that only tell a server how to work (`in_flight`, `ordered`) are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

from mailslice.codec.row import epoch_ms, from_row, instant, to_row
from mailslice.model.errors import ContentMissing
from mailslice.model.mail import BlobId, EnqueueId, Partition, QueueName, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.stages import MailStage
from mailslice.stores.cassandra.deleted_mails import ALL, Marked, T
from mailslice.stores.cassandra.enqueued_mails import (
    IdsByPartition,
    Page,
    ReadPages,
    RowId,
    WrittenRow,
)
from mailslice.stores.cassandra.ids import TimedIds, id_set, pack, unpack
from mailslice.stores.cassandra.own import DelayState, SliceStatistic
from mailslice.stores.cassandra.starts import Start

Result = TypeVar("Result")
Microseconds = Callable[[], int]
Key = tuple[QueueName, Partition]


class Done(Generic[Result]):
    """A completed future with the two methods of the driver's ResponseFuture that are needed."""

    def __init__(self, value: Result) -> None:
        self._value = value

    def result(self) -> Result:
        """The value."""
        return self._value

    def add_callbacks(self, callback: Callable[[Result], object], _: object) -> None:
        """Call back at once."""
        callback(self._value)


class _PartitionQuery(Generic[Page]):
    """The double of `enqueued_mails.PartitionQuery`."""

    def __init__(self, decode: Callable[[list[WrittenRow]], Page]) -> None:
        self._decode = decode

    def __get__(self, table: MemoryEnqueuedMails, _owner: type) -> ReadPages[Page]:
        return partial(MemoryEnqueuedMails.pages, table, self._decode)


class MemoryEnqueuedMails:
    """enqueuedMailsV3 or V4."""

    rows_of = _PartitionQuery(lambda rows: [row for row, _ in rows])
    written_rows_of = _PartitionQuery[list[WrittenRow]](lambda rows: rows)
    ids_of = _PartitionQuery(lambda rows: [_row_id(entry) for entry in rows])
    packed_ids_of = _PartitionQuery(lambda rows: pack(row.enqueue_id for row, _ in rows))
    timed_ids_of = _PartitionQuery(
        lambda rows: TimedIds.of_rows((row.enqueue_id, row.enqueued_time) for row, _ in rows)
    )

    def __init__(self, table: QueueTable, now_us: Microseconds) -> None:
        self.table = table
        self._now_us = now_us
        self._partitions: dict[Key, dict[EnqueueId, tuple[ViewRow, int]]] = {}
        self._tombstones: dict[Key, int] = {}

    def insert_future(self, row: ViewRow) -> Done[None]:
        self._write(row, self._now_us())
        return Done(None)

    def _write(self, row: ViewRow, written: int) -> None:
        key = (row.queue, row.partition)
        if written > self._tombstones.get(key, 0):
            partition = self._partitions.setdefault(key, {})
            earlier = partition.get(row.enqueue_id)
            if earlier is None or earlier[1] <= written:
                stored = from_row(to_row(row))  # loses what Cassandra's columns lose
                partition[row.enqueue_id] = (stored, written)

    def replace_future(self, row: ViewRow) -> Done[list[tuple[bool]]]:
        exists = self.row(row.queue, row.partition, row.enqueue_id) is not None
        if exists:
            self.insert_future(row)
        return Done([(exists,)])

    def insert_many(self, rows: Iterable[ViewRow], *_: object, **__: object) -> int:
        return len([self.insert_future(row) for row in rows])

    def copy_many(self, rows: Iterable[tuple[ViewRow, int]], *_: object, **__: object) -> int:
        copied = list(rows)
        for row, written in copied:
            self._write(row, written)
        return len(copied)

    def row(self, queue: QueueName, partition: Partition, enqueue_id: EnqueueId) -> ViewRow | None:
        row, _ = self._partitions.get((queue, partition), {}).get(enqueue_id, (None, 0))
        return row

    def row_future(
        self, queue: QueueName, partition: Partition, enqueue_id: EnqueueId
    ) -> Done[list[dict[str, object]]]:
        row = self.row(queue, partition, enqueue_id)
        return Done([] if row is None else [to_row(row)])

    def ids(self, queue: QueueName, partition: Partition) -> Iterator[RowId]:
        return map(_row_id, self._sorted(queue, partition))

    def find(
        self,
        queue: QueueName,
        partitions: Iterable[Partition],
        enqueue_id: EnqueueId,
        *_: object,
        **__: object,
    ) -> Iterator[ViewRow]:
        return self.by_ids(queue, ((partition, [enqueue_id]) for partition in partitions))

    def first_ids(
        self, queue: QueueName, partitions: Iterable[Partition], _: int
    ) -> Iterator[tuple[Partition, TimedIds]]:
        return self.timed_ids_of(queue, partitions)

    def by_ids(
        self, queue: QueueName, wanted: IdsByPartition, *_: object, **__: object
    ) -> Iterator[ViewRow]:
        return (row for row, _ in self.written_by_ids(queue, wanted))

    def written_by_ids(
        self, queue: QueueName, wanted: IdsByPartition, *_: object, **__: object
    ) -> Iterator[WrittenRow]:
        for partition, ids in wanted:
            yield from (
                entry for entry in self._sorted(queue, partition) if entry[0].enqueue_id in ids
            )

    def existing_ids(
        self, queue: QueueName, wanted: IdsByPartition, *_: object, **__: object
    ) -> Iterator[tuple[Partition, list[RowId]]]:
        for partition, ids in wanted:
            yield partition, [row for row in self.ids(queue, partition) if row.enqueue_id in ids]

    def delete_partition_future(
        self, queue: QueueName, partition: Partition, timestamp_us: int
    ) -> Done[None]:
        key = (queue, partition)
        self._tombstones[key] = max(timestamp_us, self._tombstones.get(key, 0))
        rows = self._partitions.get(key, {}).items()
        self._partitions[key] = {one: entry for one, entry in rows if entry[1] > timestamp_us}
        return Done(None)

    def partitions(self, queue: QueueName) -> Iterator[Partition]:
        by_partition = list(self._partitions.items())
        return (partition for (name, partition), rows in by_partition if name == queue and rows)

    def pages(
        self,
        decode: Callable[[list[WrittenRow]], Page],
        queue: QueueName,
        partitions: Iterable[Partition],
        *_: object,
        **__: object,
    ) -> Iterator[tuple[Partition, Page]]:
        return ((partition, decode(self._sorted(queue, partition))) for partition in partitions)

    def _sorted(self, queue: QueueName, partition: Partition) -> list[WrittenRow]:
        written = self._partitions.get((queue, partition), {})
        return sorted(written.values(), key=lambda entry: entry[0].enqueue_id.bytes)


def _row_id(entry: WrittenRow) -> RowId:
    row, written = entry
    return RowId(row.enqueue_id, row.enqueued_time, written)


class MemoryDeletedMails:
    """deletedMailsV2."""

    def __init__(self) -> None:
        self._marks: set[tuple[QueueName, EnqueueId]] = set()

    def mark_future(self, queue: QueueName, enqueue_id: EnqueueId) -> Done[None]:
        self._marks.add((queue, enqueue_id))
        return Done(None)

    def mark_many(
        self, queue: QueueName, ids: Iterable[EnqueueId], *_: object, **__: object
    ) -> int:
        return len([self.mark_future(queue, enqueue_id) for enqueue_id in ids])

    def is_marked_future(
        self, queue: QueueName, enqueue_id: EnqueueId
    ) -> Done[list[tuple[EnqueueId]]]:
        return Done([(enqueue_id,)] if self.is_marked(queue, enqueue_id) else [])

    def is_marked(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        return (queue, enqueue_id) in self._marks

    def marked(
        self, queue: QueueName, ids: Iterable[EnqueueId], *_: object, **__: object
    ) -> set[EnqueueId]:
        return {enqueue_id for enqueue_id in ids if self.is_marked(queue, enqueue_id)}

    def look_up(
        self, queue: QueueName, asked: Iterable[tuple[T, bytes]], *_: object, **__: object
    ) -> Iterator[tuple[T, bytes, Marked]]:
        for what, packed in asked:
            marked = pack(self.marked(queue, unpack(packed)))
            yield what, packed, ALL if len(marked) == len(packed) else id_set(marked)

    def drop_packed(self, queue: QueueName, lists: Iterable[bytes], *_: object) -> int:
        requests = [unpack(packed) for packed in lists]
        self._marks -= {(queue, enqueue_id) for ids in requests for enqueue_id in ids}
        return len(requests)

    def packed_ids_of(self, queue: QueueName, *_: object) -> Iterator[bytes]:
        yield pack(enqueue_id for name, enqueue_id in self._marks if name == queue)


class MemoryStarts:
    """browseStart or contentStart."""

    def __init__(self, now_us: Microseconds) -> None:
        self._now_us = now_us
        self._starts: dict[QueueName, Start] = {}

    def get(self, queue: QueueName) -> Start | None:
        return self._starts.get(queue)

    def insert_first(self, queue: QueueName, value: datetime) -> bool:
        first = queue not in self._starts
        if first:
            self.write(queue, value, self._now_us())
        return first

    def write(self, queue: QueueName, value: datetime, timestamp_us: int) -> None:
        start, earlier = Start(instant(epoch_ms(value)), timestamp_us), self._starts.get(queue)
        if earlier is None or _order(start) > _order(earlier):
            self._starts[queue] = start


def _order(start: Start) -> tuple[int, datetime]:
    return start.written_us, start.value


class MemoryEventStore:
    """James' event store."""

    def __init__(self) -> None:
        self._events: dict[str, dict[int, str]] = {}

    def events(self, aggregate: str) -> list[tuple[int, str]]:
        return sorted(self._events.get(aggregate, {}).items())

    def append(self, aggregate: str, event_id: int, event: str) -> bool:
        events = self._events.setdefault(aggregate, {})
        if event_id in events:
            return False
        events[event_id] = event
        return True


class MemoryTables:
    """The double of QueueTables. `existing`: the tables `existing`, and the one that is written."""

    def __init__(
        self,
        settings: Settings,
        existing: Sequence[QueueTable] = (QueueTable.V4,),
        now_us: Microseconds | None = None,
    ) -> None:
        now_us = now_us or count(1).__next__
        self.v3 = MemoryEnqueuedMails(QueueTable.V3, now_us)
        self.v4 = MemoryEnqueuedMails(QueueTable.V4, now_us)
        self.written = self.v3 if settings.queue.table is QueueTable.V3 else self.v4
        self.existing = tuple(
            rows for rows in (self.v3, self.v4) if rows.table in existing or rows is self.written
        )
        self.deleted = MemoryDeletedMails()
        self.browse_starts = MemoryStarts(now_us)
        self.content_starts = MemoryStarts(now_us)
        self.event_store = MemoryEventStore()

    def existing_now(self) -> tuple[MemoryEnqueuedMails, ...]:
        return self.existing

    def refresh(self) -> None: ...

    def extend(self) -> None: ...

    def missing(self) -> tuple[str, ...]:
        return ()

    def require_keyspace(self) -> None:
        return

    def content_start(self, queue: QueueName) -> Start | None:
        return self.content_starts.get(queue)

    def create(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        del names
        return ()


class MemoryMailStages:
    """The table mail_stages, without TTL."""

    def __init__(self) -> None:
        self._records: dict[tuple[QueueName, EnqueueId], MailStage] = {}

    def prepare(self) -> None:
        return

    def get(self, queue: QueueName, enqueue_id: EnqueueId) -> MailStage | None:
        return self._records.get((queue, enqueue_id))

    def advance(self, queue: QueueName, before: MailStage | None, after: MailStage) -> bool:
        if _state(self.get(queue, after.enqueue_id)) != _state(before):
            return False
        updated = None if after.updated is None else instant(epoch_ms(after.updated))
        self._records[queue, after.enqueue_id] = replace(after, updated=updated)
        return True


def _state(record: MailStage | None) -> tuple[str, int, int] | None:
    if record is None or record.step == 0:
        return None
    return record.owner, record.attempt, record.step


class MemoryBlobs:
    """The double of a bucket."""

    def __init__(self) -> None:
        self._blobs: dict[BlobId, bytes] = {}

    def ensure_bucket(self) -> bool:
        return False

    def put(self, blob_id: BlobId, content: bytes) -> None:
        self._blobs[blob_id] = bytes(content)

    def get(self, blob_id: BlobId) -> bytes:
        if blob_id not in self._blobs:
            raise ContentMissing(f"no blob {blob_id}")
        return self._blobs[blob_id]

    def pieces(self, blob_id: BlobId) -> Iterator[bytes]:
        yield self.get(blob_id)


class MemoryTopology:
    """The double of RabbitMQ's topology: the names of its mail queues."""

    def __init__(self) -> None:
        self._queues: set[QueueName] = set()

    def declare(self, queue: QueueName) -> None:
        self._queues.add(queue)

    def exists(self, queue: QueueName) -> bool:
        return queue in self._queues

    def names(self) -> list[QueueName]:
        return sorted(self._queues)

    def check(self, queue: QueueName) -> None:
        """Does nothing: a topology in memory cannot differ from the settings."""


class MemoryStores:
    """The double of Stores, with the parts that `admin` and `view` need."""

    def __init__(self, settings: Settings, **tables: Any) -> None:
        self.settings = settings
        self.tables = MemoryTables(settings, **tables)
        self.blobs = MemoryBlobs()
        self.rabbitmq = MemoryTopology()
        self.remembered: list[SliceStatistic] = []

    def close(self) -> None:
        return

    def remembered_slices(self, _: QueueName) -> list[SliceStatistic]:
        return self.remembered

    def delay_states(self, *_: object) -> dict[EnqueueId, DelayState]:
        """No mail is delayed."""
        return {}

    def with_delays(
        self, _: QueueName, rows: Iterable[ViewRow]
    ) -> Iterator[tuple[ViewRow, DelayState]]:
        return ((row, DelayState()) for row in rows)
