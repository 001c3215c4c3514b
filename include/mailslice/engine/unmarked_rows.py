"""Read what is left in the view after the deletes, place by place, once: with ids, write times and marks.

Read-back of the plan's rows, marks that may go, contentStart, verify and statistics all build on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.id_arrays import low_halves, of_texts
from mailslice.engine.partition_scan import Marks, Survivors, written_ids
from mailslice.engine.plan_comparison import PlaceKey, planned_partitions
from mailslice.engine.row_files import Location, PlanPart, PlanReader
from mailslice.engine.worker_stores import stores_of
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mailslice.stores.cassandra.packed import PackedPage


@dataclass(frozen=True, slots=True)
class PlaceLeft:
    """A partition after the deletes. `unmarked` rows have no mark, `early` of them were written before the plan was made.

    `matched` rows are planned, `matched_unmarked` of them have no mark. `survivors` are unmarked ids, some of them; `ids` are the
    low halves of all ids, 8 bytes each.
    """

    table: str
    slice_ms: int
    bucket: int
    rows: int
    unmarked: int
    early: int
    matched: int
    matched_unmarked: int
    survivors: tuple[str, ...]
    ids: bytes


@dataclass(frozen=True, slots=True)
class Leftover:
    """What to read: a queue, where the plan's files are, and when the plan was made (microseconds)."""

    settings: Settings
    queue: QueueName
    place: Location
    folder: str
    made_us: int


def read_left(spark: Session, what: Leftover, keys: Sequence[PlaceKey]) -> list[PlaceLeft]:
    """Every key once."""

    def read(batches: Iterator[Sequence[PlaceKey]]) -> Iterator[PlaceLeft]:
        stores = stores_of(what.settings)
        marks = Marks(stores.tables.deleted, what.queue)
        with PlanReader(what.place, what.folder) as reader:
            for batch in batches:
                read_keys = planned_partitions(
                    stores, what.queue, batch, lambda rows: rows.packed_written_ids_of
                )
                for key, pages in read_keys:
                    yield _left(what, key, pages, marks, reader)

    return run_on_keys(spark, keys, read)


def _left(
    what: Leftover, key: PlaceKey, pages: Iterator[PackedPage], marks: Marks, reader: PlanReader
) -> PlaceLeft:
    import numpy as np

    halves, live = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
    survivors, early = Survivors(), 0
    for ids, written in written_ids(pages):
        unmarked = ~marks.of(ids)
        halves.append(low_halves(ids))
        live.append(unmarked)
        survivors.add(ids[unmarked])
        early += int((unmarked & (written > 0) & (written <= what.made_us)).sum())
    there, alive = np.concatenate(halves), np.concatenate(live)
    planned = np.isin(there, _planned(reader, key.part)) if len(there) else np.empty(0, np.bool_)
    where, counts = (key.table, key.slice_ms, key.bucket), (len(there), int(alive.sum()), early)
    matched = (int(planned.sum()), int((planned & alive).sum()))
    packed = there.astype(">u8").tobytes()
    return PlaceLeft(*where, *counts, *matched, survivors.shown(len(there)), packed)


def _planned(reader: PlanReader, part: PlanPart) -> npt.NDArray[np.uint64]:
    """The low halves of the ids that are planned in a place."""
    import numpy as np

    groups = (low_halves(of_texts(each.column("enqueue_id"))) for each in reader.groups(part))
    return np.concatenate([np.empty(0, np.uint64), *groups])
