"""What the stores say of a queue's view today: its starts, and which slices there are to read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from mailslice.model.mail import Place, QueueName
from mailslice.model.names import QueueTable
from mailslice.model.slices import slice_start, slices_between
from mailslice.queue.configuration import Shape
from mailslice.stores import Stores
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails

log = logging.getLogger(__name__)

MOST_KEYS = 50_000
"""So many partitions are read though most may be empty; of more, only those in a scan of the keys."""


@dataclass(frozen=True, slots=True)
class Starts:
    """browseStart and contentStart as they are stored; None where there is none."""

    browse: datetime | None
    content: datetime | None


def tables_of(stores: Stores) -> tuple[QueueTable, ...]:
    """Which of V3 and V4 exist: starts and marks are one for both."""
    return tuple(rows.table for rows in stores.tables.existing)


def rows_of(stores: Stores, table: QueueTable) -> EnqueuedMails:
    """The rows of one of the two tables."""
    return stores.tables.v3 if table is QueueTable.V3 else stores.tables.v4


def starts_of(stores: Stores, queue: QueueName) -> Starts:
    """Both starts, at the settings' consistency.

    contentStart first: James moves browseStart and then contentStart up to it, also between the two reads.
    """
    content = stores.tables.content_starts.read(queue)
    browse = stores.tables.browse_starts.read(queue)
    return Starts(browse.value if browse else None, content.value if content else None)


def existing_places(stores: Stores, queue: QueueName) -> set[Place]:
    """Every partition of the queue, in both tables: a scan of all keys of the tables."""
    return {place for rows in stores.tables.existing for place in rows.places(queue)}


def range_of(
    stores: Stores, queue: QueueName, now: datetime, shape: Shape
) -> tuple[datetime, datetime]:
    """From contentStart to the slice after now's, for clocks that are ahead.

    James 3.5 and a crash leave no contentStart: then from the oldest partition.
    """
    starts = starts_of(stores, queue)
    browse = starts.browse or now
    content = starts.content or min(
        (place.slice_start for place in existing_places(stores, queue)), default=browse
    )
    return min(content, browse), now + shape.largest_window


def slices_to_read(
    stores: Stores, queue: QueueName, shape: Shape, first: datetime, last: datetime
) -> tuple[list[datetime], int]:
    """The slices from that of `first` to that of `last`, oldest first, and how many buckets each has.

    Computed while they are few; else those that have a partition, by a scan of the keys: a window
    of seconds gives millions of empty slices.
    """
    low = min(slice_start(first, shape.largest_window), slice_start(first, shape.window))
    high = slice_start(last, shape.window)
    partitions = ((high - low) // shape.window + 1) * shape.buckets * len(stores.tables.existing)
    if partitions <= MOST_KEYS:
        return list(slices_between(low, high, shape.window)), shape.buckets
    log.info("%d partitions from %s to %s: their keys are scanned instead", partitions, low, high)
    places = [place for place in existing_places(stores, queue) if low <= place.slice_start <= high]
    return _slices(places, shape.buckets)


def slices_before(stores: Stores, queue: QueueName, first: datetime) -> tuple[list[datetime], int]:
    """Slices before `first` that have a partition, oldest first, and the buckets they need."""
    places = [place for place in existing_places(stores, queue) if place.slice_start < first]
    return _slices(places, 1)


def _slices(places: list[Place], buckets: int) -> tuple[list[datetime], int]:
    slices = sorted({place.slice_start for place in places})
    return slices, max([buckets, *(place.bucket + 1 for place in places)])
