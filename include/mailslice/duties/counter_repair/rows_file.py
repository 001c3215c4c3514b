"""Parquet files of a plan, in its run's folder: written a part at a time by whoever has the rows, known by the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mailslice.duty.artifacts import RunFolder
from mailslice.model.errors import PlanRefused

if TYPE_CHECKING:
    import pyarrow as pa

    from mailslice.spark.plan_files import Location

PARTS = "plan"
"""The folder of the files, in the run's folder."""
_ROWS_A_GROUP = 50_000


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A Parquet file of the plan: its name in the folder, its rows and the SHA-256 of its bytes."""

    name: str
    rows: int
    sha256: str


def require_file(file: PlanFile, folder: RunFolder) -> None:
    """Raises PlanRefused when the file is not what was written."""
    digest = hashlib.sha256()
    name = f"{PARTS}/{file.name}"
    try:
        with folder.artifacts.filesystem.open_input_stream(
            folder.artifacts.path(folder.file(name))
        ) as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
    except FileNotFoundError:
        raise PlanRefused(f"{folder.uri}/{name} of the plan is gone: plan again") from None
    if digest.hexdigest() != file.sha256:
        raise PlanRefused(f"{folder.uri}/{name} was changed since the plan was made: plan again")


def read_rows(file: PlanFile, folder: RunFolder) -> Iterator[dict[str, Any]]:
    """The rows of a file, a row group at a time."""
    import pyarrow.parquet as pq

    with folder.artifacts.filesystem.open_input_file(
        folder.artifacts.path(folder.file(f"{PARTS}/{file.name}"))
    ) as opened:
        parquet = pq.ParquetFile(opened)
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group).to_pylist()


class RowsWriter:
    """Writes one Parquet file of the plan; nothing is created before the first row, unless `always`."""

    def __init__(
        self, place: Location, folder: str, name: str, schema: pa.Schema, *, always: bool = False
    ) -> None:
        self._open: Callable[[], Any] = lambda: place.filesystem.open_output_stream(
            place.path(f"{folder}/{file}")
        )
        file = self._file = f"{name}-{uuid4()}.parquet"
        self._schema = schema
        self._sink: _Hashing | None = None
        self._writer: Any = None
        self._rows = 0
        if always:
            self._start()

    def add(self, rows: pa.Table) -> None:
        """Append rows of the schema."""
        if self._writer is None:
            self._start()
        self._writer.write_table(rows.cast(self._schema), row_group_size=_ROWS_A_GROUP)
        self._rows += rows.num_rows

    def close(self) -> PlanFile | None:
        """Finish the file; what it is, or None when none was made."""
        if self._writer is None or self._sink is None:
            return None
        self._writer.close()
        self._sink.finish()
        return PlanFile(self._file, self._rows, self._sink.digest.hexdigest())

    def _start(self) -> None:
        import pyarrow.parquet as pq

        self._sink = _Hashing(self._open())
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")


class _Hashing:
    """A file to write to that keeps the digest of what was written."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self.digest = hashlib.sha256()
        self._stream = stream

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self._stream.write(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """What pyarrow calls; the stream is closed by `finish`."""

    def finish(self) -> None:
        self._stream.close()


def table_of(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table."""
    import pyarrow as pa

    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
