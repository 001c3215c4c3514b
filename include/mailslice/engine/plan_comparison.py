"""Compare a plan's rows with the view as it is now, partition by partition, before a delete.

Both sides come in the order of the clustering key, as a plan's rows are written as they are read.
So one walk compares them in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.id_arrays import of_packed, of_texts
from mailslice.engine.partition_scan import Marks, P, PartitionKey, pages_by_partition
from mailslice.engine.row_files import (
    NO_PART,
    Digest,
    Location,
    PlanPart,
    PlanReader,
    digest_of_table,
)
from mailslice.engine.worker_stores import stores_of
from mailslice.model.mail import Partition, QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mailslice.engine.id_arrays import Ids
    from mailslice.stores import Stores
    from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails


@dataclass(frozen=True, slots=True)
class PlanKey(PartitionKey):
    """A partition, and where its planned rows are; a `part` without groups: none are planned."""

    part: PlanPart = NO_PART


@dataclass(frozen=True, slots=True)
class PartitionNow(PartitionKey):
    """A partition now.

    It has `matched` planned rows and `foreign` rows that are not planned. `unmarked` rows have no
    mark; `unmarked_planned` of those are planned. `digest` is of the planned rows as the plan's
    files have them.
    """

    rows: int
    matched: int
    foreign: int
    unmarked: int
    unmarked_planned: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare: a queue, the plan's folder."""

    settings: Settings
    queue: QueueName
    location: Location
    folder: str


def compare(spark: Session, spec: Comparison, keys: Sequence[PlanKey]) -> list[PartitionNow]:
    """Every key once."""

    def read(batches: Iterator[Sequence[PlanKey]]) -> Iterator[PartitionNow]:
        stores = stores_of(spec.settings)
        marks = Marks(stores.tables.deleted, spec.queue)
        with PlanReader(spec.location, spec.folder) as reader:
            for batch in batches:
                keys = sorted(batch, key=lambda key: (key.part.file, key.part.first))
                read_keys = planned_partitions(
                    stores, spec.queue, keys, lambda rows: rows.packed_ids_of
                )
                for key, pages in read_keys:
                    counts = _before(map(of_packed, pages), _Planned(reader, key.part), marks)
                    yield PartitionNow(*key.name, **counts)

    return run_on_keys(spark, keys, read)


def planned_partitions(
    stores: Stores,
    queue: QueueName,
    keys: Sequence[PlanKey],
    method: Callable[[EnqueuedMails], Callable[..., Iterator[tuple[Partition, P]]]],
) -> Iterator[tuple[PlanKey, Iterator[P]]]:
    """Each key with the pages that `method` of its table reads; table by table."""
    for rows in (stores.tables.v3, stores.tables.v4):
        of_table = [key for key in keys if key.table == rows.table.value]
        if of_table:  # else the table may not exist
            read = pages_by_partition(method(rows), queue, [key.partition for key in of_table])
            for key, (_, pages) in zip(of_table, read, strict=True):
                yield key, pages


def _before(pages: Iterator[Ids], planned: _Planned, marks: Marks) -> dict[str, Any]:
    """Whether the place is still what was planned: ids and marks, in one walk."""
    rows = matched = unmarked = unmarked_planned = 0
    for ids in pages:
        is_planned, live = planned.among(ids), ~marks.of(ids)
        rows += len(ids)
        matched += int(is_planned.sum())
        unmarked += int(live.sum())
        unmarked_planned += int((live & is_planned).sum())
    counts = {"rows": rows, "matched": matched, "foreign": rows - matched, "unmarked": unmarked}
    return {**counts, "unmarked_planned": unmarked_planned, "digest": planned.finish()}


class _Planned:
    """The planned ids of one partition, walked once beside its stored ids, by row group."""

    def __init__(self, reader: PlanReader, part: PlanPart) -> None:
        self._digest = Digest()
        self._reader = reader
        self._part = part
        self._groups = self._read()
        self._group: Ids | None = None
        self._at = 0
        """Of the row group, the first id that no id there was compared with."""

    def among(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of the next stored ids are planned.

        Planned ids before them are deleted by now. After an id that is not planned none counts.
        """
        import numpy as np

        planned = np.zeros(len(ids), np.bool_)
        at = 0
        while at < len(ids) and (group := self._rest()) is not None:
            count = min(len(group), len(ids) - at)
            same = (group[:count] == ids[at : at + count]).all(axis=1)
            equal = count if same.all() else int(same.argmin())
            planned[at : at + equal] = True
            at += equal
            self._at += equal
            if equal < count and not self._skip_to(ids[at]):
                break
        return planned

    def finish(self) -> Digest:
        """Walk to the end; the digest of all planned rows."""
        for _ in self._groups:
            pass
        return self._digest

    def _rest(self) -> Ids | None:
        """What is left of the row group, or the next one; None at the end."""
        while self._group is None or self._at >= len(self._group):
            self._group, self._at = next(self._groups, None), 0
            if self._group is None:
                return None
        return self._group[self._at :]

    def _skip_to(self, enqueue_id: Ids) -> bool:
        """Walk on to this id; whether it is in the plan."""
        while (group := self._rest()) is not None:
            same = (group == enqueue_id).all(axis=1)
            if same.any():
                self._at += int(same.argmax())
                return True
            self._at += len(group)
        return False

    def _read(self) -> Iterator[Ids]:
        for table in self._reader.groups(self._part):
            self._digest += digest_of_table(table)
            yield of_texts(table.column("enqueue_id"))
