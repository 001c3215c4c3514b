"""What V3 holds of a queue, place by place, in Python workers: rows, marks, what V4 has already. The ids that are to be copied go to the plan's files.

A row is copied to the very place that it has: a slice that was written under an older, larger window keeps its start in V4 as in V3, a bucket its number,
and the headers of its message, which say where the row is, stay true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mailslice.model.mail import EnqueueId, Place, QueueName
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.spark.frames import Session, run_on_keys
from mailslice.spark.in_worker import stores_of
from mailslice.spark.plan_files import NO_PART, Digest, Location, PlanPart, PlanWriter
from mailslice.spark.slices import READS_IN_FLIGHT, instant, millis, partitions
from mailslice.spark.spool import Spool
from mailslice.stores import Stores

WHY = "live in V3"


@dataclass(frozen=True, slots=True)
class Source:
    """Which queue, and where the plan's files go. `v4` is False while that table is still to be created."""

    settings: Settings
    queue: QueueName
    place: Location
    folder: str
    v4: bool = True


@dataclass(frozen=True, slots=True)
class PlaceFound:
    """One partition of V3. Of its `rows` `dead` have a mark, `undated` have none but no write time either, `live` are the others.

    Of the live ones V4 has `there` as they are; the rest is `planned`, at `part`.
    """

    slice_ms: int
    bucket: int
    rows: int
    dead: int
    live: int
    undated: int
    there: int
    planned: int
    part: PlanPart
    digest: Digest


def read_places(
    spark: Session, what: Source, keys: Sequence[tuple[int, int, bool]]
) -> list[PlaceFound]:
    """Read these places of V3, each (slice start in ms, bucket, whether its rows may be planned); every key comes back once."""

    def read(batches: Iterator[Sequence[tuple[int, int, bool]]]) -> Iterator[PlaceFound]:
        stores = stores_of(what.settings)
        with PlanWriter(what.place, what.folder) as writer:
            found = [place for batch in batches for place in _places(stores, what, batch, writer)]
        yield from found

    return run_on_keys(spark, keys, read)


def _places(
    stores: Stores, what: Source, keys: Sequence[tuple[int, int, bool]], writer: PlanWriter
) -> Iterator[PlaceFound]:
    places = [Place(instant(slice_ms), bucket) for slice_ms, bucket, _ in keys]
    read = partitions(stores.tables.v3.written_ids_of, what.queue, places)
    for (_, _, may_plan), (place, pages) in zip(keys, read, strict=True):
        count = _Count(stores, what, place, may_plan)
        try:
            for page in pages:
                count.add(page)
            yield count.found(writer)
        finally:
            count.spool.close()


class _Count:
    """What was read of one place."""

    def __init__(self, stores: Stores, what: Source, place: Place, may_plan: bool) -> None:
        self.stores, self.what, self.place, self.may_plan = stores, what, place, may_plan
        self.rows = self.dead = self.live = self.undated = self.there = 0
        self.spool = Spool()

    def add(self, page: list[tuple[EnqueueId, int | None]]) -> None:
        if not page:
            return
        marked = self.stores.tables.deleted.marked(
            self.what.queue, [each for each, _ in page], READS_IN_FLIGHT
        )
        dated = {
            each: written for each, written in page if each not in marked and written is not None
        }
        self.rows += len(page)
        self.dead += len(marked)
        self.live += len(dated)
        self.undated += len(page) - len(marked) - len(dated)
        if self.may_plan and dated:
            copied = (
                _copied(self.stores, self.what.queue, self.place, dated) if self.what.v4 else set()
            )
            self.there += len(copied)
            for each, written in dated.items():
                if each not in copied:
                    self.spool.add(each, written)

    def found(self, writer: PlanWriter) -> PlaceFound:
        start, bucket, planned = millis(self.place.slice_start), self.place.bucket, self.spool.count
        part, digest = NO_PART, Digest()
        if planned:
            part, digest = writer.add(QueueTable.V3.value, start, bucket, self.spool.chunks(), WHY)
        counts = (self.rows, self.dead, self.live, self.undated, self.there, planned)
        return PlaceFound(start, bucket, *counts, part, digest)


def _copied(
    stores: Stores, queue: QueueName, place: Place, dated: dict[EnqueueId, int]
) -> set[EnqueueId]:
    """Those that V4 has, written at the same time or later."""
    pages = stores.tables.v4.some_ids(queue, [(place, list(dated))], READS_IN_FLIGHT)
    return {
        row.enqueue_id
        for _, page in pages
        for row in page
        if row.written_us is not None and row.written_us >= dated[row.enqueue_id]
    }
