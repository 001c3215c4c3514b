"""Lists deleted marks without a row, and drops the marks that a plan names, in Python workers.

Ids are rows of 16 bytes (`engine.id_arrays`) in Parquet row groups. A worker loads one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mailslice.engine import row_files
from mailslice.engine.frames import Session, run_on_keys, shared
from mailslice.engine.id_arrays import Ids, among, low_halves, of_packed, of_texts, pack
from mailslice.engine.partition_scan import READS_IN_FLIGHT, Marks
from mailslice.engine.row_files import PlanFiles, PlanPart, PlanReader, RowGroup, RowWriter
from mailslice.engine.worker_stores import stores_of
from mailslice.stores.cassandra.ids import id_batches
from mailslice.stores.cassandra.ranges import TokenRange

Halves = npt.NDArray[np.uint64]
"""Low halves of ids, sorted."""
Retained = Callable[[], tuple[Halves, Halves]]
"""Called in a worker: ids that have a row, and ids that the caller blocks. Their marks stay."""

IDS_A_GROUP = 50_000
"""Dropping a group takes seconds. The caller checks its time limit between two groups."""
_AT_ONCE = 10_000
"""Marks that are dropped between two calls of `turn`."""
_COLUMN = "enqueue_id"


@dataclass(frozen=True, slots=True)
class DropSpec(PlanFiles):
    """Queue, and files of ids. `turn(n)` waits until n drops are allowed; each task has a copy."""

    turn: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class DropCounts:
    """Counts: marks that were `dropped`; marks without a row that stay, `blocked` by the caller."""

    dropped: int = 0
    blocked: int = 0

    def __add__(self, other: DropCounts) -> DropCounts:
        return DropCounts(self.dropped + other.dropped, self.blocked + other.blocked)


def list_marks(
    session: Session, spec: DropSpec, ranges: Sequence[TokenRange], rows: Halves
) -> list[RowGroup]:
    """Write the ids of all marks in these token ranges that are not among `rows`."""
    with shared(session, rows) as row_halves:

        def read(batches: Iterator[Sequence[TokenRange]]) -> Iterator[RowGroup]:
            deleted = stores_of(spec.settings).tables.deleted
            waiting: list[Ids] = []
            with RowWriter(spec.location, spec.folder, f"marks-{uuid4()}.parquet") as writer:
                for batch in batches:
                    for page in deleted.packed_ids_of(spec.queue, batch):
                        ids = of_packed(page)
                        waiting.append(ids[~among(low_halves(ids), row_halves())])
                        _write(writer, waiting, IDS_A_GROUP)
                _write(writer, waiting, 1)
            yield from writer.groups  # only now is the file complete

        return run_on_keys(session, ranges, read)


def drop_listed(
    session: Session, spec: DropSpec, groups: Sequence[RowGroup], retained: Retained
) -> DropCounts:
    """Drop the marks that row groups of `list_marks` name and that still exist.

    Marks of `retained` ids stay. Raises PlanRefused for a file that was changed.
    """
    return _drop(session, spec, groups, lambda batches: _listed(spec, batches), retained)


def drop_planned(
    session: Session, spec: DropSpec, parts: Sequence[PlanPart], retained: Retained
) -> DropCounts:
    """As `drop_listed`, for the ids of a plan's rows. Their marks were read twice already."""

    def ids(batches: Iterator[Sequence[PlanPart]]) -> Iterator[Ids]:
        return (of_texts(table.column(_COLUMN)) for table in _tables(spec, batches))

    return _drop(session, spec, parts, ids, retained)


def _drop(
    session: Session,
    spec: DropSpec,
    keys: Sequence[RowGroup] | Sequence[PlanPart],
    read: Callable[..., Iterator[Ids]],
    retained: Retained,
) -> DropCounts:
    def drop(batches: Iterator[Sequence[object]]) -> Iterator[DropCounts]:
        deleted = stores_of(spec.settings).tables.deleted
        for ids in read(batches):
            with_row, blocked = (among(low_halves(ids), halves) for halves in retained())
            droppable = ids[~with_row & ~blocked]
            for at in range(0, len(droppable), _AT_ONCE):
                batch = droppable[at : at + _AT_ONCE]
                if spec.turn is not None:
                    spec.turn(len(batch))
                deleted.drop_packed(spec.queue, id_batches(pack(batch)), READS_IN_FLIGHT)
            yield DropCounts(len(droppable), int((blocked & ~with_row).sum()))

    return sum(run_on_keys(session, keys, drop), DropCounts())


def halves_of(pages: Sequence[bytes]) -> Halves:
    """Big-endian low halves, 8 bytes each, as `Halves`."""
    return np.sort(np.frombuffer(b"".join(pages), dtype=">u8").astype(np.uint64))


def _tables(spec: DropSpec, batches: Iterator[Sequence[PlanPart]]) -> Iterator[pa.Table]:
    """The row groups of the parts, sorted by file: the reader keeps one file open."""
    with PlanReader(spec.location, spec.folder) as reader:
        for batch in batches:
            for part in sorted(batch, key=lambda part: (part.file, part.first)):
                yield from reader.groups(part)


def _write(writer: RowWriter, waiting: list[Ids], least: int) -> None:
    """Write the waiting ids as one row group, if there are at least `least`."""
    if sum(map(len, waiting)) >= least:
        ids = np.concatenate(waiting)
        waiting.clear()
        values = [None, pa.py_buffer(ids.tobytes())]
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), values)
        writer.add(pa.table({_COLUMN: column}), len(ids))


def _listed(spec: DropSpec, batches: Iterator[Sequence[RowGroup]]) -> Iterator[Ids]:
    """The ids that are still marked: a sweep that was killed here may have dropped some marks."""
    marks = Marks(stores_of(spec.settings).tables.deleted, spec.queue)
    for batch in batches:
        for _, table in row_files.read_groups(spec.location, spec.folder, batch):
            column = pa.concat_arrays(table.column(_COLUMN).chunks)
            first, end = 16 * column.offset, 16 * (column.offset + len(column))
            ids = np.frombuffer(column.buffers()[1], np.uint8)[first:end].reshape(-1, 16)
            yield ids[marks.of(ids)]
