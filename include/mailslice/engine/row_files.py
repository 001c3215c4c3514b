"""Parquet files that workers write and read. Digests of row groups prove that a plan is unchanged.

A digest covers every column's name, type and values. Digests of row groups add up in any order.
`RowWriter` takes Arrow tables. `PlanWriter` takes ids of the view, and none of its row groups has
rows of two partitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from mailslice.engine.errors import mailslice_error_in, naming_location
from mailslice.model.closing import Closing
from mailslice.model.errors import MailsliceError, PlanRefused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    from mailslice.engine.id_arrays import Ids, Times


class Location(Protocol):
    """Where files are, on the driver and on executors: it must pickle, as `Artifacts` does."""

    @property
    def filesystem(self) -> FileSystem: ...

    def path(self, name: str) -> str:
        """The path of `name`, as the filesystem takes it."""


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """A queue, and its plan's files: in `folder`, below `location`. Sent to workers."""

    settings: Settings
    queue: QueueName
    location: Location
    folder: str


ROWS_A_GROUP = 50_000
_MODULUS = 1 << 128


@cache
def plan_schema() -> pa.Schema:
    """Columns of a plan: partition, id and write time (WRITETIME, microseconds)."""
    import pyarrow as pa

    start, text = pa.timestamp("ms", "UTC"), pa.string()
    columns = {"table": text, "slice_start": start, "bucket": pa.int32(), "enqueue_id": text}
    columns |= {"written_us": pa.int64()}
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
        """The inverse of `str`. Raises ValueError."""
        count, total, xor = text.split("-")
        return cls(int(count), int(total, 16), int(xor, 16))


def digest_of(rows: pa.Table) -> Digest:
    """The digest of one row group: its columns' names, types and values, in their order."""
    if not rows.num_rows:
        return Digest()
    value = hashlib.blake2b(digest_size=16)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        value.update(f"{name}|{column.type}|{rows.num_rows}|".encode())
        for data in _bytes_of(column):
            value.update(data)
    number = int.from_bytes(value.digest(), "little")
    return Digest(rows.num_rows, number, number)


def _bytes_of(column: pa.ChunkedArray) -> Iterator[bytes | memoryview]:
    """The null flags, then the values; of text and bytes the lengths first."""
    import numpy as np
    import pyarrow as pa

    nulls = column.null_count
    yield column.is_null().to_numpy().tobytes() if nulls else bytes(len(column))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    numbers = pa.types.is_primitive(column.type)
    if not numbers:  # text, bytes and ids of fixed size; nested columns are not implemented
        column = column.cast(pa.large_binary())
    if nulls:
        column = column.fill_null(pa.scalar(0 if numbers else b"").cast(column.type))
    if numbers:
        yield column.to_numpy().tobytes()
        return
    binary = column.combine_chunks()
    _, offsets, data = binary.buffers()
    ends = np.frombuffer(offsets, "<i8")[binary.offset : binary.offset + len(binary) + 1]
    yield np.diff(ends).tobytes()
    yield memoryview(data or b"")[ends[0] : ends[-1]]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group, the unit of a worker's task. `file` is relative to the run's folder."""

    file: str
    number: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of a plan, relative to the run's folder. Without rows there is no file."""

    file: str
    rows: int
    digest: str

    @classmethod
    def of(cls, file: str, groups: Iterable[RowGroup]) -> RowFile:
        """The file of these row groups."""
        digest = sum((Digest.parse(group.digest) for group in groups), Digest())
        return cls(file, digest.count, str(digest))


@dataclass(frozen=True, slots=True)
class PlanPart:
    """`groups` row groups of a partition, from `first` on; `file` is below the plan's folder."""

    file: str
    first: int
    groups: int


NO_PART = PlanPart("", 0, 0)
"""Of a partition without planned rows."""


class GroupWriter(Closing):
    """Writes one file below `folder`, a row group at a time; creates nothing before the first."""

    def __init__(self, location: Location, folder: str, file: str) -> None:
        self._location, self._file = location, file
        self._path = location.path(f"{folder}/{file}")
        self._writer: Any = None

    def _write(self, group: pa.Table) -> Digest:
        import pyarrow.parquet as pq

        with naming_location(self._path):
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    self._path,
                    group.schema,
                    filesystem=self._location.filesystem,
                    compression="zstd",
                    use_dictionary=False,  # most values differ
                )
            self._writer.write_table(group, row_group_size=group.num_rows)
        return digest_of(group)

    def close(self) -> Any:
        if self._writer is not None:
            with naming_location(self._path):
                self._writer.close()


class RowWriter(GroupWriter):
    """Writes Arrow tables, also on executors. A retried task needs another file name (`uuid4`)."""

    def __init__(self, location: Location, folder: str, file: str) -> None:
        super().__init__(location, folder, file)
        self.groups: list[RowGroup] = []

    def add(self, rows: pa.Table, rows_per_group: int = ROWS_A_GROUP) -> None:
        """Append rows, in row groups of at most `rows_per_group` rows."""
        for first in range(0, rows.num_rows, rows_per_group):
            digest = self._write(rows.slice(first, rows_per_group))
            self.groups.append(RowGroup(self._file, len(self.groups), digest.count, str(digest)))

    def close(self) -> RowFile:
        """Finish the file."""
        super().close()
        return RowFile.of(self._file, self.groups)


class PlanWriter(GroupWriter):
    """Writes the file of one task. Its parts may be used only after it is closed."""

    def __init__(self, location: Location, folder: str, file: str = "") -> None:
        super().__init__(location, folder, file or f"part-{uuid4()}.parquet")
        self._groups = 0

    def add(
        self, table: str, slice_ms: int, bucket: int, chunks: Iterable[tuple[Ids, Times]]
    ) -> tuple[PlanPart, Digest]:
        """Append a partition's rows, in chunks of at most ROWS_A_GROUP; return part and digest."""
        import pyarrow as pa

        from mailslice.engine.id_arrays import texts

        first, digest = self._groups, Digest()
        for ids, written in chunks:
            count = len(ids)
            columns = [
                pa.repeat(table, count),
                pa.repeat(pa.scalar(slice_ms, pa.timestamp("ms", "UTC")), count),
                pa.repeat(pa.scalar(bucket, pa.int32()), count),
                texts(ids),
                pa.array(written, pa.int64()),
            ]
            digest += self._write(pa.Table.from_arrays(columns, schema=plan_schema()))
            self._groups += 1
        return PlanPart(self._file, first, self._groups - first), digest


def unreadable_file(file: str, error: Exception) -> MailsliceError:
    """The error for an unreadable plan file: PlanRefused, unless its store does not answer."""
    problem = " ".join(str(error).split())[:200]
    return mailslice_error_in(str(error)) or PlanRefused(
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
        """The row groups of one partition."""
        for number in range(part.first, part.first + part.groups):
            schema = (table := self.group(part.file, number)).schema
            if (schema.names, schema.types) != (plan_schema().names, plan_schema().types):
                raise unreadable_file(part.file, ValueError("it has other columns"))
            yield table

    def group(self, file: str, number: int) -> pa.Table:
        try:
            table = self._file(file).read_row_group(number)
            table.validate(full=True)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise unreadable_file(file, error) from error
        return table

    def count(self, file: str) -> int:
        """How many row groups a file has."""
        try:
            return int(self._file(file).num_row_groups)
        except (OSError, ValueError) as error:
            raise unreadable_file(file, error) from error

    def __enter__(self) -> PlanReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open[1].close(force=True)  # also the stream, which pyarrow did not open

    def _file(self, file: str) -> Any:
        import pyarrow.parquet as pq

        if self._open is None or self._open[0] != file:
            self.__exit__()
            path = self._location.path(f"{self._folder}/{file}")
            self._open = (file, pq.ParquetFile(self._location.filesystem.open_input_file(path)))
        return self._open[1]


def read_groups(
    location: Location, folder: str, groups: Sequence[RowGroup]
) -> Iterator[tuple[RowGroup, pa.Table]]:
    """Row groups with their rows. Raises PlanRefused at the first that has another digest."""
    with PlanReader(location, folder) as reader:
        for group in groups:
            table = reader.group(group.file, group.number)
            if str(digest_of(table)) != group.digest:
                raise PlanRefused(
                    f"the file {group.file} of the plan was changed: the rows of its group "
                    f"{group.number} have another digest; plan again"
                )
            yield group, table
