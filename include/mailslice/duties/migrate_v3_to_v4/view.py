"""What is to be looked at in V3: which places there are, and which of them count by browseStart."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from mailslice.model.errors import Refused
from mailslice.model.mail import Place, QueueName
from mailslice.model.names import QueueTable
from mailslice.model.slices import slice_start
from mailslice.queue.configuration import Shape
from mailslice.stores import Stores
from mailslice.stores.cassandra.ddl import tables_of


def has_v3(stores: Stores) -> bool:
    """Whether there is a table enqueuedMailsV3."""
    return QueueTable.V3.cql in tables_of(stores.cassandra, stores.settings.cassandra.keyspace)


def has_v4(stores: Stores) -> bool:
    """Whether there is a table enqueuedMailsV4. Raises Refused when there is none and the settings still write V3: then nobody asked for it."""
    there = QueueTable.V4.cql in tables_of(stores.cassandra, stores.settings.cassandra.keyspace)
    if not there and stores.settings.queue.table is not QueueTable.V4:
        raise Refused(
            "there is no table enqueuedMailsV4, and MAILSLICE_QUEUE_TABLE=v3: say v4, so that new rows go there, before old ones are copied"
        )
    return there


def v3_places(stores: Stores, queue: QueueName) -> list[Place]:
    """Every place of the queue in V3, oldest first: a scan of the table's partition keys."""
    return sorted(
        stores.tables.v3.places(queue), key=lambda place: (place.slice_start, place.bucket)
    )


def first_slice(queue: QueueName, window: timedelta) -> Callable[[Stores], datetime | None]:
    """A function that reads browseStart and gives the first slice that counts, floored as browse floors it; None: all count."""

    def first(stores: Stores) -> datetime | None:
        start = stores.tables.browse_starts.read(queue)
        return None if start is None else slice_start(start.value, window)

    return first


def reachable(place: Place, view: Shape) -> bool:
    """Whether a browse of V4 comes to this place."""
    return (
        place.bucket in range(view.buckets)
        and slice_start(place.slice_start, view.window) == place.slice_start
    )
