"""What one run may do: plan.json, and in plan/ what is one a partition or one a row."""

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
        """Rows of a partition by the texts of their ids."""
        return (cls(*partition.name, EnqueueId(UUID(text))) for text in ids)


@dataclass(frozen=True, slots=True)
class PlannedPartition(PartitionKey):
    """One partition that is to be emptied.

    `rows` planned ones, the greatest write time among them (the delete's timestamp), where they
    are: row groups `first` to `first + groups` of a file of plan/, and their Digest.
    """

    rows: int
    newest_us: int
    file: str
    first: int
    groups: int
    digest: str

    @classmethod
    def of(cls, scanned: PartitionScan) -> Self:
        """From a scan whose `planned` is not 0."""
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
