"""What the stores say of a queue's view today: its shape, its starts, and which slices there are to read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from mailslice.duties.queue_cleanup.decide import Shape, SliceFound
from mailslice.model.mail import Place, QueueName
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start, slices_between
from mailslice.queue.configuration import ConfigurationGuard
from mailslice.spark.slices import PlaceFound
from mailslice.stores import Stores
from mailslice.stores.cassandra.starts import Start

log = logging.getLogger(__name__)

MOST_KEYS = 50_000
"""Places that are read one by one though most may be empty; beyond, the table's keys are scanned for those that exist."""


@dataclass(frozen=True, slots=True)
class Starts:
    """browseStart and contentStart as they are stored; None where there is none."""

    browse: Start | None
    content: Start | None


def shape_of(stores: Stores, settings: Settings) -> Shape:
    """The view's shape by James' events; by the settings when nothing is stored yet. Raises ConfigurationDiffers when a given setting contradicts them."""
    guard = ConfigurationGuard(stores.tables, settings)
    if guard.stored() is not None:
        guard.ensure()
    return Shape.of(guard.history() or [settings.queue.configuration])


def tables_of(stores: Stores) -> tuple[QueueTable, ...]:
    """Which of V3 and V4 exist: starts and marks are one for both."""
    return tuple(rows.table for rows in stores.tables.existing)


def starts_of(stores: Stores, queue: QueueName) -> Starts:
    """Both starts, at the settings' consistency.

    contentStart first: James moves browseStart and then contentStart up to it, also between the two reads.
    """
    content = stores.tables.content_starts.read(queue)
    return Starts(stores.tables.browse_starts.read(queue), content)


def existing_places(stores: Stores, queue: QueueName) -> set[Place]:
    """Every partition of the queue, in both tables: a scan of all keys of the tables."""
    return {place for rows in stores.tables.existing for place in rows.places(queue)}


def slices_to_read(
    stores: Stores, queue: QueueName, shape: Shape, first: datetime, last: datetime
) -> tuple[list[datetime], int]:
    """The slices from that of `first` to that of `last`, oldest first, and how many buckets each has.

    Computed while they are few; else those that have a partition, by a scan of the keys: a window of seconds gives millions of empty slices.
    """
    tables = len(stores.tables.existing)
    low, high = (
        min(slice_start(first, shape.largest_window), slice_start(first, shape.window)),
        slice_start(last, shape.window),
    )
    if ((high - low) // shape.window + 1) * shape.buckets * tables <= MOST_KEYS:
        return list(slices_between(low, high, shape.window)), shape.buckets
    log.info(
        "more than %d places from %s to %s: the keys that exist are scanned instead",
        MOST_KEYS,
        low,
        high,
    )
    places = [place for place in existing_places(stores, queue) if low <= place.slice_start <= high]
    return sorted({place.slice_start for place in places}), max(
        [shape.buckets, *(place.bucket + 1 for place in places)]
    )


def slices_before(stores: Stores, queue: QueueName, first: datetime) -> tuple[list[datetime], int]:
    """Slices before `first` that have a partition, oldest first, and the buckets they need."""
    places = [place for place in existing_places(stores, queue) if place.slice_start < first]
    buckets = max((place.bucket + 1 for place in places), default=1)
    return sorted({place.slice_start for place in places}), buckets


def oldest_row(stores: Stores, queue: QueueName) -> datetime | None:
    """The oldest slice that has a partition; None when the queue has none."""
    return min((place.slice_start for place in existing_places(stores, queue)), default=None)


def by_slice(places: Iterable[PlaceFound]) -> list[SliceFound]:
    """Places summed up to slices, oldest first."""
    ordered = sorted(places, key=lambda place: place.slice_ms)
    return [_slice(list(group)) for _, group in groupby(ordered, key=lambda place: place.slice_ms)]


def _slice(places: Sequence[PlaceFound]) -> SliceFound:
    return SliceFound(
        places[0].slice_start,
        sum(place.rows for place in places),
        sum(place.unmarked for place in places),
        sum(place.undated for place in places),
        sum(place.planned for place in places),
    )
