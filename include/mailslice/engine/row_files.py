"""Plans as Parquet files that workers write and read, and a digest that no layout changes.

One file a task, one or more row groups a partition, never a row group of two partitions: the rows
of a partition are read without the rest of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from mailslice.engine.errors import meaning, naming
from mailslice.engine.id_arrays import of_texts, texts
from mailslice.model.errors import MailsliceError, PlanRefused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    from mailslice.engine.id_arrays import Ids

    Times = npt.NDArray[np.int64]
    """Write times, microseconds since the epoch."""


class Location(Protocol):
    """Where files are, on the driver and on executors: it must pickle, as `Artifacts` does."""

    @property
    def filesystem(self) -> FileSystem: ...

    def path(self, name: str) -> str:
        """The path of `name`, as the filesystem takes it."""


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """A queue's plan: `folder` of its files, below `location`. For workers."""

    settings: Settings
    queue: QueueName
    location: Location
    folder: str


ROWS_A_GROUP = 50_000
_MODULUS = 1 << 128


@cache
def plan_schema() -> pa.Schema:
    """Columns of a plan: partition, id, write time (WRITETIME, microseconds), and the reason."""
    import pyarrow as pa

    start, text = pa.timestamp("ms", "UTC"), pa.string()
    columns = {"table": text, "slice_start": start, "bucket": pa.int32(), "enqueue_id": text}
    columns |= {"written_us": pa.int64(), "why": text}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


@dataclass(frozen=True, slots=True)
class Digest:
    """Count, sum modulo 2^128 and xor of 128-bit hashes, of rows or row groups. They add up."""

    count: int = 0
    total: int = 0
    xor: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(
            self.count + other.count, (self.total + other.total) % _MODULUS, self.xor ^ other.xor
        )

    def __str__(self) -> str:
        return f"{self.count}-{self.total:032x}-{self.xor:032x}"

    @classmethod
    def parse(cls, text: str) -> Digest:
        """What `str` wrote. Raises ValueError."""
        count, total, xor = text.split("-")
        return cls(int(count), int(total, 16), int(xor, 16))


def digest_of(  # noqa: PLR0917 - a row group's columns
    table: str, slice_ms: int, bucket: int, ids: Ids, written: Times, why: str
) -> Digest:
    """The digest of a row group of one place: of its bytes, in their order."""
    if not len(ids):
        return Digest()
    rows = hashlib.blake2b(
        f"{table}|{slice_ms}|{bucket}|{why}|{len(ids)}|".encode(), digest_size=16
    )
    rows.update(ids.tobytes())
    rows.update(written.astype("<i8").tobytes())
    value = int.from_bytes(rows.digest(), "little")
    return Digest(len(ids), value, value)


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Row groups `first` to `first + groups` of a partition; `file` is below the plan's folder."""

    file: str
    first: int
    groups: int


NO_PART = PlanPart("", 0, 0)
"""Nothing is planned there."""


class GroupWriter:
    """Writes one file below `folder`, a row group at a time; creates nothing before the first."""

    def __init__(self, location: Location, folder: str, file: str) -> None:
        self._location, self._file = location, file
        self._path = location.path(f"{folder}/{file}")
        self._writer: Any = None

    def _write(self, group: pa.Table) -> None:
        import pyarrow.parquet as pq

        with naming(self._path):
            if self._writer is None:
                files = self._location.filesystem
                self._writer = pq.ParquetWriter(
                    self._path, group.schema, filesystem=files, compression="zstd"
                )
            self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self) -> Any:
        if self._writer is not None:
            with naming(self._path):
                self._writer.close()


class PlanWriter(GroupWriter):
    """The file of one task. Tell nobody of its parts before it is closed."""

    def __init__(self, location: Location, folder: str, file: str = "") -> None:
        super().__init__(location, folder, file or f"part-{uuid4()}.parquet")
        self._groups = 0

    def __enter__(self) -> PlanWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(
        self, table: str, slice_ms: int, bucket: int, chunks: Iterable[tuple[Ids, Times]], why: str
    ) -> tuple[PlanPart, Digest]:
        """Append a partition's rows, at most ROWS_A_GROUP a chunk; where they are, their digest."""
        import pyarrow as pa

        first, digest = self._groups, Digest()
        for ids, written in chunks:
            count = len(ids)
            columns = [
                pa.repeat(table, count),
                pa.repeat(pa.scalar(slice_ms, pa.timestamp("ms", "UTC")), count),
                pa.repeat(pa.scalar(bucket, pa.int32()), count),
                texts(ids),
                pa.array(written, pa.int64()),
                pa.repeat(why, count),
            ]
            self._write(pa.Table.from_arrays(columns, schema=plan_schema()))
            self._groups += 1
            digest += digest_of(table, slice_ms, bucket, ids, written, why=why)
        return PlanPart(self._file, first, self._groups - first), digest


def refused(file: str, error: Exception) -> MailsliceError:
    """What a file of a plan is that cannot be read: refused, where its store does answer."""
    problem = " ".join(str(error).split())[:200]
    return meaning(str(error)) or PlanRefused(
        f"the file {file} of the plan cannot be read, it was changed or removed "
        f"({problem}): plan again"
    )


class PlanReader:
    """Reads row groups of a plan's files. The last file stays open for its next group.

    Raises PlanRefused for a file that is gone, damaged, or holds other columns.
    """

    def __init__(self, location: Location, folder: str) -> None:
        self._location = location
        self._folder = folder
        self._open: tuple[str, Any] | None = None

    def groups(self, part: PlanPart) -> Iterator[pa.Table]:
        """Those of one partition."""
        for number in range(part.first, part.first + part.groups):
            schema = (table := self.group(part.file, number)).schema
            if (schema.names, schema.types) != (plan_schema().names, plan_schema().types):
                raise refused(part.file, ValueError("it has other columns"))
            yield table

    def group(self, file: str, number: int) -> pa.Table:
        try:
            table = self._file(file).read_row_group(number)
            table.validate(full=True)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise refused(file, error) from error
        return table

    def count(self, file: str) -> int:
        """How many row groups a file has."""
        try:
            return int(self._file(file).num_row_groups)
        except (OSError, ValueError) as error:
            raise refused(file, error) from error

    def __enter__(self) -> PlanReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open[1].close()

    def _file(self, file: str) -> Any:
        import pyarrow.parquet as pq

        if self._open is None or self._open[0] != file:
            self.__exit__()
            path = self._location.path(f"{self._folder}/{file}")
            self._open = (file, pq.ParquetFile(self._location.filesystem.open_input_file(path)))
        return self._open[1]


def digest_of_table(table: pa.Table) -> Digest:
    """The digest of a row group as it is in the file: every column counts."""
    import pyarrow.compute as pc

    columns = [table.column(name) for name in ("table", "slice_start", "bucket", "why")]
    if any(pc.count_distinct(column).as_py() != 1 for column in columns):
        return Digest(table.num_rows)  # rows of several places, as no group is written
    columns[1] = columns[1].cast("int64")
    name, start, bucket, why = (column[0].as_py() for column in columns)
    ids, written = of_texts(table.column("enqueue_id")), table.column("written_us").to_numpy()
    return digest_of(name, start, bucket, ids, written, why=why)
