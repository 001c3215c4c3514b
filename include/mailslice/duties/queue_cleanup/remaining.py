"""What is in the view after the deletes: every row that is left, in both tables, from contentStart to now and in every place that a plan names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan, PlannedPlace
from mailslice.duties.queue_cleanup.view import oldest_row, slices_to_read, starts_of
from mailslice.duty.context import StepContext
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import Place
from mailslice.model.names import QueueTable
from mailslice.spark.compare import Comparison, PlaceKey, PlaceNow, compare
from mailslice.spark.plan_files import NO_PART
from mailslice.spark.slices import instant, millis

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Remaining:
    """Places as they were read back, by (table, slice start in ms, bucket)."""

    places: Mapping[tuple[str, int, int], PlaceNow]

    @property
    def rows(self) -> int:
        """Rows that are left."""
        return sum(place.rows for place in self.places.values())

    def planned_rows(self, place: PlannedPlace) -> int:
        """How many planned rows of a place are still there."""
        return self.places[
            place.table.value, millis(place.place.slice_start), place.place.bucket
        ].matched

    def oldest_row(self, at_or_after: datetime | None) -> datetime | None:
        """The oldest slice with a row, not before `at_or_after`."""
        starts = (instant(place.slice_ms) for place in self.places.values() if place.rows)
        return min(
            (start for start in starts if at_or_after is None or start >= at_or_after), default=None
        )

    def ids(self) -> npt.NDArray[np.uint64]:
        """The low halves of the ids of all rows that are left, sorted."""
        import numpy as np

        halves = np.frombuffer(b"".join(place.ids for place in self.places.values()), dtype=">u8")
        return np.sort(halves.astype(np.uint64))


def read_remaining(context: StepContext, plan: Plan, also: Iterable[Place] = ()) -> Remaining:
    """Read back at quorum. `also`: places of older plans whose marks wait."""
    starts = starts_of(context.stores, context.queue)
    now = context.clock()
    browse = starts.browse.value if starts.browse else now
    content = (
        starts.content.value
        if starts.content
        else (oldest_row(context.stores, context.queue) or browse)
    )
    slices, buckets = slices_to_read(
        context.stores,
        context.queue,
        plan.shape,
        min(content, browse),
        now + plan.shape.largest_window,
    )
    parts = {
        (place.table.value, millis(place.place.slice_start), place.place.bucket): place.part
        for place in plan.places
    }
    wanted = {
        (table.value, millis(start), bucket)
        for start in {*slices, *plan.swept}
        for bucket in range(buckets)
        for table in plan.tables
    }
    wanted |= {
        (table.value, millis(place.slice_start), place.bucket)
        for place in also
        for table in plan.tables
    } | parts.keys()
    keys = [PlaceKey(*key, parts.get(key, NO_PART)) for key in sorted(wanted)]
    spark = context.spark()
    what = Comparison(
        context.settings,
        context.queue,
        context.folder.artifacts,
        context.folder.file(PARTS),
        marks=False,
    )
    found = {
        (place.table, place.slice_ms, place.bucket): place for place in compare(spark, what, keys)
    }
    if found.keys() != wanted:
        raise PlanRefused(
            f"the read after the deletes gave {len(found)} of {len(wanted)} places: marks and contentStart stay, the next run goes on"
        )
    return Remaining(found)


def v3_holds_rows(context: StepContext, tables: Iterable[QueueTable]) -> bool:
    """Whether V3 holds any row of the queue: then marks may still speak for rows there that nobody planned."""
    if QueueTable.V3 not in tables:
        return False
    return next(context.stores.tables.v3.places(context.queue), None) is not None
