"""Decides what may be deleted and where the starts may go (I1, I3, I8). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from mailslice.engine.partition_scan import PartitionScan
from mailslice.engine.plan_comparison import UnmarkedPartition
from mailslice.model.slices import is_live, slice_start
from mailslice.view.configuration import Shape


@dataclass(frozen=True, slots=True)
class SliceRows:
    """A slice over all buckets and tables. `unmarked` rows have no mark; `survivors`: some ids."""

    start: datetime
    rows: int
    unmarked: int
    survivors: tuple[str, ...] = ()

    @property
    def dead(self) -> int:
        return self.rows - self.unmarked


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of rows of the view. `unproven` rows have no mark and are before browseStart."""

    live: int = 0
    dead: int = 0
    unproven: int = 0


def by_slice(partitions: Iterable[PartitionScan | UnmarkedPartition]) -> list[SliceRows]:
    """Partitions summed up to slices that have rows, oldest first."""
    start_of = attrgetter("slice_start")
    slices, ordered = [], sorted((one for one in partitions if one.rows), key=start_of)
    for start, group in groupby(ordered, key=start_of):
        parts = list(group)
        survivors = tuple(text for part in parts for text in part.survivors)
        rows, unmarked = sum(part.rows for part in parts), sum(part.unmarked for part in parts)
        slices.append(SliceRows(start, rows, unmarked, survivors))
    return slices


def open_for(
    shape: Shape, restarted: datetime | None, *, now: datetime, grace: timedelta
) -> timedelta:
    """How long after its start a slice may be written to: the largest window ever used.

    A node of James uses the old window until it is restarted. An operator can tell when the last
    one was restarted. The current window counts a grace later, when all older writes have arrived.
    """
    confirmed = restarted is not None and restarted + grace <= now
    return shape.window if confirmed else shape.largest_window


def closed(start: datetime, open_for: timedelta, *, now: datetime, grace: timedelta) -> bool:
    """Whether no insert can come into the slice any more: its end and the grace are over."""
    return start + open_for + grace <= now


def highest_browse_start(open_for: timedelta, *, now: datetime, grace: timedelta) -> datetime:
    """floor(now - grace) by `open_for`. A later start hides mails of nodes with that window."""
    return slice_start(now - grace, open_for)


def counts(
    slices: Iterable[SliceRows], browse_start: datetime | None, window: timedelta
) -> RowCounts:
    """Live, dead and unproven rows as seen from `browse_start`; zeros if it is None."""
    if browse_start is None:
        return RowCounts()
    dead, unmarked = 0, {True: 0, False: 0}
    for slice_ in slices:
        dead += slice_.dead
        unmarked[is_live(slice_.start, browse_start, window)] += slice_.unmarked
    return RowCounts(unmarked[True], dead, unmarked[False])


def oldest_live(
    slices: Iterable[SliceRows], browse_start: datetime, window: timedelta
) -> datetime | None:
    """The slice of the oldest live row."""
    live = (slice_.start for slice_ in slices if slice_.unmarked)
    return min((start for start in live if is_live(start, browse_start, window)), default=None)


def new_browse_start(
    stored: datetime, oldest: datetime | None, window: timedelta, highest: datetime
) -> datetime | None:
    """Where browseStart may go, or None if it stays.

    It is a multiple of the window, after `stored`, and not past the oldest live row or `highest`
    (`highest_browse_start`).
    """
    target = highest if oldest is None else min(highest, slice_start(oldest, window))
    return target if target > stored else None


def new_content_start(
    stored: datetime | None, oldest_row: datetime | None, browse_start: datetime, window: timedelta
) -> datetime | None:
    """The oldest slice with a row, but not after browseStart; None if contentStart stays."""
    highest = browse_start if oldest_row is None else min(browse_start, oldest_row)
    target = slice_start(highest, window)
    return target if stored is None or target > stored else None


def aligned(start: datetime, window: timedelta) -> bool:
    """Whether a start is a multiple of the window. James finds no slice from any other start."""
    return slice_start(start, window) == start
