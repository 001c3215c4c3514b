"""Parquet files of a plan: each row group has a digest, so apply acts on planned rows only.

A digest covers every column's name, type and values. Row groups add up in any order.
Two writers: `write_rows` takes dataclasses, `RowWriter` takes Arrow tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NewType, TypeVar, get_args, get_type_hints
from uuid import UUID

from pydantic import TypeAdapter

from mailslice.engine.row_files import Digest, GroupWriter, Location, PlanReader, refused
from mailslice.model.errors import PlanRefused

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
ROWS_PER_GROUP = 50_000


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group, the unit of a worker's task. `file` is relative to the run's folder."""

    file: str
    number: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of a plan, relative to the run's folder. There is no file for no rows."""

    file: str
    rows: int
    digest: str

    @classmethod
    def of(cls, file: str, groups: Iterable[RowGroup]) -> RowFile:
        """The file of these row groups."""
        digest = sum((Digest.parse(group.digest) for group in groups), Digest())
        return cls(file, digest.count, str(digest))


class RowWriter(GroupWriter):
    """From Arrow tables, also on executors. A repeated task needs another name (`uuid4`)."""

    def __init__(self, location: Location, folder: str, file: str) -> None:
        super().__init__(location, folder, file)
        self.groups: list[RowGroup] = []

    def add(self, rows: pa.Table, rows_per_group: int = ROWS_PER_GROUP) -> None:
        """Append rows, as groups of at most so many."""
        for first in range(0, rows.num_rows, rows_per_group):
            group = rows.slice(first, rows_per_group)
            self._write(group)
            self.groups.append(
                RowGroup(self._file, len(self.groups), group.num_rows, str(digest_of(group)))
            )

    def close(self) -> RowFile:
        """Finish the file."""
        super().close()
        return RowFile.of(self._file, self.groups)


def write_rows(
    location: Location, folder: str, file: str, rows: Iterable[R], kind: type[R]
) -> RowFile:
    """Write dataclasses of one kind, one row group in memory; the fields are the columns."""
    import pyarrow as pa

    schema: pa.Schema = schema_of(kind)  # type: ignore[arg-type]
    writer, remaining = RowWriter(location, folder, file), iter(rows)
    try:
        while chunk := list(islice(remaining, ROWS_PER_GROUP)):
            columns = ([_plain(getattr(row, name)) for row in chunk] for name in schema.names)
            arrays = [
                pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)
            ]
            writer.add(pa.Table.from_arrays(arrays, schema=schema))
    finally:
        written = writer.close()
    return written


def stream_rows(location: Location, folder: str, file: RowFile, kind: type[R]) -> Iterator[R]:
    """The rows, a row group at a time. Raises PlanRefused, before the first, for another file."""
    adapter = TypeAdapter(list[kind])  # type: ignore[valid-type]
    for table in read_tables(location, folder, file):
        try:
            rows = adapter.validate_python(table.to_pylist())
        except ValueError as error:
            raise refused(file.file, error) from error
        yield from rows


def read_tables(location: Location, folder: str, file: RowFile) -> Iterator[pa.Table]:
    """The row groups of the file. Raises PlanRefused before the first is given if any differs."""
    require_same_rows(location, folder, file)
    if file.rows:
        yield from _tables(location, folder, file)


def require_same_rows(location: Location, folder: str, file: RowFile) -> None:
    """Raises PlanRefused for a file that is not what was written."""
    if not file.rows:
        return
    digest = sum(map(digest_of, _tables(location, folder, file)), Digest())
    if str(digest) != file.digest:
        raise PlanRefused(
            f"the file {file.file} of the plan was changed: its rows have the digest {digest}, "
            f"the plan says {file.digest}; plan again"
        )


def read_groups(
    location: Location, folder: str, groups: Sequence[RowGroup]
) -> Iterator[tuple[RowGroup, pa.Table]]:
    """Row groups with their rows. Raises PlanRefused at the first that differs."""
    with PlanReader(location, folder) as reader:
        for group in groups:
            table = reader.group(group.file, group.number)
            if str(digest_of(table)) != group.digest:
                raise PlanRefused(
                    f"the file {group.file} of the plan was changed: the rows of its group "
                    f"{group.number} have another digest; plan again"
                )
            yield group, table


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
    """Which values are missing, then the values: of text and bytes the lengths first."""
    import numpy as np
    import pyarrow as pa

    yield column.is_null().to_numpy().tobytes()
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_primitive(column.type):
        zero = pa.scalar(0).cast(column.type)
        yield column.fill_null(zero).to_numpy().tobytes()
        return
    # Text, bytes and ids of fixed size. Nested columns raise ArrowNotImplementedError here.
    binary = column.cast(pa.large_binary()).fill_null(b"").combine_chunks()
    _, offsets, data = binary.buffers()
    ends = np.frombuffer(offsets, "<i8")[binary.offset : binary.offset + len(binary) + 1]
    yield np.diff(ends).tobytes()
    yield memoryview(data or b"")[ends[0] : ends[-1]]


@cache
def schema_of(kind: type) -> pa.Schema:
    """The columns of a dataclass: text, numbers, bytes, UTC times (µs); ids and enums as text."""
    import pyarrow as pa

    hints = get_type_hints(kind)
    columns = []
    for field in fields(kind):
        hint = hints[field.name]
        optional = type(None) in get_args(hint)
        base = next(one for one in (*get_args(hint), hint) if one is not type(None))
        columns.append(pa.field(field.name, _arrow_type(base), nullable=optional))
    return pa.schema(columns)


def _arrow_type(hint: Any) -> pa.DataType:
    import pyarrow as pa

    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if issubclass(hint, (str, UUID, Enum)):
        return pa.string()
    known = {
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        bytes: pa.binary(),
        datetime: pa.timestamp("us", "UTC"),
    }
    return known[hint]


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, UUID) else value


def _tables(location: Location, folder: str, file: RowFile) -> Iterator[pa.Table]:
    with PlanReader(location, folder) as reader:
        for number in range(reader.count(file.file)):
            yield reader.group(file.file, number)
