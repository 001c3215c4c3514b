"""Step 4: the invariants over what is now in the stores, for what this run wrote.

James writes beside us, by its own lights: what James wrote is not judged. Apply recorded what it wrote and what it read after the
deletes; verify reads both starts once, and looks for single rows and marks itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.duties.queue_cleanup import decide, sample
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan_file import Plan, read_plan
from mailslice.duties.queue_cleanup.remaining import FILE, Remaining, name_of
from mailslice.duties.queue_cleanup.starts import micros
from mailslice.duties.queue_cleanup.view import Starts, starts_of
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.model.mail import Place
from mailslice.model.names import QueueTable
from mailslice.model.slices import is_live
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate
from mailslice.spark.slices import SURVIVORS_A_PLACE, instant
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails

BULKY = ("closedSlices",)


def run(context: StepContext) -> dict[str, Any]:
    """What is there now, and whether the invariants hold. Raises GateFailed."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    applied = context.need("apply")
    left = Remaining.of_json(
        context.folder.read_json(FILE) or {"places": [], "readAt": iso(plan.made_at)}
    )
    starts = starts_of(context.stores, context.queue)
    browse = starts.browse.value if starts.browse else None
    slices = [each for each, _ in left.by_slice() if context.params(Params).covers(each.start)]
    seen = (
        decide.counts(slices, browse, plan.shape.window)
        if browse is not None
        else decide.Counts(0, 0, 0)
    )
    after = {
        "browseStart": iso(browse),
        "contentStart": iso(starts.content.value if starts.content else None),
        "live": seen.live,
        "dead": seen.dead,
    }
    context.folder.write_json("after.json", {"after": after, "unproven": seen.unproven})
    judged = _Judged(context, plan, applied, left, starts)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("verify", [judged.frame()], docs)
    return {
        "success": True,
        "after": after,
        "unproven": seen.unproven,
        "expectations": result.lines(),
        "dataDocs": result.link,
        "readAt": iso(left.read_at),
        "closedSlices": [] if plan.ranged else _closed_slices(plan, left),
    }


@dataclass(frozen=True)
class _Judged:
    """What this run wrote, beside the stores as they are now."""

    context: StepContext
    plan: Plan
    applied: dict[str, Any]
    left: Remaining
    starts: Starts

    def frame(self) -> Frame:
        """One row: what is expected of this run's writes."""
        browse = self.starts.browse.value if self.starts.browse else None
        content = self.starts.content.value if self.starts.content else None
        row = {
            "deleted_rows_there": self._deleted_rows_there(),
            "planned_rows_left_without_mark": sum(
                place.matched_unmarked
                for place in self.left.places.values()
                if not self._was_skipped(instant(place.slice_ms))
            ),
            "live_rows_passed": self._live_rows_passed(browse),
            "survivors_lost": self._survivors_lost(browse),
            "content_start_past_browse_start": int(
                browse is not None and content is not None and content > browse
            ),
            "browse_start_unaligned": self._unaligned("browseStart", browse),
            "content_start_unaligned": self._unaligned("contentStart", content),
        }
        return Frame("after", [row], _expectations())

    def _wrote(self, name: str) -> datetime | None:
        value = self.applied.get("wrote", {}).get(name)
        return datetime.fromisoformat(value) if value else None

    def _was_skipped(self, slice_start: datetime) -> bool:
        return iso(slice_start) in self.applied["skippedSlices"]

    def _unaligned(self, name: str, now: datetime | None) -> int:
        """1 where the start that is stored now is the one that this run wrote, and no multiple of the window."""
        ours = now is not None and now == self._wrote(name)
        return int(ours and now is not None and not decide.aligned(now, self.plan.shape.window))

    def _deleted_rows_there(self) -> int:
        """Of a sample of the rows that apply says are gone, how many are there."""
        gone = [
            place
            for place in self.plan.places
            if not self._was_skipped(place.place.slice_start)
            and not (name_of(place) in self.left.places and self.left.planned_rows(place))
        ]
        return len(sample.ids_there(self.context, sample.rows_of(self.context, gone)))

    def _live_rows_passed(self, browse: datetime | None) -> int:
        """Unmarked rows behind the browseStart that this run wrote that were live when the plan was made.

        They were written before, in a slice that was in view then. The places are those in which the plan or the read after the
        deletes saw such rows; their rows are read again. Behind a start that James wrote meanwhile nothing is said.
        """
        ours, before = self._wrote("browseStart"), self.plan.browse_start
        if ours is None or before is None or browse is None or browse < ours:
            return 0
        seen = {(each.table.value, each.place) for each in self.plan.live} | {
            (each.table, Place(instant(each.slice_ms), each.bucket))
            for each in self.left.places.values()
            if each.early
        }
        window = self.plan.shape.window
        passed = [
            (table, place)
            for table, place in seen
            if is_live(place.slice_start, before, window) and place.slice_start < ours
        ]
        made_us = micros(self.plan.made_at)
        early = [
            row.enqueue_id
            for table, place in passed
            for row in self._table(table).ids(self.context.queue, place)
            if row.written_us is not None and row.written_us <= made_us
        ]
        return len(
            set(early) - self.context.stores.tables.deleted.marked(self.context.queue, early)
        )

    def _table(self, name: str) -> EnqueuedMails:
        tables = self.context.stores.tables
        return tables.v3 if QueueTable(name) is QueueTable.V3 else tables.v4

    def _survivors_lost(self, browse: datetime | None) -> int:
        """Of the plan's live rows, a sample a place, those that have neither row nor mark now. Behind browseStart James may have cleaned them."""
        if browse is None:
            return 0
        window = self.plan.shape.window
        live = [each for each in self.plan.live if is_live(each.place.slice_start, browse, window)]
        there = sample.ids_there(self.context, live)
        gone = {one: each.place for each in live for one in each.ids if one not in there}
        deleted = self.context.stores.tables.deleted
        marked = deleted.marked(self.context.queue, gone) if gone else set()
        moved_on = starts_of(self.context.stores, self.context.queue).browse if gone else None
        return sum(
            moved_on is not None and is_live(place.slice_start, moved_on.value, window)
            for one, place in gone.items()
            if one not in marked
        )


def _expectations() -> list[Expectation]:
    sentences = {
        "deleted_rows_there": "No row that was deleted is there, in a sample.",
        "planned_rows_left_without_mark": "No row that was planned dead has lost its deleted mark while it is there.",
        "live_rows_passed": "The browseStart of this run passed no mail that was live when the plan was made.",
        "survivors_lost": "Every mail that was live when the plan was made is there, or was done since.",
        "content_start_past_browse_start": "contentStart is not after browseStart.",
        "browse_start_unaligned": "The browseStart of this run is a multiple of the slice window.",
        "content_start_unaligned": "The contentStart of this run is a multiple of the slice window.",
    }
    return [Expectation.equal(column, 0, text) for column, text in sentences.items()]


def _closed_slices(plan: Plan, left: Remaining) -> list[dict[str, object]]:
    """Slices that were closed when they were read, and still have rows: what size and browse may know without reading dead rows.

    A hint, never a proof: a late insert may come.
    """
    return [
        {
            "start": iso(each.start),
            "live": each.unmarked,
            "dead": each.dead,
            "survivors": survivors[:SURVIVORS_A_PLACE],
        }
        for each, survivors in left.by_slice()
        if decide.closed(each.start, plan.shape, now=left.read_at, grace=plan.grace)
    ]
