"""The first of two reads: which live mails are old enough. Their ids go to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.partition_scan import READS_IN_FLIGHT, instant, millis, pages_by_partition
from mailslice.engine.row_files import Location, PlanPart, PlanWriter
from mailslice.engine.spill import Spool
from mailslice.engine.worker_stores import stores_of
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    from mailslice.stores import Stores


@dataclass(frozen=True, slots=True)
class AuditSpec:
    """What tasks need: the view's shape, mails enqueued until `latest`, the run's folder."""

    settings: Settings
    queue: QueueName
    window: timedelta
    buckets: int
    latest: datetime
    location: Location
    folder: str
    plan_folder: str
    """For files, below `folder`."""

    @property
    def path(self) -> str:
        """The plan's folder."""
        return f"{self.folder}/{self.plan_folder}"


@dataclass(frozen=True, slots=True)
class OldMails:
    """The old live mails of one partition: those that were delayed at this read, or the others.

    A partition without any is reported, too. `count` ids are at `part`; `youngest_ms`: the latest
    enqueued time among them.
    """

    table: str
    slice_ms: int
    bucket: int
    delayed: bool
    count: int
    youngest_ms: int
    part: PlanPart


def find_old_mails(spark: Session, spec: AuditSpec, slices: Sequence[datetime]) -> list[OldMails]:
    """Of every table and bucket of the slices, read once each."""

    def read(batches: Iterator[Sequence[int]]) -> Iterator[OldMails]:
        stores = stores_of(spec.settings)
        with PlanWriter(spec.location, spec.path) as writer:
            reader = _FirstRead(spec, stores, writer)
            old_mails = [
                old for keys in batches for key in keys for old in reader.slice(instant(key))
            ]
        yield from old_mails  # the file is whole by now

    return run_on_keys(spark, [millis(start) for start in slices], read)


@dataclass(frozen=True, slots=True)
class _FirstRead:
    spec: AuditSpec
    stores: Stores
    writer: PlanWriter

    def slice(self, start: datetime) -> Iterator[OldMails]:
        """All its partitions; a mail that has a row in both tables counts once."""
        queue, tables = self.spec.queue, self.stores.tables.existing
        partitions = [Partition(start, bucket) for bucket in range(self.spec.buckets)]
        seen_ids: set[EnqueueId] = set()
        for table in tables:
            for partition, pages in pages_by_partition(table.ids_of, queue, partitions):
                spools = Spool(), Spool()
                for page in pages:
                    times = {row.enqueue_id: row.enqueued_time or start for row in page}
                    latest = self.spec.latest
                    old = {k: at for k, at in times.items() if at <= latest and k not in seen_ids}
                    if len(tables) > 1:
                        seen_ids |= old.keys()
                    self._add(old, spools)
                yield from self._written(table.table.value, partition, spools)

    def _add(self, old: Mapping[EnqueueId, datetime], spools: tuple[Spool, Spool]) -> None:
        """The live ones, delayed ones to the second spool. Spools hold enqueued times, in ms."""
        if not old:
            return
        queue, tables = self.spec.queue, self.stores.tables
        marked = tables.deleted.marked(queue, list(old), READS_IN_FLIGHT)
        live = [enqueue_id for enqueue_id in old if enqueue_id not in marked]
        delayed = self.stores.own.delayed_mails.waiting(queue, live)
        for enqueue_id in live:
            spools[enqueue_id in delayed].add(enqueue_id, millis(old[enqueue_id]))

    def _written(
        self, table: str, partition: Partition, spools: tuple[Spool, Spool]
    ) -> Iterator[OldMails]:
        start = millis(partition.slice_start)
        for delayed, spool in zip((False, True), spools, strict=True):
            if spool.count or not delayed:
                why = "delayed" if delayed else "live"
                part, _ = self.writer.add(table, start, partition.bucket, spool.chunks(), why)
                yield OldMails(
                    table, start, partition.bucket, delayed, spool.count, spool.newest_us, part
                )
            spool.close()
