"""What one run may do: plan.json, and in plan/ what is one a partition or one a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from pydantic import AwareDatetime

from mailslice.duties.queue_cleanup.candidates import Candidates
from mailslice.engine.partition_scan import PartitionScan, instant
from mailslice.engine.row_files import Digest, PlanPart
from mailslice.maintenance.plan import PLAN_FOLDER, QueuePlan
from mailslice.maintenance.row_file import RowFile
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import EnqueueId, Partition
from mailslice.model.names import QueueTable
from mailslice.view.configuration import Shape

WHY = "deleted mark"
PartitionName: TypeAlias = tuple[str, int, int]
"""Table, slice start in ms, bucket."""


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One partition of the view."""

    table: QueueTable
    slice_ms: int
    bucket: int

    @property
    def name(self) -> PartitionName:
        """By which scans know it."""
        return self.table.value, self.slice_ms, self.bucket

    @property
    def slice_start(self) -> datetime:
        """Its slice."""
        return instant(self.slice_ms)

    @property
    def partition(self) -> Partition:
        """Slice and bucket."""
        return Partition(self.slice_start, self.bucket)


@dataclass(frozen=True, slots=True)
class RowKey(PartitionKey):
    """One row of the view."""

    enqueue_id: EnqueueId


@dataclass(frozen=True, slots=True)
class PlannedPartition(PartitionKey):
    """One partition that is to go.

    `rows` planned ones, the greatest write time among them (the delete's timestamp), and where they
    are: row groups `first` to `first + groups` of a file of plan/.
    """

    rows: int
    newest_us: int
    file: str
    first: int
    groups: int

    @classmethod
    def of(cls, scanned: PartitionScan) -> PlannedPartition:
        """From what a scan found; `scanned.planned` is not 0."""
        key = QueueTable(scanned.table), scanned.slice_ms, scanned.bucket
        part = scanned.part
        return cls(*key, scanned.planned, scanned.newest_us, part.file, part.first, part.groups)

    @property
    def part(self) -> PlanPart:
        """Where its rows are."""
        return PlanPart(self.file, self.first, self.groups)


class Reads(NamedTuple):
    """Partitions that the plan step was to read, those it read, and how many of those twice."""

    requested: int
    read: int
    twice: int


class CleanupPlan(QueuePlan):
    """None where the store has no start, or it stays."""

    marks_read: AwareDatetime
    """When the last mark had been read: all are older; a proof that lets them go is younger."""
    grace: timedelta
    shape: Shape
    open_for: timedelta
    """How long after its start a slice may be written to."""
    tables: tuple[QueueTable, ...]
    ranged: bool
    browse_start: AwareDatetime | None
    """As it was read after the marks."""
    new_browse_start: AwareDatetime | None
    rows: Digest
    """Of all planned rows."""
    row_files: tuple[str, ...]
    """The files of plan/ that hold them; one a task."""
    partitions: RowFile
    """PlannedPartition, one a partition that is to go."""
    live: RowFile
    """RowKey: of every partition with live rows one or some of them."""
    strays: tuple[RowKey, ...]
    """Rows without a mark that are to be set aside."""
    candidates: Candidates | None
    """Marks that an earlier sweep listed, and that this run drops when it has a proof."""
    reads: Reads

    @property
    def planned(self) -> int:
        """Rows that are to go."""
        return self.rows.count

    @property
    def has_work(self) -> bool:
        """Starts may move and marks go without a planned row; not where there never was a mail."""
        return self.browse_start is not None

    def files(self) -> frozenset[str]:
        """Those of the rows, too, which workers wrote."""
        return super().files() | {f"{PLAN_FOLDER}/{file}" for file in self.row_files}

    def buckets(self, partitions: Sequence[PlannedPartition]) -> int:
        """How many buckets a slice may have; a scan of keys may have found more."""
        return max([self.shape.buckets, *(partition.bucket + 1 for partition in partitions)])


def planned_partitions(run: Run, plan: CleanupPlan) -> list[PlannedPartition]:
    """Oldest first. Raises PlanRefused where they do not hold what the plan says."""
    partitions = run.read_rows(plan.partitions, PlannedPartition)
    rows = sum(partition.rows for partition in partitions)
    if rows != plan.planned:
        raise PlanRefused(
            f"the plan's partitions hold {rows} rows, its digest says {plan.planned}: plan again"
        )
    return partitions
