"""Random planned rows, for looks at the stores that do not rest on what a step says of itself."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from uuid import UUID

from mailslice.duties.queue_cleanup.plan import PlannedPartition, RowKey
from mailslice.duties.queue_cleanup.view import rows_of
from mailslice.engine.row_files import PlanPart, PlanReader
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.run import Run
from mailslice.model.mail import EnqueueId, Partition
from mailslice.model.names import QueueTable

PARTITIONS, ROWS_A_PARTITION = 50, 20


def sample(run: Run, partitions: Sequence[PlannedPartition]) -> list[RowKey]:
    """At most ROWS_A_PARTITION rows of each of at most PARTITIONS of these, by chance."""
    chosen = random.sample(partitions, min(PARTITIONS, len(partitions)))
    chosen.sort(key=lambda partition: (partition.file, partition.first))
    with PlanReader(run.folder.artifacts, run.folder.file(PLAN_FOLDER)) as reader:
        return [row for partition in chosen for row in _rows(reader, partition)]


def _rows(reader: PlanReader, partition: PlannedPartition) -> Iterator[RowKey]:
    group = partition.first + random.randrange(partition.groups)
    (table,) = reader.groups(PlanPart(partition.file, group, 1))
    column = table.column("enqueue_id")
    for number in random.sample(range(len(column)), min(ROWS_A_PARTITION, len(column))):
        enqueue_id = EnqueueId(UUID(column[number].as_py()))
        yield RowKey(partition.table, partition.slice_ms, partition.bucket, enqueue_id)


def existing(run: Run, rows: Sequence[RowKey]) -> set[EnqueueId]:
    """Which of these ids have a row now, by key."""
    ids: dict[QueueTable, dict[Partition, list[EnqueueId]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        ids[row.table][row.partition].append(row.enqueue_id)
    return {
        row.enqueue_id
        for table, by_partition in ids.items()
        for _, page in rows_of(run.stores, table).some_ids(run.queue, by_partition.items())
        for row in page
    }
