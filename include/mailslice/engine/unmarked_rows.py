"""Read the view after the deletes, partition by partition, once: ids, write times and marks.

Read-back of the plan's rows, mark deletion, contentStart, verify and statistics build on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.id_arrays import low_halves, of_texts
from mailslice.engine.partition_scan import Marks, PartitionKey, Survivors, written_ids
from mailslice.engine.plan_comparison import PlanKey, planned_partitions
from mailslice.engine.row_files import Location, PlanPart, PlanReader
from mailslice.engine.worker_stores import stores_of
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mailslice.stores.cassandra.packed import PackedPage


@dataclass(frozen=True, slots=True)
class UnmarkedPartition(PartitionKey):
    """A partition after the deletes.

    `unmarked` rows have no mark; `early` of those were written before the plan was made. `matched`
    rows are planned; `matched_unmarked` of those have no mark. `survivors` are some of the unmarked
    ids. `ids` are the low halves of all ids, 8 bytes each.
    """

    rows: int
    unmarked: int
    early: int
    matched: int
    matched_unmarked: int
    survivors: tuple[str, ...]
    ids: bytes


@dataclass(frozen=True, slots=True)
class Leftover:
    """What to read: a queue, the plan's files, and when the plan was made (microseconds)."""

    settings: Settings
    queue: QueueName
    location: Location
    folder: str
    made_us: int


def read_left(spark: Session, spec: Leftover, keys: Sequence[PlanKey]) -> list[UnmarkedPartition]:
    """Every key once."""

    def read(batches: Iterator[Sequence[PlanKey]]) -> Iterator[UnmarkedPartition]:
        stores = stores_of(spec.settings)
        marks = Marks(stores.tables.deleted, spec.queue)
        with PlanReader(spec.location, spec.folder) as reader:
            for batch in batches:
                read_keys = planned_partitions(
                    stores, spec.queue, batch, lambda rows: rows.packed_written_ids_of
                )
                for key, pages in read_keys:
                    yield _left(spec, key, pages, marks, reader)

    return run_on_keys(spark, keys, read)


def _left(
    spec: Leftover, key: PlanKey, pages: Iterator[PackedPage], marks: Marks, reader: PlanReader
) -> UnmarkedPartition:
    import numpy as np

    halves, live = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
    survivors, early = Survivors(), 0
    for ids, written in written_ids(pages):
        unmarked = ~marks.of(ids)
        halves.append(low_halves(ids))
        live.append(unmarked)
        survivors.add(ids[unmarked])
        early += int((unmarked & (written > 0) & (written <= spec.made_us)).sum())
    halves_read, alive = np.concatenate(halves), np.concatenate(live)
    count, planned = len(halves_read), np.empty(0, np.bool_)
    if count:
        planned = np.isin(halves_read, _planned(reader, key.part))
    where, counts = key.name, (count, int(alive.sum()), early)
    matched = (int(planned.sum()), int((planned & alive).sum()))
    packed = halves_read.astype(">u8").tobytes()
    return UnmarkedPartition(*where, *counts, *matched, survivors.shown(count), packed)


def _planned(reader: PlanReader, part: PlanPart) -> npt.NDArray[np.uint64]:
    """The low halves of the ids that are planned in a partition."""
    import numpy as np

    groups = (low_halves(of_texts(table.column("enqueue_id"))) for table in reader.groups(part))
    return np.concatenate([np.empty(0, np.uint64), *groups])
