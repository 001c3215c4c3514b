"""Deleted marks in Python workers: list those without a row, and drop those that a plan names.

Ids are rows of 16 bytes (`engine.id_arrays`), in files of at most IDS_A_FILE: a worker loads one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mailslice.engine.errors import meaning, naming
from mailslice.engine.frames import Session, run_on_keys, shared
from mailslice.engine.id_arrays import among, low_halves, of_packed, of_texts, pack
from mailslice.engine.partition_scan import READS_IN_FLIGHT, Marks
from mailslice.engine.row_files import PlanFiles, PlanPart, PlanReader
from mailslice.engine.worker_stores import stores_of
from mailslice.model.errors import PlanRefused
from mailslice.stores.cassandra.ids import cut
from mailslice.stores.cassandra.ranges import TokenRange

Halves = npt.NDArray[np.uint64]
"""Low halves of ids, sorted."""
Retained = Callable[[], tuple[Halves, Halves]]
"""In a worker: ids that have a row, and ids that the caller blocks. Their marks stay."""

if TYPE_CHECKING:
    from mailslice.engine.id_arrays import Ids

IDS_A_FILE = 50_000
"""Seconds of work, so that whoever drops them can look at the time between two files."""
_AT_ONCE = 10_000
"""Marks between two looks at the allowed rate."""
_COLUMN = "enqueue_id"


@dataclass(frozen=True, slots=True)
class Dropping(PlanFiles):
    """Whose marks, and where ids are. `turn(n)` blocks until n more may go: a copy each task."""

    turn: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """`dropped` marks; ids without a row whose mark stays: those `blocked` by the caller."""

    dropped: int = 0
    blocked: int = 0

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped(self.dropped + other.dropped, self.blocked + other.blocked)


class MarkFile(NamedTuple):
    """A Parquet file of ids, and the SHA-256 of its bytes."""

    file: str
    marks: int
    sha256: str


def list_marks(
    spark: Session, spec: Dropping, ranges: Sequence[TokenRange], rows: Halves
) -> list[MarkFile]:
    """Write the ids of all marks in these token ranges that are not among `rows`; the files."""
    with shared(spark, rows) as row_halves:

        def read(batches: Iterator[Sequence[TokenRange]]) -> Iterator[MarkFile]:
            deleted, writer = stores_of(spec.settings).tables.deleted, _MarkWriter(spec)
            for batch in batches:
                for page in deleted.packed_ids_of(spec.queue, batch):
                    ids = of_packed(page)
                    writer.add(ids[~among(low_halves(ids), row_halves())])
            yield from writer.close()

        return run_on_keys(spark, ranges, read)


def drop_listed(
    spark: Session, spec: Dropping, files: Sequence[MarkFile], retained: Retained
) -> Dropped:
    """Drop the marks that files of `list_marks` name and that are still there.

    Those of `retained` ids stay. Raises PlanRefused for a file that was changed.
    """
    return _drop(spark, spec, files, lambda batches: _listed(spec, batches), retained)


def drop_planned(
    spark: Session, spec: Dropping, parts: Sequence[PlanPart], retained: Retained
) -> Dropped:
    """As `drop_listed`, the ids of a plan's rows, whose marks were read twice."""

    def ids(batches: Iterator[Sequence[PlanPart]]) -> Iterator[Ids]:
        return (of_texts(table.column(_COLUMN)) for table in _tables(spec, batches))

    return _drop(spark, spec, parts, ids, retained)


def _drop(
    spark: Session,
    spec: Dropping,
    keys: Sequence[MarkFile] | Sequence[PlanPart],
    read: Callable[..., Iterator[Ids]],
    retained: Retained,
) -> Dropped:
    def drop(batches: Iterator[Sequence[object]]) -> Iterator[Dropped]:
        deleted = stores_of(spec.settings).tables.deleted
        for ids in read(batches):
            with_row, stopped = (among(low_halves(ids), halves) for halves in retained())
            free = ids[~with_row & ~stopped]
            for at in range(0, len(free), _AT_ONCE):
                batch = free[at : at + _AT_ONCE]
                if spec.turn is not None:
                    spec.turn(len(batch))
                deleted.drop_packed(spec.queue, cut(pack(batch)), READS_IN_FLIGHT)
            yield Dropped(len(free), int((stopped & ~with_row).sum()))

    return sum(run_on_keys(spark, keys, drop), Dropped())


def halves_of(pages: Sequence[bytes]) -> Halves:
    """Big-endian low halves, 8 bytes each, as `Halves`."""
    return np.sort(np.frombuffer(b"".join(pages), dtype=">u8").astype(np.uint64))


def _tables(spec: Dropping, batches: Iterator[Sequence[PlanPart]]) -> Iterator[pa.Table]:
    """The row groups of the parts, those of one file after each other."""
    with PlanReader(spec.location, spec.folder) as reader:
        for batch in batches:
            for part in sorted(batch, key=lambda part: (part.file, part.first)):
                yield from reader.groups(part)


def _listed(spec: Dropping, batches: Iterator[Sequence[MarkFile]]) -> Iterator[Ids]:
    """The ids of the files that are marked now: a sweep that was killed here has dropped some."""
    marks = Marks(stores_of(spec.settings).tables.deleted, spec.queue)
    for batch in batches:
        for file in batch:
            ids = _read(spec, file)
            yield ids[marks.of(ids)]


def _read(spec: Dropping, file: MarkFile) -> Ids:
    name = f"{spec.folder}/{file.file}"
    try:
        with spec.location.filesystem.open_input_stream(spec.location.path(name)) as stream:
            data = stream.read()
    except OSError as error:
        why = " ".join(str(error).split())[:200]
        refused = PlanRefused(f"the list of marks {name} cannot be read ({why})")
        raise meaning(str(error)) or refused from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise PlanRefused(f"the list of marks {name} was changed")
    column = pq.read_table(pa.BufferReader(data)).column(_COLUMN)
    ids = b"".join(
        chunk.buffers()[1].slice(16 * chunk.offset, 16 * len(chunk)).to_pybytes()
        for chunk in column.chunks
    )
    return np.frombuffer(ids, np.uint8).reshape(-1, 16)


@dataclass
class _MarkWriter:
    """Collects ids, and writes a file whenever there are enough for one."""

    spec: Dropping
    files: list[MarkFile] = field(default_factory=list)
    waiting: list[Ids] = field(default_factory=list)

    def add(self, ids: Ids) -> None:
        self.waiting.append(ids)
        if sum(map(len, self.waiting)) >= IDS_A_FILE:
            self._write()

    def close(self) -> list[MarkFile]:
        if sum(map(len, self.waiting)):
            self._write()
        return self.files

    def _write(self) -> None:
        ids = np.concatenate(self.waiting)
        self.waiting = []
        values = pa.py_buffer(ids.tobytes())
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, values])
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({_COLUMN: column}), out, compression="none", use_dictionary=False)
        data = out.getvalue().to_pybytes()
        name, location = f"marks-{uuid4()}.parquet", self.spec.location
        path = location.path(f"{self.spec.folder}/{name}")
        with naming(path), location.filesystem.open_output_stream(path) as file:
            file.write(data)
        self.files.append(MarkFile(name, len(ids), hashlib.sha256(data).hexdigest()))
