"""Write browseStart and contentStart beside a live James: never lowered, read back at quorum, and a later write of James wins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mailslice.duties.queue_cleanup import decide
from mailslice.model.clock import Clock
from mailslice.model.mail import QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.starts import BrowseStarts, ContentStarts, Start

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
    stores: Stores, queue: QueueName, target: datetime | None, clock: Clock
) -> Moved:
    """Raise browseStart to `target`, unless it is there or beyond already. Read back at quorum."""
    table, now = stores.tables.browse_starts, micros(clock())
    stored = table.read(queue)
    if stored is None or (target is not None and target <= stored.value):
        target = None
    return _moved(table, queue, stored, target, now)


def move_content_start(
    stores: Stores,
    queue: QueueName,
    oldest_row: datetime | None,
    window: timedelta,
    clock: Clock,
) -> Moved:
    """Raise contentStart to the oldest slice that has a row, never after browseStart as it is now."""
    table, now = stores.tables.content_starts, micros(clock())
    browse, stored = stores.tables.browse_starts.read(queue), table.read(queue)
    target = None
    if browse is not None:
        before = stored.value if stored else None
        target = decide.new_content_start(before, oldest_row, browse.value, window)
    return _moved(table, queue, stored, target, now)


def _moved(
    table: BrowseStarts | ContentStarts,
    queue: QueueName,
    stored: Start | None,
    target: datetime | None,
    now_us: int,
) -> Moved:
    """Write `target`, where there is one, with the time max(now, WRITETIME + 1).

    That now is from before the read: what James writes after the read is newer than ours and wins,
    so that a start it has raised meanwhile is never lowered. Whatever is read back counts.
    """
    before = stored.value if stored else None
    if target is None:
        return Moved(before, None, before)
    table.write(queue, target, max(now_us, stored.written_us + 1) if stored else now_us)
    after = table.read(queue)
    return Moved(before, target, after.value if after else None)
