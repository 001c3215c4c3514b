"""What V3 holds of a queue, a partition at a time. Ids to be copied go to the plan's files.

A row is copied to the very partition that it has: a slice of an older, larger window keeps its
start in V4, a bucket its number, and the headers of its message, which say where the row is, stay
true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.id_arrays import texts
from mailslice.engine.partition_scan import READS_IN_FLIGHT, instant, pages_by_partition
from mailslice.engine.row_files import Location
from mailslice.engine.spill import Spool
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.row_file import RowGroup, RowWriter
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.model.settings import Settings
from mailslice.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa

    from mailslice.engine.id_arrays import Ids
    from mailslice.engine.row_files import Times


@dataclass(frozen=True, slots=True)
class Source:
    """Which queue, and the run's folder. `v4`: whether that table exists."""

    settings: Settings
    queue: QueueName
    location: Location
    folder: str
    v4: bool = True


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A row group of the plan: rows of one partition."""

    slice_ms: int
    bucket: int
    file: str
    number: int
    rows: int
    digest: str

    @property
    def group(self) -> RowGroup:
        """Where the rows are."""
        return RowGroup(self.file, self.number, self.rows, self.digest)


@dataclass(slots=True)
class PartitionRead:
    """One partition of V3. Of its `rows` `dead` have a mark, `undated` no mark and no write time.

    The others are `live`: V4 has `copied` as they are, those in `groups` are to be copied. Neither
    is known of a partition that has a `skip_reason`.
    """

    slice_ms: int
    bucket: int
    skip_reason: str | None
    rows: int = 0
    dead: int = 0
    live: int = 0
    undated: int = 0
    copied: int = 0
    groups: tuple[PlannedGroup, ...] = ()


def read_partitions(
    spark: Session, source: Source, keys: Sequence[tuple[int, int, str | None]]
) -> list[PartitionRead]:
    """Each (slice start in ms, bucket, why it is left out); every key comes back once."""

    def read(batches: Iterator[Sequence[tuple[int, int, str | None]]]) -> Iterator[PartitionRead]:
        file = f"plan/rows-{uuid4()}.parquet"
        writer = RowWriter(source.location, source.folder, file)
        try:
            reader = _Reader(source, stores_of(source.settings), writer)
            results = [one for batch in batches for one in reader.read(batch)]
        finally:
            writer.close()
        yield from results

    return run_on_keys(spark, keys, read)


@dataclass(frozen=True, slots=True)
class _Reader:
    source: Source
    stores: Stores
    writer: RowWriter

    def read(self, keys: Sequence[tuple[int, int, str | None]]) -> Iterator[PartitionRead]:
        partitions = [Partition(instant(slice_ms), bucket) for slice_ms, bucket, _ in keys]
        pages_of = pages_by_partition(
            self.stores.tables.v3.written_ids_of, self.source.queue, partitions
        )
        for key, (partition, pages) in zip(keys, pages_of, strict=True):
            result, spool = PartitionRead(*key), Spool()
            try:
                for page in pages:
                    self._count(result, partition, page, spool)
                result.groups = tuple(self._written(result, spool))
            finally:
                spool.close()
            yield result

    def _count(
        self,
        result: PartitionRead,
        partition: Partition,
        page: Sequence[tuple[EnqueueId, int | None]],
        spool: Spool,
    ) -> None:
        if not page:
            return
        ids, queue = [enqueue_id for enqueue_id, _ in page], self.source.queue
        marked = self.stores.tables.deleted.marked(queue, ids, READS_IN_FLIGHT)
        live = {one: at for one, at in page if one not in marked and at is not None}
        result.rows += len(page)
        result.dead += len(marked)
        result.live += len(live)
        result.undated += len(page) - len(marked) - len(live)
        if result.skip_reason is None and live:
            copied = copies_in_v4(self.stores, queue, partition, live) if self.source.v4 else set()
            result.copied += len(copied)
            for one, at in live.items():
                if one not in copied:
                    spool.add(one, at)

    def _written(self, result: PartitionRead, spool: Spool) -> Iterator[PlannedGroup]:
        first = len(self.writer.groups)
        for ids, written in spool.chunks() if spool.count else ():
            self.writer.add(_table(result, ids, written))
        for group in self.writer.groups[first:]:
            where = result.slice_ms, result.bucket
            yield PlannedGroup(*where, group.file, group.number, group.rows, group.digest)


def copies_in_v4(
    stores: Stores, queue: QueueName, partition: Partition, written: Mapping[EnqueueId, int]
) -> set[EnqueueId]:
    """Those that V4 has, written at the same time or later."""
    pages = stores.tables.v4.some_ids(queue, [(partition, list(written))], READS_IN_FLIGHT)
    return {
        row.enqueue_id
        for _, page in pages
        for row in page
        if row.written_us is not None and row.written_us >= written[row.enqueue_id]
    }


def _table(partition: PartitionRead, ids: Ids, written: Times) -> pa.Table:
    import pyarrow as pa

    count = len(ids)
    columns = {
        "slice_ms": pa.repeat(pa.scalar(partition.slice_ms, pa.int64()), count),
        "bucket": pa.repeat(pa.scalar(partition.bucket, pa.int64()), count),
        "enqueue_id": texts(ids),
        "written_us": pa.array(written, pa.int64()),
    }
    return pa.table(columns)
