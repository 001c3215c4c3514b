"""The plan: plan.json, and files in plan/ with one entry a partition or a row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Self
from uuid import UUID

from pydantic import AwareDatetime

from mailslice.engine.partition_scan import PartitionKey, PartitionScan
from mailslice.engine.row_files import Digest, PlanPart, RowFile, RowGroup
from mailslice.maintenance.artifacts import PLAN_FOLDER
from mailslice.maintenance.gates import Reads
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.plan import QueuePlan
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import EnqueueId
from mailslice.model.names import QueueTable
from mailslice.view.configuration import Shape


@dataclass(frozen=True, slots=True)
class RowKey(PartitionKey):
    """One row of the view."""

    enqueue_id: EnqueueId

    @classmethod
    def of(cls, partition: PartitionKey, ids: Iterable[str]) -> Iterator[Self]:
        """Rows of a partition. `ids`: their ids as text."""
        return (cls(*partition.name, EnqueueId(UUID(text))) for text in ids)


@dataclass(frozen=True, slots=True)
class PlannedPartition(PartitionKey):
    """One partition to delete.

    It has `rows` planned rows. `newest_us` is their greatest write time, and the timestamp of the
    delete. They are in `groups` row groups of `file` in plan/, from `first` on, with this `digest`.
    """

    rows: int
    newest_us: int
    file: str
    first: int
    groups: int
    digest: str

    @classmethod
    def of(cls, scanned: PartitionScan) -> Self:
        """The plan of a scanned partition whose `planned` is not 0."""
        rows = (scanned.planned, scanned.newest_us, *astuple(scanned.part), str(scanned.digest))
        return cls(*scanned.name, *rows)

    @property
    def part(self) -> PlanPart:
        return PlanPart(self.file, self.first, self.groups)


class Candidates(JsonModel):
    """Marks without a row that the sweep `run` listed, all written before `listed_at`."""

    run: str
    listed_at: AwareDatetime
    files: tuple[RowGroup, ...]

    @property
    def marks(self) -> int:
        return sum(file.rows for file in self.files)


class CleanupPlan(QueuePlan):
    """What one run may do. A start is None if the store has none; a new one, if it stays."""

    marks_read: AwareDatetime
    """The end of the scan. All marks that it read are older; a proof for them must be younger."""
    grace: timedelta
    shape: Shape
    open_for: timedelta
    """How long after its start a slice may be written to."""
    tables: tuple[QueueTable, ...]
    ranged: bool
    browse_start: AwareDatetime | None
    """Read after the marks."""
    new_browse_start: AwareDatetime | None
    rows: Digest
    """The digest of all planned rows."""
    row_files: tuple[str, ...]
    """The files of plan/ with the planned rows, one a Spark task."""
    partitions: RowFile
    """Rows of PlannedPartition."""
    live: RowFile
    """Rows of RowKey: one or more live rows of every partition that has any."""
    strays: tuple[RowKey, ...]
    """Rows without a mark that apply quarantines."""
    candidates: Candidates | None
    """Marks that an earlier sweep listed. This run drops them if it has a proof."""
    reads: Reads

    @property
    def planned(self) -> int:
        return self.rows.count

    @property
    def has_work(self) -> bool:
        """True unless the queue never had a mail: starts may move and marks go without rows."""
        return self.browse_start is not None

    def files(self) -> frozenset[str]:
        """Includes the files of rows, which Spark workers wrote."""
        return super().files() | {f"{PLAN_FOLDER}/{file}" for file in self.row_files}

    def buckets(self, partitions: Sequence[PlannedPartition]) -> int:
        """The number of buckets of a slice: that of the view, or more if the scan found more."""
        return max([self.shape.buckets, *(partition.bucket + 1 for partition in partitions)])


def planned_partitions(run: Run, plan: CleanupPlan) -> list[PlannedPartition]:
    """The planned partitions, oldest first. Raises PlanRefused if their rows are not the plan's."""
    partitions = run.read_rows(plan.partitions, PlannedPartition)
    rows = sum(partition.rows for partition in partitions)
    if rows != plan.planned:
        raise PlanRefused(
            f"the plan's partitions hold {rows} rows, its digest says {plan.planned}: plan again"
        )
    return partitions
