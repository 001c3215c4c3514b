"""Read slices of the view by key: one task row a slice, one summary back for each partition.

The Cassandra driver runs in the Python worker. The frame of keys decides what is read, so the scan
costs this queue's rows and no other queue's marks (reference/spark-cassandra.md). Every key comes
back exactly once, empty or not: a missing summary is an unread partition, never an empty one.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeAlias, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt

from mailslice.codec.row import epoch_ms, instant
from mailslice.engine import id_arrays as ids_
from mailslice.engine import page_decoder, row_files
from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.id_arrays import Ids, Times
from mailslice.engine.row_files import Digest, PlanFiles, PlanPart, PlanWriter
from mailslice.engine.worker_stores import stores_of
from mailslice.model.mail import Partition, QueueName
from mailslice.model.names import QueueTable
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.ids import IDS_A_REQUEST, WIDTH, id_batches, id_list
from mailslice.stores.cassandra.packed import PackedPage

_ROW = struct.Struct(">16sq")
_IN_MEMORY = 4 * 1024 * 1024


class Spool:
    """Enqueue ids with their write times, 24 bytes each, in the order of `add`."""

    def __init__(self) -> None:
        self.count = 0
        self.newest_us = -(2**63)
        # Closed by `close`.
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115

    def add(self, enqueue_id: UUID, written_us: int) -> None:
        self._file.write(_ROW.pack(enqueue_id.bytes, written_us))
        self.count += 1
        self.newest_us = max(self.newest_us, written_us)

    def add_many(self, ids: Ids, written_us: Times) -> None:
        if len(ids):
            rows = np.empty((len(ids), _ROW.size), np.uint8)
            rows[:, :16] = ids
            rows[:, 16:] = written_us.astype(">i8").view(np.uint8).reshape(-1, 8)
            self._file.write(rows.tobytes())
            self.count += len(ids)
            self.newest_us = max(self.newest_us, int(written_us.max()))

    def chunks(self, first: int = 0, end: int | None = None) -> Iterator[tuple[Ids, Times]]:
        """The rows from `first` up to `end`, in chunks of at most ROWS_A_GROUP."""
        end = self.count if end is None else end
        self._file.seek(_ROW.size * first)
        for at in range(first, end, row_files.ROWS_A_GROUP):
            data = self._file.read(_ROW.size * min(row_files.ROWS_A_GROUP, end - at))
            rows = np.frombuffer(data, np.uint8).reshape(-1, _ROW.size)
            times = np.ascontiguousarray(rows[:, 16:]).view(">i8")[:, 0]
            yield rows[:, :16], times.astype(np.int64)

    def close(self) -> None:
        self._file.close()


P = TypeVar("P")
PartitionName: TypeAlias = tuple[str, int, int]
READS_IN_FLIGHT = 8
SURVIVORS_A_PARTITION = 1000
"""Ids of unmarked rows that a summary carries at most. Its count of them is complete."""
_AMONG_MANY_LIVE = 100
"""The limit where fewer than ten rows are dead for each unmarked one: more ids do not pay there."""


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One partition of the view. `table` is the value of a QueueTable."""

    table: str
    slice_ms: int
    bucket: int

    @property
    def name(self) -> PartitionName:
        """Table, slice start in ms, bucket."""
        return self.table, self.slice_ms, self.bucket

    @property
    def slice_start(self) -> datetime:
        return instant(self.slice_ms)

    @property
    def partition(self) -> Partition:
        return Partition(self.slice_start, self.bucket)


@dataclass(frozen=True, slots=True)
class PartitionScan(PartitionKey):
    """One partition as it was read.

    `dead` rows have a mark, `unmarked` rows none. `undated` rows have a mark, but no write time
    that bounds a delete. `planned` of the dead are in the plan, at `part`; `newest_us` is the
    greatest write time of those. `survivors` are some of the unmarked ids.
    """

    rows: int
    dead: int
    unmarked: int
    undated: int
    planned: int
    newest_us: int
    part: PlanPart
    digest: Digest
    survivors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scan(PlanFiles):
    """What to read (queue, tables, buckets of each slice), and where to write planned rows.

    A row that was written after `latest_us` (microseconds since the epoch) is not planned: its
    writer's clock is ahead. The delete would use that write time, and would remove rows that are
    inserted late today.
    """

    tables: tuple[QueueTable, ...]
    buckets: int
    latest_us: int


def scan(session: Session, spec: Scan, keys: Sequence[tuple[int, bool]]) -> list[PartitionScan]:
    """Read every table and bucket of the slices `keys`. Only aggregates come back.

    A key: (slice start in ms, whether its dead rows may be planned). A slice is planned whole or
    not at all: only when no row of it, in any bucket and table, is unmarked or undated.
    """

    def read(batches: Iterator[Sequence[tuple[int, bool]]]) -> Iterator[PartitionScan]:
        stores = stores_of(spec.settings)
        tables = [
            rows for rows in (stores.tables.v3, stores.tables.v4) if rows.table in spec.tables
        ]
        marks = Marks(stores.tables.deleted, spec.queue)
        with PlanWriter(spec.location, spec.folder) as writer:
            partitions = [
                partition
                for batch in batches
                for partition in _slices(spec, tables, batch, marks, writer)
            ]
        yield from partitions

    return run_on_keys(session, keys, read, attrgetter("rows"))


def pages_by_partition(
    read: Callable[..., Iterator[tuple[Partition, P]]],
    queue: QueueName,
    partitions: Sequence[Partition],
) -> Iterator[tuple[Partition, Iterator[P]]]:
    """Each partition, in order, with its pages: read them before the next. `read`: as `ids_of`."""
    pages = read(queue, partitions, READS_IN_FLIGHT, ordered=True)
    for partition, group in groupby(pages, key=itemgetter(0)):
        yield partition, map(itemgetter(1), group)


def written_ids(pages: Iterable[PackedPage]) -> Iterator[tuple[Ids, Times]]:
    """Ids and write times (0: none) of pages of `packed_written_ids_of`."""
    for page in pages:
        if page.rows:
            columns = page_decoder.decode(page, _WRITTEN_IDS)
            yield ids_.of_halves(columns["id.high"], columns["id.low"]), columns["written"]


class Marks:
    """Which ids of a page are marked."""

    def __init__(self, deleted: DeletedMails, queue: QueueName) -> None:
        self._deleted = deleted
        self._queue = queue

    def of(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Whether each id has a mark."""
        marked = np.zeros(len(ids), np.bool_)  # an id without an answer counts as live
        for at, packed, marked_ids in self._deleted.look_up(
            self._queue, enumerate(id_batches(ids_.pack(ids))), READS_IN_FLIGHT
        ):
            first, count = at * IDS_A_REQUEST, len(packed) // WIDTH
            if marked_ids is None:  # all of them
                marked[first : first + count] = True
            elif marked_ids:
                marked[first : first + count] = [id_ in marked_ids for id_ in id_list(packed)]
        return marked


def _slices(
    spec: Scan,
    tables: Sequence[EnqueuedMails],
    keys: Sequence[tuple[int, bool]],
    marks: Marks,
    writer: PlanWriter,
) -> Iterator[PartitionScan]:
    """Read slice by slice, all tables together: a slice is planned only after its last row."""
    partitions = [
        Partition(instant(slice_ms), bucket)
        for slice_ms, _ in keys
        for bucket in range(spec.buckets)
    ]
    read = [
        (rows.table, pages_by_partition(rows.packed_written_ids_of, spec.queue, partitions))
        for rows in tables
    ]
    for _, may_plan in keys:
        counts, clean = [], may_plan
        with closing(Spool()) as spool:
            for table, partitions_read in [*read] * spec.buckets:
                partition, pages = next(partitions_read)
                counts.append(_Count(spec, table, partition))
                clean &= counts[-1].read(written_ids(pages), marks, spool if clean else None)
            for count in counts:
                yield count.finish(writer, spool if clean else None)


class Survivors:
    """The first unmarked ids of a partition, and the count of all."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._count = 0

    def add(self, live: Ids) -> None:
        self._count += len(live)
        room = SURVIVORS_A_PARTITION - len(self._ids)
        self._ids += [str(UUID(bytes=id_.tobytes())) for id_ in live[:room]]

    def shown(self, rows: int) -> tuple[str, ...]:
        """The ids that the summary of a partition with `rows` rows carries."""
        among_many = 10 * self._count > rows - self._count
        return tuple(self._ids[:_AMONG_MANY_LIVE] if among_many else self._ids)


class _Count:
    """Counts the rows of one partition."""

    def __init__(self, spec: Scan, table: QueueTable, partition: Partition) -> None:
        self._spec = spec
        self._name = (table.value, epoch_ms(partition.slice_start), partition.bucket)
        self._rows = self._unmarked = self._undated = self._newest_us = self._first = 0
        self._survivors = Survivors()

    def read(self, pages: Iterable[tuple[Ids, Times]], marks: Marks, spool: Spool | None) -> bool:
        """Read the pages; whether all rows may be planned. Rows go to `spool` until one may not."""
        self._first = spool.count if spool else 0
        for ids, written_us in pages:
            marked = marks.of(ids)
            bounds_no_delete = (written_us == 0) | (written_us > self._spec.latest_us)
            self._rows += len(ids)
            self._unmarked += len(ids) - int(marked.sum())
            self._undated += int((marked & bounds_no_delete).sum())
            self._survivors.add(ids[~marked])
            self._newest_us = max(self._newest_us, int(written_us.max(initial=0)))
            if spool and not (self._unmarked or self._undated):
                spool.add_many(ids, written_us)
        return not (self._unmarked or self._undated)

    def finish(self, writer: PlanWriter, spool: Spool | None) -> PartitionScan:
        """The summary. With a `spool` all rows are planned."""
        part, digest = row_files.NO_PART, Digest()
        if spool and self._rows:
            rows = spool.chunks(self._first, self._first + self._rows)
            part, digest = writer.add(*self._name, rows)
        counts = (self._rows, self._rows - self._unmarked, self._unmarked, self._undated)
        planned = (self._rows, self._newest_us) if spool else (0, 0)
        survivors = self._survivors.shown(self._rows)
        return PartitionScan(*self._name, *counts, *planned, part, digest, survivors)


_WRITTEN_IDS = page_decoder.Layout((("id", page_decoder.UUID), ("written", page_decoder.LONG)))
