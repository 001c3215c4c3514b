"""The first of two reads: which live mails are old enough, slice by slice in Spark. Their ids go to files, beside which only counts come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mailslice.model.mail import EnqueueId, Place, QueueName
from mailslice.model.settings import Settings
from mailslice.spark.frames import Session, run_on_keys
from mailslice.spark.in_worker import stores_of
from mailslice.spark.plan_files import Location, PlanPart, PlanWriter
from mailslice.spark.slices import READS_IN_FLIGHT, instant, millis, partitions
from mailslice.spark.spool import Spool

if TYPE_CHECKING:
    from mailslice.stores import Stores
    from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails


@dataclass(frozen=True, slots=True)
class OldPlace:
    """The old live mails of one partition: those that were delayed at this read, or those that were not.

    `rows` of the partition, told once; `old` mails, whose ids are at `part`; `youngest_ms`: the latest enqueued time among them, -1 without any.
    """

    table: str
    slice_ms: int
    bucket: int
    delayed: bool
    rows: int
    old: int
    youngest_ms: int
    part: PlanPart


@dataclass(frozen=True, slots=True)
class Looking:
    """What to look for: mails of a queue enqueued until `latest`; the buckets of each slice; where the ids are written."""

    settings: Settings
    queue: QueueName
    buckets: int
    latest: datetime
    place: Location
    folder: str


def old_places(spark: Session, what: Looking, slices: Sequence[datetime]) -> list[OldPlace]:
    """Every table and bucket of the slices, read once each."""

    def read(batches: Iterator[Sequence[int]]) -> Iterator[OldPlace]:
        stores = stores_of(what.settings)
        with PlanWriter(what.place, what.folder) as writer:
            places = [
                place
                for batch in batches
                for key in batch
                for place in _slice(what, stores, instant(key), writer)
            ]
        yield from places

    return run_on_keys(spark, [millis(start) for start in slices], read)


def _slice(
    what: Looking, stores: Stores, start: datetime, writer: PlanWriter
) -> Iterator[OldPlace]:
    places = [Place(start, bucket) for bucket in range(what.buckets)]
    seen: set[EnqueueId] | None = set() if len(stores.tables.existing) > 1 else None
    for table in stores.tables.existing:
        for place, pages in partitions(table.ids_of, what.queue, places):
            found = _Found(what, stores, table, place)
            for page in pages:
                found.add([(row.enqueue_id, row.enqueued_time or start) for row in page], seen)
            yield from found.write(writer)


class _Found:
    """What was found in one partition, apart by whether it was delayed."""

    def __init__(self, what: Looking, stores: Stores, table: EnqueuedMails, place: Place) -> None:
        self._what = what
        self._stores = stores
        self._table = table
        self._place = place
        self._rows = 0
        self._spools: dict[bool, Spool] = {}

    def add(self, page: list[tuple[EnqueueId, datetime]], seen: set[EnqueueId] | None) -> None:
        """One page of rows. `seen` holds the ids of the slice so far, where a row may be in both tables."""
        self._rows += len(page)
        old = [
            (enqueue_id, at)
            for enqueue_id, at in page
            if at <= self._what.latest and (seen is None or enqueue_id not in seen)
        ]
        if seen is not None:
            seen.update(enqueue_id for enqueue_id, _ in old)
        if not old:
            return
        marked = self._stores.tables.deleted.marked(
            self._what.queue, [enqueue_id for enqueue_id, _ in old], READS_IN_FLIGHT
        )
        live = [(enqueue_id, at) for enqueue_id, at in old if enqueue_id not in marked]
        delayed = self._stores.own.delayed_mails.waiting(
            self._what.queue, [enqueue_id for enqueue_id, _ in live]
        )
        for enqueue_id, at in live:
            self._spools.setdefault(enqueue_id in delayed, Spool()).add(enqueue_id, millis(at))

    def write(self, writer: PlanWriter) -> Iterator[OldPlace]:
        """Write the ids; a partition without any is told, too."""
        for delayed, spool in (self._spools or {False: Spool()}).items():
            start = millis(self._place.slice_start)
            part, _ = writer.add(
                self._table.table.value,
                start,
                self._place.bucket,
                spool.chunks(),
                "delayed" if delayed else "live",
            )
            youngest = (
                spool.newest_us if spool.count else -1
            )  # the spool keeps enqueued times here, in ms
            yield OldPlace(
                self._table.table.value,
                start,
                self._place.bucket,
                delayed,
                self._rows,
                spool.count,
                youngest,
                part,
            )
            self._rows = 0
            spool.close()
