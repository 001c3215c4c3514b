"""The current state of a queue's view: its starts, and the slices to read.

James may write starts at the same time: a start is never lowered, and a later write of James wins.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.codec.row import epoch_us
from mailslice.duties.queue_cleanup import decide
from mailslice.model.clock import Clock
from mailslice.model.mail import QueueName
from mailslice.model.names import CONTENT_START, QueueTable
from mailslice.model.slices import slice_start
from mailslice.stores import Stores
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.starts import Start, StartTable
from mailslice.view.configuration import Shape
from mailslice.view.partitions import partitions_in_use, partitions_to_read, slices_of

MAX_KEYS = 50_000
"""Up to this many partitions are all read, also empty ones. If there are more, keys are scanned."""


@dataclass(frozen=True, slots=True)
class Starts:
    """browseStart and contentStart as they are stored; None if the store has none."""

    browse: datetime | None
    content: datetime | None


def tables_of(stores: Stores) -> tuple[QueueTable, ...]:
    """Those of V3 and V4 that exist. Both share the starts and the marks."""
    return tuple(rows.table for rows in stores.tables.existing)


def rows_of(stores: Stores, table: str) -> EnqueuedMails:
    """The table with this QueueTable value."""
    return stores.tables.v3 if QueueTable(table) is QueueTable.V3 else stores.tables.v4


def starts_of(stores: Stores, queue: QueueName) -> Starts:
    """Both starts. Reads contentStart first: James raises browseStart, then contentStart to it."""
    content = stores.tables.content_start(queue)
    browse = stores.tables.browse_starts.get(queue)
    return Starts(browse.value if browse else None, content.value if content else None)


def range_of(
    stores: Stores, queue: QueueName, now: datetime, shape: Shape
) -> tuple[datetime, datetime]:
    """From contentStart, or else the oldest partition, to one window ahead: clocks may be ahead."""
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
    """The slices from `first` to `last`, oldest first, and their number of buckets."""
    low = min(slice_start(first, shape.largest_window), slice_start(first, shape.window))
    partitions = partitions_to_read(stores.tables, queue, shape, low, last, scan_from=MAX_KEYS)
    return slices_of(partitions, shape.buckets)


def slices_before(stores: Stores, queue: QueueName, first: datetime) -> tuple[list[datetime], int]:
    """Slices before `first` that have a partition, oldest first, and their number of buckets."""
    in_use = partitions_in_use(stores.tables, queue)
    return slices_of((partition for partition in in_use if partition.slice_start < first), 1)


@dataclass(frozen=True, slots=True)
class Moved:
    """A start before the write, what this run wrote (or None), the start after with write time."""

    before: datetime | None
    wrote: datetime | None
    after: datetime | None
    written_us: int | None = None


def move_browse_start(
    stores: Stores, queue: QueueName, target: datetime | None, clock: Clock
) -> Moved:
    """Raise browseStart to `target`, unless it is there or later already. Read back at quorum."""
    table = stores.tables.browse_starts
    stored = table.get(queue)
    if stored is None or (target is not None and target <= stored.value):
        target = None
    return _moved(table, queue, stored, target, clock)


def move_content_start(
    stores: Stores, queue: QueueName, oldest_row: datetime | None, window: timedelta, clock: Clock
) -> Moved:
    """Raise contentStart to the oldest slice with a row, but not after the current browseStart.

    James 3.5 and 3.6 have no contentStart table: it is created. V4 is not, as the plan is without.
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
    table: StartTable,
    queue: QueueName,
    stored: Start | None,
    target: datetime | None,
    clock: Clock,
) -> Moved:
    """Write `target` unless it is None, and read the start back.

    The write's timestamp is WRITETIME of `stored` + 1 us, + 1 us for each second since. So of two
    tries the later wins, not the greater value. A write of James after our read wins, too, even if
    its clock is behind: James drops marks before its start, whether its write took effect or not.
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
