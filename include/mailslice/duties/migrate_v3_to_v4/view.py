"""Which partitions V3 has, and which of them a browse of V4 comes to."""

from __future__ import annotations

from datetime import datetime, timedelta

from mailslice.model.errors import Refused
from mailslice.model.mail import Partition, QueueName
from mailslice.model.names import QueueTable
from mailslice.model.slices import slice_start
from mailslice.stores import Stores
from mailslice.stores.cassandra.ddl import tables_of
from mailslice.view.configuration import Shape

BEHIND, UNREACHABLE = "behind browseStart", "no slice or bucket of the view"


def has_table(stores: Stores, table: QueueTable) -> bool:
    """Whether there is such a table now."""
    return table.cql in tables_of(stores.cassandra, stores.settings.cassandra.keyspace)


def require_v4(stores: Stores) -> bool:
    """Whether V4 exists. Raises Refused when it does not and the settings do not ask for it."""
    existing = has_table(stores, QueueTable.V4)
    if not existing and stores.settings.queue.table is not QueueTable.V4:
        raise Refused(
            "there is no table enqueuedMailsV4, and MAILSLICE_QUEUE_TABLE=v3: say v4, so that new "
            "rows go there, before old ones are copied"
        )
    return existing


def first_slice(stores: Stores, queue: QueueName, window: timedelta) -> datetime | None:
    """The first slice that counts by browseStart now, floored as browse floors it; None: all do."""
    start = stores.tables.browse_starts.read(queue)
    return None if start is None else slice_start(start.value, window)


def v3_partitions(
    stores: Stores, queue: QueueName, view: Shape
) -> list[tuple[Partition, str | None]]:
    """Every partition of V3, oldest first, and why a browse of V4 misses it (None: it does not)."""
    first = first_slice(stores, queue, view.window)
    partitions = sorted(
        stores.tables.v3.partitions(queue), key=lambda at: (at.slice_start, at.bucket)
    )
    return [(partition, _reason_to_skip(partition, view, first)) for partition in partitions]


def _reason_to_skip(partition: Partition, view: Shape, first: datetime | None) -> str | None:
    start = partition.slice_start
    if first is not None and start < first:
        return BEHIND
    known = partition.bucket in range(view.buckets) and slice_start(start, view.window) == start
    return None if known else UNREACHABLE
