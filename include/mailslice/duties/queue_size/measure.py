"""Counts a queue's view by Spark: one key and one summary for each slice.

The driver of Cassandra runs in the Python workers. The fields of the slices add up to the queue's.
Content is never loaded. Of live mails the row is read, for age and recipient domains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

from mailslice.duties.queue_size.shape import Shape
from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.partition_scan import READS_IN_FLIGHT, instant, millis
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.artifacts import iso
from mailslice.model.mail import EnqueueId, Partition, QueueName, ViewRow
from mailslice.model.settings import Settings
from mailslice.model.slices import is_live
from mailslice.stores.cassandra.deleted_mails import ALL
from mailslice.stores.cassandra.ids import WIDTH, cut, each_in_order, unpack

if TYPE_CHECKING:
    from mailslice.stores import Stores

_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True)
class SliceMeasured:
    """One slice over its buckets and tables; an id in both tables counts once.

    `live` rows have no mark. `unproven` rows have none either, but are behind the slice of
    browseStart, where that proves nothing.
    `fullest` is the rows of its fullest bucket.
    `oldest_ms` is the enqueued time of the oldest live mail, -1 without one.
    `shape` is `Shape.as_json` as text.
    """

    slice_ms: int
    live: int
    dead: int
    unproven: int
    fullest: int
    oldest_ms: int
    shape: str


@dataclass(frozen=True, slots=True)
class Measure:
    """What to count: all mails as of `now`, with the current window.

    `browse_start` is None for a queue into which nothing was ever enqueued.
    """

    settings: Settings
    queue: QueueName
    window: timedelta
    buckets: int
    browse_start: datetime | None
    now: datetime

    def in_spark(self, spark: Session, slices: Sequence[datetime]) -> list[SliceMeasured]:
        """Every slice of `slices`, each exactly once, in no order.

        Raises the mailslice error that a worker raised.
        """

        def read(batches: Iterator[Sequence[int]]) -> Iterator[SliceMeasured]:
            stores = stores_of(self.settings)
            for key in chain.from_iterable(batches):
                yield self.slice(stores, instant(key))

        keys = [millis(start) for start in slices]
        return run_on_keys(spark, keys, read, lambda one: one.live + one.dead + one.unproven)

    def slice(self, stores: Stores, start: datetime) -> SliceMeasured:
        """Count one slice.

        A live row counts when a second read still has it, so that a concurrent cleanup makes no
        ghosts.
        """
        partitions = [Partition(start, bucket) for bucket in range(self.buckets)]
        behind = self.browse_start is not None and not is_live(
            start, self.browse_start, self.window
        )
        several = len(stores.tables.existing) > 1
        counted: set[bytes] = set()
        rows_of: dict[Partition, int] = dict.fromkeys(partitions, 0)
        dead, live_rows = 0, _Live(self.now)
        for table in stores.tables.existing:
            for partition, page in table.packed_ids_of(self.queue, partitions, READS_IN_FLIGHT):
                rows_of[partition] += len(page) // WIDTH
                fresh = page
                if several:
                    new = [encoded for encoded in each_in_order(page) if encoded not in counted]
                    counted.update(new)
                    fresh = b"".join(new)
                live: list[EnqueueId] = []
                for _, packed, marked in stores.tables.deleted.look_up(
                    self.queue, ((None, part) for part in cut(fresh)), READS_IN_FLIGHT
                ):
                    unmarked = (
                        []
                        if marked is ALL
                        else unpack(
                            b"".join(
                                encoded
                                for encoded in each_in_order(packed)
                                if encoded not in marked
                            )
                        )
                    )
                    dead += len(packed) // WIDTH - len(unmarked)
                    live += unmarked
                for at in range(0, len(live), _ROWS_AT_A_TIME):
                    live_rows.add(
                        table.some(
                            self.queue,
                            [(partition, live[at : at + _ROWS_AT_A_TIME])],
                            READS_IN_FLIGHT,
                        )
                    )
        return SliceMeasured(
            slice_ms=millis(start),
            live=0 if behind else live_rows.count,
            dead=dead,
            unproven=live_rows.count if behind else 0,
            fullest=max(rows_of.values(), default=0),
            oldest_ms=-1 if behind or live_rows.oldest is None else millis(live_rows.oldest),
            shape=json.dumps({} if behind else live_rows.shape.as_json()),
        )


class _Live:
    """What is told of the live rows of a slice."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.count = 0
        self.oldest: datetime | None = None
        self.shape = Shape()

    def add(self, rows: Iterable[ViewRow]) -> None:
        for row in rows:
            self.count += 1
            self.oldest = (
                row.enqueued_time if self.oldest is None else min(self.oldest, row.enqueued_time)
            )
            self.shape.add(row.item.mail.recipients, row.enqueued_time, self.now)


def total_shape(slices: Sequence[SliceMeasured]) -> Shape:
    """The shape of the whole queue."""
    total = Shape()
    for measured in slices:
        total.merge(Shape.of_json(json.loads(measured.shape)))
    return total


def slice_json(measured: SliceMeasured, last_closed: datetime) -> dict[str, Any]:
    """A slice's report entry.

    `survivors`: its live mails, when it started at `last_closed` or before.
    """
    start = instant(measured.slice_ms)
    return {
        "start": iso(start),
        "live": measured.live,
        "dead": measured.dead,
        "survivors": measured.live if start <= last_closed else 0,
        "unproven": measured.unproven,
    }
