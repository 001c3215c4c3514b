"""The invariants over what is now in the stores, for what this run wrote.

What James writes meanwhile is not judged. Apply recorded what it wrote and what it read after the
deletes; verify reads both starts once, and looks for single rows and marks itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.queue_cleanup import decide
from mailslice.duties.queue_cleanup.plan import CleanupPlan, RowKey, planned_partitions
from mailslice.duties.queue_cleanup.read_back import Remaining
from mailslice.duties.queue_cleanup.sample import existing, sample
from mailslice.duties.queue_cleanup.view import Starts, micros, rows_of, starts_of
from mailslice.engine.partition_scan import SURVIVORS_A_PARTITION, instant
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.result import Result
from mailslice.maintenance.run import Run
from mailslice.model.mail import Partition
from mailslice.model.names import QueueTable
from mailslice.model.slices import is_live


@dataclass(frozen=True)
class Verification:
    """What this run wrote, and the stores now. `live`: rows that the plan saw live."""

    run: Run
    plan: CleanupPlan
    result: Result
    remaining: Remaining
    starts: Starts
    live: list[RowKey]

    @classmethod
    def of(cls, run: Run, plan: CleanupPlan, result: Result) -> Verification:
        """Raises PlanRefused for a file of the plan that was changed."""
        remaining, starts = Remaining.load(run, plan.made_at), starts_of(run.stores, run.queue)
        return cls(run, plan, result, remaining, starts, run.read_rows(plan.live, RowKey))

    def frame(self) -> Frame:
        """One row: what is expected of this run's writes."""
        browse, content = self.starts.browse, self.starts.content
        unmarked_rows = sum(
            partition.matched_unmarked
            for partition in self.remaining.partitions.values()
            if not self._was_skipped(instant(partition.slice_ms))
        )
        past_browse_start = browse is not None and content is not None and content > browse
        none = {
            "deleted_rows_there": (
                self._deleted_rows_still_stored(),
                "No row that was deleted is there, in a sample.",
            ),
            "planned_rows_left_without_mark": (
                unmarked_rows,
                "No row that was planned dead has lost its deleted mark while it is there.",
            ),
            "live_rows_passed": (
                self._live_rows_passed(),
                "The browseStart of this run passed no mail that was live when the plan was made.",
            ),
            "survivors_lost": (
                self._survivors_lost(),
                "Every mail that was live when the plan was made is there, or was done since.",
            ),
            "content_start_past_browse_start": (
                int(past_browse_start),
                "contentStart is not after browseStart.",
            ),
            "browse_start_unaligned": (
                self._unaligned("browseStart", browse),
                "The browseStart of this run is a multiple of the slice window.",
            ),
            "content_start_unaligned": (
                self._unaligned("contentStart", content),
                "The contentStart of this run is a multiple of the slice window.",
            ),
        }
        facts = [(count, Expectation.equal(name, 0, text)) for name, (count, text) in none.items()]
        return Frame.facts("after", *facts)

    def closed_slices(self) -> list[dict[str, object]]:
        """Slices that were closed when they were read and have rows: size and browse build on them.

        A hint, never a proof: a late insert may come. None of a run that is held to some slices.
        """
        plan, now = self.plan, self.remaining.read_at
        return [
            {
                "start": iso(slice_.start),
                "live": slice_.unmarked,
                "dead": slice_.dead,
                "survivors": slice_.survivors[:SURVIVORS_A_PARTITION],
            }
            for slice_ in ([] if plan.ranged else self.remaining.slices())
            if decide.closed(slice_.start, plan.open_for, now=now, grace=plan.grace)
        ]

    def _wrote(self, name: str) -> datetime | None:
        value = self.result.fields.get("wrote", {}).get(name)
        return datetime.fromisoformat(value) if value else None

    def _was_skipped(self, slice_start: datetime) -> bool:
        return iso(slice_start) in self.result.fields.get("skippedSlices", {})

    def _unaligned(self, name: str, now: datetime | None) -> int:
        """1 where the stored start is what this run wrote, and no multiple of the window."""
        is_from_this_run = now is not None and now == self._wrote(name)
        return int(
            is_from_this_run and now is not None and not decide.aligned(now, self.plan.shape.window)
        )

    def _deleted_rows_still_stored(self) -> int:
        """Of a sample of the rows that apply says are gone, how many are there."""
        deleted = [
            partition
            for partition in planned_partitions(self.run, self.plan)
            if not self._was_skipped(partition.slice_start)
            and not self.remaining.planned_in(partition)
        ]
        return len(existing(self.run, sample(self.run, deleted)))

    def _live_rows_passed(self) -> int:
        """Unmarked rows behind the browseStart of this run that were live when the plan was made.

        They were written before, in a slice that was in view then. Read again are the partitions in
        which the plan or the read after the deletes saw such rows. Behind a start that James wrote
        meanwhile nothing is said.
        """
        written_start, before = self._wrote("browseStart"), self.plan.browse_start
        browse = self.starts.browse
        if written_start is None or before is None or browse is None or browse < written_start:
            return 0
        suspects = {(row.table.value, row.partition) for row in self.live} | {
            (partition.table, Partition(instant(partition.slice_ms), partition.bucket))
            for partition in self.remaining.partitions.values()
            if partition.early
        }
        made_us, window = micros(self.plan.made_at), self.plan.shape.window
        early = [
            row.enqueue_id
            for table, partition in suspects
            if is_live(partition.slice_start, before, window)
            and partition.slice_start < written_start
            for row in rows_of(self.run.stores, QueueTable(table)).ids(self.run.queue, partition)
            if row.written_us is not None and row.written_us <= made_us
        ]
        return len(set(early) - self.run.stores.tables.deleted.marked(self.run.queue, early))

    def _survivors_lost(self) -> int:
        """The plan's live rows that have neither row nor mark, but for what James moved behind."""
        browse, window = self.starts.browse, self.plan.shape.window
        if browse is None:
            return 0
        live = [row for row in self.live if is_live(row.slice_start, browse, window)]
        existing_ids = existing(self.run, live)
        missing = [row for row in live if row.enqueue_id not in existing_ids]
        if not missing:
            return 0
        ids = [row.enqueue_id for row in missing]
        marked = self.run.stores.tables.deleted.marked(self.run.queue, ids)
        moved_on = starts_of(self.run.stores, self.run.queue).browse
        return sum(
            moved_on is not None and is_live(row.slice_start, moved_on, window)
            for row in missing
            if row.enqueue_id not in marked
        )
