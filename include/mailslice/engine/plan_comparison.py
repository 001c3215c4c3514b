"""Compare the rows of a plan with the view, partition by partition: before a delete, and after it.

The planned ids of one partition are in memory; the stored ids come in pages. After the deletes, one
read of ids, write times and marks serves read-back, mark deletion, contentStart, verify and
statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from mailslice.engine import id_arrays, partition_scan, row_files
from mailslice.engine.frames import R, Session, run_on_keys
from mailslice.engine.id_arrays import Ids, Times
from mailslice.engine.partition_scan import Marks, P, PartitionKey, Survivors
from mailslice.engine.row_files import Digest, PlanFiles, PlanPart, PlanReader
from mailslice.engine.worker_stores import stores_of
from mailslice.model.mail import Partition
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.packed import PackedPage


@dataclass(frozen=True, slots=True)
class PlanKey(PartitionKey):
    """A partition and its planned rows. A `part` without groups means that none are planned."""

    part: PlanPart = row_files.NO_PART


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

    @classmethod
    def of(cls, key: PlanKey, pages: Iterator[bytes], marks: Marks, reader: PlanReader) -> Self:
        planned, digest = _planned(reader, key.part)
        known = np.sort(id_arrays.as_values(planned))
        rows = matched = unmarked = unmarked_planned = 0
        for ids in map(id_arrays.of_packed, pages):
            is_planned, live = id_arrays.among(id_arrays.as_values(ids), known), ~marks.of(ids)
            rows += len(ids)
            matched += int(is_planned.sum())
            unmarked += int(live.sum())
            unmarked_planned += int((live & is_planned).sum())
        counts = (rows, matched, rows - matched, unmarked, unmarked_planned)
        return cls(*key.name, *counts, digest)


def compare(session: Session, spec: PlanFiles, keys: Sequence[PlanKey]) -> list[PartitionNow]:
    """Each partition as it is now, compared with its planned rows."""
    return _on_partitions(session, spec, keys, lambda rows: rows.packed_ids_of, PartitionNow.of)


def _on_partitions(
    session: Session,
    spec: PlanFiles,
    keys: Sequence[PlanKey],
    method: Callable[[EnqueuedMails], Callable[..., Iterator[tuple[Partition, P]]]],
    count: Callable[[PlanKey, Iterator[P], Marks, PlanReader], R],
) -> list[R]:
    """Apply `count` to each key and to the pages that `method` of the key's table reads."""

    def read(batches: Iterator[Sequence[PlanKey]]) -> Iterator[R]:
        stores = stores_of(spec.settings)
        marks = Marks(stores.tables.deleted, spec.queue)
        with PlanReader(spec.location, spec.folder) as reader:
            for batch in batches:
                ordered = sorted(batch, key=lambda key: (key.part.file, key.part.first))
                for rows in (stores.tables.v3, stores.tables.v4):
                    of_table = [key for key in ordered if key.table == rows.table.value]
                    if not of_table:  # the table may not exist
                        continue
                    partitions = [key.partition for key in of_table]
                    read_pages = partition_scan.pages_by_partition(
                        method(rows), spec.queue, partitions
                    )
                    for key, (_, pages) in zip(of_table, read_pages, strict=True):
                        yield count(key, pages, marks, reader)

    return run_on_keys(session, keys, read)


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
class RemainingSpec(PlanFiles):
    """What to read after the deletes; `made_us`: when the plan was made, in microseconds."""

    made_us: int


def read_after(
    session: Session, spec: RemainingSpec, keys: Sequence[PlanKey]
) -> list[UnmarkedPartition]:
    """Each partition after the deletes."""

    def count(
        key: PlanKey, pages: Iterator[PackedPage], marks: Marks, reader: PlanReader
    ) -> UnmarkedPartition:
        return _after(key, partition_scan.written_ids(pages), marks, reader, spec.made_us)

    return _on_partitions(session, spec, keys, lambda rows: rows.packed_written_ids_of, count)


def _after(
    key: PlanKey, pages: Iterator[tuple[Ids, Times]], marks: Marks, reader: PlanReader, made_us: int
) -> UnmarkedPartition:
    halves, live = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
    survivors, early = Survivors(), 0
    for ids, written in pages:
        unmarked = ~marks.of(ids)
        halves.append(id_arrays.low_halves(ids))
        live.append(unmarked)
        survivors.add(ids[unmarked])
        early += int((unmarked & (written > 0) & (written <= made_us)).sum())
    halves_read, alive = np.concatenate(halves), np.concatenate(live)
    count, planned = len(halves_read), np.empty(0, np.bool_)
    if count:  # for an empty partition the plan is not read
        planned = np.isin(halves_read, id_arrays.low_halves(_planned(reader, key.part)[0]))
    where, counts = key.name, (count, int(alive.sum()), early)
    matched = (int(planned.sum()), int((planned & alive).sum()))
    packed = halves_read.astype(">u8").tobytes()
    return UnmarkedPartition(*where, *counts, *matched, survivors.shown(count), packed)


def _planned(reader: PlanReader, part: PlanPart) -> tuple[Ids, Digest]:
    """The planned ids of a partition, and the digest of all its planned rows."""
    ids, digest = [np.empty((0, 16), np.uint8)], Digest()
    for table in reader.groups(part):
        ids.append(id_arrays.of_texts(table.column("enqueue_id")))
        digest += row_files.digest_of(table)
    return np.concatenate(ids), digest
