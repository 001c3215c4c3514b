"""What is in the view after the deletes: every row that is left, in both tables, read once.

From contentStart to now, in every slice that a sweep added, and, where a sweep's marks are to go, in
every partition there is. Kept in the run's folder: verify and report build on the same read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mailslice.duties.queue_cleanup.decide import SliceFound
from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan, PlannedPlace
from mailslice.duties.queue_cleanup.starts import micros
from mailslice.duties.queue_cleanup.view import (
    existing_places,
    oldest_row,
    slices_to_read,
    starts_of,
)
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.model.errors import PlanRefused
from mailslice.model.names import QueueTable
from mailslice.spark.compare import PlaceKey
from mailslice.spark.left_rows import Leftover, PlaceLeft, read_left
from mailslice.spark.marks import halves_of
from mailslice.spark.plan_files import NO_PART
from mailslice.spark.slices import instant, millis

if TYPE_CHECKING:
    from mailslice.spark.marks import Halves

FILE = "left.json"
"""In the run's folder."""
_COUNTS = ("rows", "unmarked", "early", "matched", "matched_unmarked")
PlaceName = tuple[str, int, int]
"""Table, slice start in ms, bucket."""


@dataclass(frozen=True)
class Remaining:
    """Partitions as they were read after the deletes, from `read_at` on: later rows may be missing."""

    places: Mapping[PlaceName, PlaceLeft]
    read_at: datetime

    @property
    def rows(self) -> int:
        """Rows that are left."""
        return sum(place.rows for place in self.places.values())

    @property
    def matched(self) -> int:
        """Planned rows that are left."""
        return sum(place.matched for place in self.places.values())

    def planned_rows(self, place: PlannedPlace) -> int:
        """How many planned rows of a place are still there."""
        return self.places[name_of(place)].matched

    def oldest_row(self, at_or_after: datetime | None) -> datetime | None:
        """The oldest slice with a row, not before `at_or_after`."""
        starts = (instant(place.slice_ms) for place in self.places.values() if place.rows)
        return min(
            (start for start in starts if at_or_after is None or start >= at_or_after), default=None
        )

    def ids(self) -> Halves:
        """The low halves of the ids of all rows that are left, sorted."""
        return halves_of([place.ids for place in self.places.values()])

    def as_json(self) -> dict[str, Any]:
        """The places that have rows, without their ids."""
        return {
            "readAt": iso(self.read_at),
            "places": [
                [
                    *(list(place.survivors), place.table, place.slice_ms, place.bucket),
                    *(getattr(place, name) for name in _COUNTS),
                ]
                for place in self.places.values()
                if place.rows
            ],
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Remaining:
        """What `as_json` gave."""
        names = ("table", "slice_ms", "bucket", *_COUNTS)
        places = [
            PlaceLeft(**dict(zip(names, row, strict=True)), survivors=tuple(ids), ids=b"")
            for ids, *row in value["places"]
        ]
        return cls(
            {(each.table, each.slice_ms, each.bucket): each for each in places},
            datetime.fromisoformat(value["readAt"]),
        )

    def by_slice(self) -> list[tuple[SliceFound, list[str]]]:
        """Slices that have rows, oldest first, each with survivors of it."""
        found: dict[int, list[PlaceLeft]] = {}
        for place in sorted(self.places.values(), key=lambda each: each.slice_ms):
            if place.rows:
                found.setdefault(place.slice_ms, []).append(place)
        return [
            (
                SliceFound(
                    instant(start),
                    sum(each.rows for each in places),
                    sum(each.unmarked for each in places),
                    0,
                    0,
                ),
                [one for each in places for one in each.survivors],
            )
            for start, places in found.items()
        ]


def name_of(place: PlannedPlace) -> PlaceName:
    """The key of a planned place."""
    return place.table.value, millis(place.place.slice_start), place.place.bucket


def read_remaining(context: StepContext, plan: Plan) -> Remaining:
    """Read back at quorum. Raises PlanRefused when a partition was not read: nothing is known of it."""
    read_at = context.clock()
    parts = {name_of(place): place.part for place in plan.places}
    wanted = _wanted(context, plan) | parts.keys()
    keys = [PlaceKey(*key, parts.get(key, NO_PART)) for key in sorted(wanted)]
    what = Leftover(
        context.settings,
        context.queue,
        context.folder.artifacts,
        context.folder.file(PARTS),
        micros(plan.made_at),
    )
    found = {
        (place.table, place.slice_ms, place.bucket): place
        for place in read_left(context.spark(), what, keys)
    }
    if found.keys() != wanted:
        raise PlanRefused(
            f"the read after the deletes gave {len(found)} of {len(wanted)} places: marks and contentStart stay, the next run goes on"
        )
    return Remaining(found, read_at)


def _wanted(context: StepContext, plan: Plan) -> set[PlaceName]:
    stores, queue = context.stores, context.queue
    starts, now = starts_of(stores, queue), context.clock()
    browse = starts.browse.value if starts.browse else now
    content = starts.content.value if starts.content else (oldest_row(stores, queue) or browse)
    first, last = min(content, browse), now + plan.shape.largest_window
    slices, buckets = slices_to_read(stores, queue, plan.shape, first, last)
    wanted = {
        (millis(start), bucket) for start in {*slices, *plan.swept} for bucket in range(buckets)
    }
    if plan.candidates is not None:
        everywhere = existing_places(stores, queue)
        wanted |= {(millis(place.slice_start), place.bucket) for place in everywhere}
    return {(table.value, *each) for each in wanted for table in plan.tables}


def v3_holds_rows(context: StepContext, tables: Iterable[QueueTable]) -> bool:
    """Whether V3 holds any row of the queue: then marks may still speak for rows there that nobody planned."""
    if QueueTable.V3 not in tables:
        return False
    return next(context.stores.tables.v3.places(context.queue), None) is not None
