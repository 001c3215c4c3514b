"""What may be deleted and where the starts may go: pure, no clock, no store (design, sections 3 and 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from mailslice.model.configuration import ViewConfiguration
from mailslice.model.slices import is_live, slice_start


@dataclass(frozen=True, slots=True)
class Shape:
    """The view's shape over its whole history: today's window, the largest window and the most buckets there ever were.

    `open_for` is how long after its start a slice may be written to: the largest window, as nodes of James keep the old one until they are restarted.
    """

    window: timedelta
    largest_window: timedelta
    buckets: int
    open_for: timedelta

    @classmethod
    def of(cls, history: Sequence[ViewConfiguration]) -> Shape:
        """From the stored configurations, oldest first; at least one."""
        largest = max(each.slice_window for each in history)
        return cls(
            history[-1].slice_window, largest, max(each.bucket_count for each in history), largest
        )

    def once_restarted(
        self, restarted: datetime | None, *, now: datetime, grace: timedelta
    ) -> Shape:
        """The shape when an operator says that every node has had today's window since `restarted`: what older ones wrote is there when the grace is over."""
        return (
            self
            if restarted is None or restarted + grace > now
            else replace(self, open_for=self.window)
        )


@dataclass(frozen=True, slots=True)
class SliceFound:
    """One slice over all its buckets and tables. `unmarked` rows have no deleted mark; `undated` ones have a mark but no write time to bound a delete by."""

    start: datetime
    rows: int
    unmarked: int
    undated: int
    planned: int

    @property
    def dead(self) -> int:
        """Rows with a mark."""
        return self.rows - self.unmarked


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of the view: live, dead, and unproven ones, which have no mark but lie behind browseStart."""

    live: int
    dead: int
    unproven: int


def closed(start: datetime, shape: Shape, *, now: datetime, grace: timedelta) -> bool:
    """Whether no insert can come into the slice any more: a node that still has the largest window may write to it until its end, and the grace is over."""
    return start + shape.open_for + grace <= now


def highest_browse_start(shape: Shape, *, now: datetime, grace: timedelta) -> datetime:
    """floor(now - grace), by the largest window: nodes that still have it write to that slice, and a start beyond it would hide their mails."""
    return slice_start(now - grace, shape.open_for)


def counts(slices: Iterable[SliceFound], browse_start: datetime, window: timedelta) -> Counts:
    """Live, dead and unproven rows, as seen from `browse_start`."""
    live = dead = unproven = 0
    for each in slices:
        dead += each.dead
        if is_live(each.start, browse_start, window):
            live += each.unmarked
        else:
            unproven += each.unmarked
    return Counts(live, dead, unproven)


def oldest_live(
    slices: Iterable[SliceFound], browse_start: datetime, window: timedelta
) -> datetime | None:
    """The slice of the oldest live row."""
    return min(
        (
            each.start
            for each in slices
            if each.unmarked and is_live(each.start, browse_start, window)
        ),
        default=None,
    )


def new_browse_start(
    stored: datetime, oldest: datetime | None, shape: Shape, *, now: datetime, grace: timedelta
) -> datetime | None:
    """Where browseStart may go, or None when it stays: a multiple of the window, after the stored one, not past the oldest live row nor floor(now - grace)."""
    highest = highest_browse_start(shape, now=now, grace=grace)
    wanted = highest if oldest is None else min(highest, slice_start(oldest, shape.window))
    return wanted if wanted > stored else None


def new_content_start(
    stored: datetime | None, oldest_row: datetime | None, browse_start: datetime, shape: Shape
) -> datetime | None:
    """Where contentStart may go, or None when it stays: the oldest slice that still has a row, never after browseStart, never back."""
    wanted = slice_start(
        browse_start if oldest_row is None else min(browse_start, oldest_row), shape.window
    )
    return wanted if stored is None or wanted > stored else None


def aligned(start: datetime, window: timedelta) -> bool:
    """Whether a start is a multiple of the window: James adds windows to it without flooring, and from another one it finds no slice."""
    return slice_start(start, window) == start
