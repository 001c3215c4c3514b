"""The second quorum read, right before anything is changed: what of the plan is still true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mailslice.duties.queue_cleanup.plan import CleanupPlan, PartitionName, PlannedPartition
from mailslice.duties.queue_cleanup.view import slices_to_read, starts_of, tables_of
from mailslice.engine.errors import unreadable
from mailslice.engine.partition_scan import instant, millis
from mailslice.engine.plan_comparison import Comparison, PartitionNow, PlanKey, compare
from mailslice.engine.row_files import NO_PART, Digest
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.model.slices import is_live, slice_start
from mailslice.view.configuration import view_shape

CHANGED, MARK_MISSING = "changed since plan", "live again"


@dataclass(frozen=True)
class SecondRead:
    """Every partition of every planned slice, and of all slices that browseStart would pass.

    `low`: the lower of the planned browseStart and the one stored when it began. Had James lowered
    it, the rows from there on would be live again.
    """

    plan: CleanupPlan
    low: datetime | None
    partitions: Sequence[PartitionNow]

    def skipped(self, planned: Sequence[PlannedPartition]) -> dict[datetime, str]:
        """Planned slices that are left alone, whole, and why.

        They hold rows that the plan does not know, or a planned row whose mark is gone.
        """
        slices = {partition.slice_ms for partition in planned}
        skipped: dict[datetime, str] = {}
        for now in self.partitions:
            if now.slice_ms in slices:
                if now.unmarked_planned:
                    skipped[instant(now.slice_ms)] = MARK_MISSING
                elif now.foreign:
                    skipped.setdefault(instant(now.slice_ms), CHANGED)
        return skipped

    def deleted_rows(self, planned: Sequence[PlannedPartition]) -> dict[PartitionName, int]:
        """Planned rows that are gone already: another run was faster, or James."""
        matched = {(now.table, now.slice_ms, now.bucket): now.matched for now in self.partitions}
        return {one.name: one.rows - matched[one.name] for one in planned}

    def browse_start(self, stored: datetime | None) -> datetime | None:
        """The planned browseStart, or up to the oldest live row of this read.

        None, it stays: when that is not beyond the stored one, or when the stored one was lowered
        below what this read covers.
        """
        target, window = self.plan.new_browse_start, self.plan.shape.window
        if target is None or stored is None or self.low is None or stored < self.low:
            return None
        unmarked = (instant(now.slice_ms) for now in self.partitions if now.unmarked)
        live = [slice_start(one, window) for one in unmarked if is_live(one, stored, window)]
        target = min([target, *live])
        return target if target > stored else None


def read_again(run: Run, plan: CleanupPlan, planned: Sequence[PlannedPartition]) -> SecondRead:
    """Raises PlanRefused when the view has another shape by now, or the plan's files other rows."""
    _require_same_shape(run, plan)
    stored = starts_of(run.stores, run.queue).browse
    low = min(plan.browse_start, stored) if stored and plan.browse_start else None
    now = _compared(run, _keys(run, plan, planned, low))
    digest = sum((partition.digest for partition in now), Digest())
    if digest != plan.rows:
        raise PlanRefused(
            f"the files of the plan were changed: their rows have the digest {digest}, "
            f"plan.json says {plan.rows}; plan again"
        )
    return SecondRead(plan, low, now)


def _require_same_shape(run: Run, plan: CleanupPlan) -> None:
    shape, tables = view_shape(run.stores, checked=True), tables_of(run.stores)
    if (shape, tables) != (plan.shape, plan.tables):
        raise PlanRefused(
            "the configuration of the queue view changed since the plan was made: it was "
            f"{plan.shape} in {plan.tables}, it is {shape} in {tables}; plan again"
        )


def _keys(
    run: Run, plan: CleanupPlan, planned: Sequence[PlannedPartition], low: datetime | None
) -> list[PlanKey]:
    slices = {partition.slice_start for partition in planned}
    if plan.new_browse_start is not None and low is not None:
        last = plan.new_browse_start - plan.shape.window
        passed, _ = slices_to_read(run.stores, run.queue, plan.shape, low, last)
        slices |= {start for start in passed if start < plan.new_browse_start}
    parts = {partition.name: partition.part for partition in planned}
    buckets = range(plan.buckets(planned))
    names = [
        (table.value, millis(start), bucket)
        for start in sorted(slices)
        for bucket in buckets
        for table in plan.tables
    ]
    if outside := parts.keys() - set(names):
        raise PlanRefused(
            f"the plan names {len(outside)} partitions outside the view's tables and buckets, "
            f"such as {next(iter(outside))}; plan again"
        )
    return [PlanKey(*name, parts.get(name, NO_PART)) for name in names]


def _compared(run: Run, keys: Sequence[PlanKey]) -> list[PartitionNow]:
    """Every key once; none is asked of Spark where there is none."""
    if not keys:
        return []
    location, folder = run.folder.artifacts, run.folder.file(PLAN_FOLDER)
    try:
        partitions = compare(
            run.spark(), Comparison(run.settings, run.queue, location, folder), keys
        )
    except Exception as error:
        if problem := unreadable(error):
            raise PlanRefused(
                f"the files of the plan below {run.folder.uri}/{PLAN_FOLDER} were changed or "
                f"removed ({problem}): plan again"
            ) from error
        raise
    if len(partitions) != len(keys):
        raise PlanRefused(
            f"the second read gave {len(partitions)} of {len(keys)} partitions: nothing is known "
            "of "
            "the others; plan again"
        )
    return partitions
