"""A queue's view today: its starts, and which slices there are to read.

Starts are written beside a live James: never lowered, read back, a later write of James wins.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.codec.row import epoch_us
from mailslice.duties.queue_cleanup import decide
from mailslice.model.clock import Clock
from mailslice.model.mail import Partition, QueueName
from mailslice.model.names import CONTENT_START, QueueTable
from mailslice.model.slices import slice_start
from mailslice.stores import Stores
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.starts import BrowseStarts, ContentStarts, Start
from mailslice.view.configuration import Shape
from mailslice.view.partitions import partitions_in_use, partitions_to_read

MAX_KEYS = 50_000
"""Of so many partitions each is read, though most may be empty; of more, those with a key."""


@dataclass(frozen=True, slots=True)
class Starts:
    """browseStart and contentStart as they are stored; None where there is none."""

    browse: datetime | None
    content: datetime | None


def tables_of(stores: Stores) -> tuple[QueueTable, ...]:
    """Which of V3 and V4 exist: starts and marks are one for both."""
    return tuple(rows.table for rows in stores.tables.existing)


def rows_of(stores: Stores, table: str) -> EnqueuedMails:
    """The rows of one of the two tables, by the value of its QueueTable."""
    return stores.tables.v3 if QueueTable(table) is QueueTable.V3 else stores.tables.v4


def starts_of(stores: Stores, queue: QueueName) -> Starts:
    """Both starts. contentStart first: James moves browseStart, then contentStart up to it."""
    content = stores.tables.content_start(queue)
    browse = stores.tables.browse_starts.get(queue)
    return Starts(browse.value if browse else None, content.value if content else None)


def range_of(
    stores: Stores, queue: QueueName, now: datetime, shape: Shape
) -> tuple[datetime, datetime]:
    """From contentStart, or the oldest partition, to the slice after now's: clocks may be ahead."""
    starts = starts_of(stores, queue)
    browse = starts.browse or now
    content = starts.content or min(
        (partition.slice_start for partition in partitions_in_use(stores.tables, queue)),
        default=browse,
    )
    return min(content, browse), now + shape.largest_window


def slices_to_read(
    stores: Stores, queue: QueueName, shape: Shape, first: datetime, last: datetime
) -> tuple[list[datetime], int]:
    """The slices from `first` to `last`, oldest first, and their buckets (`view.partitions`)."""
    low = min(slice_start(first, shape.largest_window), slice_start(first, shape.window))
    partitions = partitions_to_read(stores.tables, queue, shape, low, last, scan_from=MAX_KEYS)
    return _slices(partitions, shape.buckets)


def slices_before(stores: Stores, queue: QueueName, first: datetime) -> tuple[list[datetime], int]:
    """Slices before `first` that have a partition, oldest first, and the buckets they need."""
    in_use = partitions_in_use(stores.tables, queue)
    return _slices((one for one in in_use if one.slice_start < first), 1)


def _slices(partitions: Iterable[Partition], buckets: int) -> tuple[list[datetime], int]:
    slices = set()
    for partition in partitions:
        slices.add(partition.slice_start)
        buckets = max(buckets, partition.bucket + 1)
    return sorted(slices), buckets


@dataclass(frozen=True, slots=True)
class Moved:
    """A start before, as this run wrote it (None: not), and as read after, with write time."""

    before: datetime | None
    wrote: datetime | None
    after: datetime | None
    written_us: int | None = None


def move_browse_start(
    stores: Stores, queue: QueueName, target: datetime | None, clock: Clock
) -> Moved:
    """Raise browseStart to `target`, unless it is there or beyond already. Read back at quorum."""
    table = stores.tables.browse_starts
    stored = table.get(queue)
    if stored is None or (target is not None and target <= stored.value):
        target = None
    return _moved(table, queue, stored, target, clock)


def move_content_start(
    stores: Stores, queue: QueueName, oldest_row: datetime | None, window: timedelta, clock: Clock
) -> Moved:
    """Raise contentStart to the oldest slice with a row, never after browseStart as it is now.

    James 3.5 and 3.6 have no such table: it is made, but not V4, of which the plan does not know.
    """
    table = stores.tables.content_starts
    stores.tables.create([CONTENT_START])
    browse, stored = stores.tables.browse_starts.get(queue), table.get(queue)
    target = None
    if browse is not None:
        before = stored.value if stored else None
        target = decide.new_content_start(before, oldest_row, browse.value, window)
    return _moved(table, queue, stored, target, clock)


def _moved(
    table: BrowseStarts | ContentStarts,
    queue: QueueName,
    stored: Start | None,
    target: datetime | None,
    clock: Clock,
) -> Moved:
    """Write `target`, where there is one, right after what was read, by the time WRITETIME + 1, and
    a microsecond more for each second since: of two tries the later wins, not the greater value.

    So whatever James writes after the read wins, also by a clock that is behind ours: it drops
    marks behind its start, taken or not. Whatever is read back counts.
    """
    before = stored.value if stored else None
    if target is None:
        return Moved(before, None, before, stored.written_us if stored else None)
    if stored is None:
        table.insert_first(queue, target)
    else:
        since = max(0, epoch_us(clock()) - stored.written_us) // 1_000_000
        table.write(queue, target, stored.written_us + 1 + since)
    after = table.get(queue)
    return Moved(before, target, *((after.value, after.written_us) if after else (None,)))
