"""Write browseStart and contentStart beside a live James: never lowered, read back at quorum, and a later write of James wins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mailslice.duties.queue_cleanup import decide
from mailslice.duties.queue_cleanup.decide import Shape
from mailslice.model.clock import Clock
from mailslice.model.mail import QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.starts import Start

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(when: datetime) -> int:
    """Microseconds since the epoch: a write time of Cassandra."""
    return (when - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Moved:
    """A start as it was before, what this run wrote (None: nothing), and what was read back after."""

    before: datetime | None
    wrote: datetime | None
    after: datetime | None


def move_browse_start(
    stores: Stores, queue: QueueName, wanted: datetime | None, clock: Clock
) -> Moved:
    """Raise browseStart to `wanted`, unless it is there or beyond already. Read back at quorum.

    Its write time is max(now, WRITETIME + 1), with a now from before the read: what James writes after that read is newer than ours and wins,
    so that a start it has raised meanwhile is never lowered. Whatever is read back counts.
    """
    table = stores.tables.browse_starts
    now = micros(clock())
    stored = table.read(queue)
    if stored is None or wanted is None or wanted <= stored.value:
        return _stays(stored)
    table.write(queue, wanted, max(now, stored.written_us + 1))
    return _wrote(stored, wanted, table.read(queue))


def move_content_start(
    stores: Stores, queue: QueueName, oldest_row: datetime | None, shape: Shape, clock: Clock
) -> Moved:
    """Raise contentStart to the oldest slice that has a row, never after browseStart as it is now."""
    table = stores.tables.content_starts
    now = micros(clock())
    browse, stored = stores.tables.browse_starts.read(queue), table.read(queue)
    if browse is None:
        return _stays(stored)
    wanted = decide.new_content_start(
        stored.value if stored else None, oldest_row, browse.value, shape
    )
    if wanted is None:
        return _stays(stored)
    table.write(queue, wanted, max(now, stored.written_us + 1) if stored else now)
    return _wrote(stored, wanted, table.read(queue))


def _stays(stored: Start | None) -> Moved:
    value = stored.value if stored else None
    return Moved(value, None, value)


def _wrote(stored: Start | None, wanted: datetime, after: Start | None) -> Moved:
    return Moved(stored.value if stored else None, wanted, after.value if after else None)
