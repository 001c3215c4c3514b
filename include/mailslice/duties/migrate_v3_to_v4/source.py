"""Reads the rows of a queue in V3, a partition at a time. Ids to copy go to the plan's files.

A copy has the same partition as its row: the same slice start, also one of an older, larger window,
and the same bucket. So the headers of its message, which name the partition, stay correct.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, field
from datetime import datetime, timedelta
from uuid import uuid4

import pyarrow as pa

from mailslice.codec.row import epoch_ms, instant
from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.id_arrays import texts
from mailslice.engine.partition_scan import READS_IN_FLIGHT, Spool, pages_by_partition
from mailslice.engine.row_files import PlanFiles, RowGroup, RowWriter
from mailslice.engine.worker_stores import stores_of
from mailslice.model.errors import Refused
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.model.names import QueueTable
from mailslice.model.slices import slice_start
from mailslice.stores import Stores
from mailslice.stores.cassandra.ddl import tables_of
from mailslice.stores.cassandra.enqueued_mails import RowId
from mailslice.view.configuration import Shape

BEHIND, UNREACHABLE = "behind browseStart", "no slice or bucket of the view"


@dataclass(frozen=True, slots=True)
class Source(PlanFiles):
    """The queue, and the run's folder. `v4`: whether enqueuedMailsV4 exists."""

    v4: bool = True


@dataclass(frozen=True, slots=True)
class PlannedGroup(RowGroup):
    """A row group of the plan, with rows of one partition."""

    slice_ms: int
    bucket: int

    @property
    def partition(self) -> Partition:
        return Partition(instant(self.slice_ms), self.bucket)


@dataclass(slots=True)
class V3Partition:
    """A partition as it was read.

    Of its `rows`, `dead` ones have a mark, `undated` ones neither mark nor write time. All others
    are `live`: V4 has `copied` ones already, and `groups` has those to copy. Both stay empty if the
    partition has a `skip_reason`.
    """

    partition: Partition
    skip_reason: str | None
    rows: int = 0
    dead: int = 0
    live: int = 0
    undated: int = 0
    copied: int = 0
    groups: list[PlannedGroup] = field(default_factory=list)


def has_table(stores: Stores, table: QueueTable) -> bool:
    return table.cql in tables_of(stores.cassandra, stores.settings.cassandra.keyspace)


def require_v4(stores: Stores) -> bool:
    """Whether V4 exists. Raises Refused if it does not and the settings do not ask for it."""
    existing = has_table(stores, QueueTable.V4)
    if not existing and stores.settings.queue.table is not QueueTable.V4:
        raise Refused(
            "there is no table enqueuedMailsV4, and MAILSLICE_QUEUE_TABLE=v3: say v4, so that new "
            "rows go there, before old ones are copied"
        )
    return existing


def first_slice(stores: Stores, queue: QueueName, window: timedelta) -> datetime | None:
    """The first slice in view by the current browseStart, floored as browse does; None: all are."""
    start = stores.tables.browse_starts.get(queue)
    return None if start is None else slice_start(start.value, window)


def v3_partitions(
    stores: Stores, queue: QueueName, view: Shape
) -> list[tuple[Partition, str | None]]:
    """Every partition of V3, oldest first, and why a browse of V4 would miss it (None if not)."""
    first = first_slice(stores, queue, view.window)

    def skip_reason(partition: Partition) -> str | None:
        start = partition.slice_start
        if first is not None and start < first:
            return BEHIND
        known = partition.bucket < view.buckets and slice_start(start, view.window) == start
        return None if known else UNREACHABLE

    partitions = sorted(stores.tables.v3.partitions(queue), key=astuple)
    return [(partition, skip_reason(partition)) for partition in partitions]


def read_partitions(
    session: Session, source: Source, keys: Sequence[tuple[Partition, str | None]]
) -> list[V3Partition]:
    """Read each partition of `v3_partitions`. Gives one result for each key."""

    def read(batches: Iterator[Sequence[tuple[Partition, str | None]]]) -> Iterator[V3Partition]:
        file = f"plan/rows-{uuid4()}.parquet"
        with closing(RowWriter(source.location, source.folder, file)) as writer:
            scan = _Scan(source, stores_of(source.settings), writer)
            results = [one for batch in batches for one in scan.partitions(batch)]
        yield from results

    return run_on_keys(session, keys, read)


@dataclass(frozen=True, slots=True)
class _Scan:
    source: Source
    stores: Stores
    writer: RowWriter

    def partitions(self, keys: Sequence[tuple[Partition, str | None]]) -> Iterator[V3Partition]:
        pages_of = pages_by_partition(
            self.stores.tables.v3.ids_of, self.source.queue, [partition for partition, _ in keys]
        )
        for key, (_, pages) in zip(keys, pages_of, strict=True):
            result = V3Partition(*key)
            with closing(Spool()) as spool:
                for page in pages:
                    self._count(result, page, spool)
                self._write(result, spool)
            yield result

    def _count(self, result: V3Partition, page: Sequence[RowId], spool: Spool) -> None:
        if not page:
            return
        times, queue = {row.enqueue_id: row.written_us for row in page}, self.source.queue
        marked = self.stores.tables.deleted.marked(queue, list(times), READS_IN_FLIGHT)
        live = {mail: at for mail, at in times.items() if mail not in marked and at is not None}
        result.rows += len(page)
        result.dead += len(marked)
        result.live += len(live)
        result.undated += len(page) - len(marked) - len(live)
        if result.skip_reason is None and live:
            copied = set[EnqueueId]()
            if self.source.v4:
                copied = copies_in_v4(self.stores, queue, result.partition, live)
            result.copied += len(copied)
            for mail, at in live.items():
                if mail not in copied:
                    spool.add(mail, at)

    def _write(self, result: V3Partition, spool: Spool) -> None:
        first, number = len(self.writer.groups), pa.int64()
        slice_ms, bucket = epoch_ms(result.partition.slice_start), result.partition.bucket
        for ids, written in spool.chunks() if spool.count else ():
            columns = {
                "slice_ms": pa.repeat(pa.scalar(slice_ms, number), len(ids)),
                "bucket": pa.repeat(pa.scalar(bucket, number), len(ids)),
                "enqueue_id": texts(ids),
                "written_us": pa.array(written, number),
            }
            self.writer.add(pa.table(columns))
        groups = self.writer.groups[first:]
        result.groups = [
            PlannedGroup(**asdict(group), slice_ms=slice_ms, bucket=bucket) for group in groups
        ]


def copies_in_v4(
    stores: Stores, queue: QueueName, partition: Partition, written: Mapping[EnqueueId, int]
) -> set[EnqueueId]:
    """The ids that V4 has, with the write time in `written` (microseconds) or a later one."""
    pages = stores.tables.v4.existing_ids(queue, [(partition, list(written))], READS_IN_FLIGHT)
    return {
        row.enqueue_id
        for _, page in pages
        for row in page
        if row.written_us is not None and row.written_us >= written[row.enqueue_id]
    }
