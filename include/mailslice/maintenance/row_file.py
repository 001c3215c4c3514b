"""Writes dataclasses as rows of a plan's files, and reads them; see `engine.row_files`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NewType, TypeVar, get_args, get_type_hints
from uuid import UUID

from pydantic import TypeAdapter

from mailslice.engine import row_files
from mailslice.engine.row_files import Digest, Location, PlanReader, RowFile, RowWriter
from mailslice.model.errors import PlanRefused

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")


def write_rows(
    location: Location, folder: str, file: str, rows: Iterable[R], kind: type[R]
) -> RowFile:
    """Write dataclasses of one type, a row group at a time. The fields are the columns."""
    import pyarrow as pa

    schema: pa.Schema = schema_of(kind)  # type: ignore[arg-type]
    remaining = iter(rows)
    with RowWriter(location, folder, file) as writer:
        while chunk := list(islice(remaining, row_files.ROWS_A_GROUP)):
            columns = ([_plain(getattr(row, name)) for row in chunk] for name in schema.names)
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            writer.add(pa.Table.from_arrays(arrays, schema=schema))
    return writer.close()


def stream_rows(location: Location, folder: str, file: RowFile, kind: type[R]) -> Iterator[R]:
    """The rows; one row group at a time is in memory. Raises as `read_tables`."""
    adapter = TypeAdapter(list[kind])  # type: ignore[valid-type]
    for table in read_tables(location, folder, file):
        try:
            rows = adapter.validate_python(table.to_pylist())
        except ValueError as error:
            raise row_files.unreadable_file(file.file, error) from error
        yield from rows


def read_tables(location: Location, folder: str, file: RowFile) -> Iterator[pa.Table]:
    """The row groups. Raises PlanRefused before the first one if the rows are not those written."""
    require_same_rows(location, folder, file)
    if file.rows:
        yield from _tables(location, folder, file)


def require_same_rows(location: Location, folder: str, file: RowFile) -> None:
    """Raises PlanRefused when the rows do not have the digest of `file`."""
    if not file.rows:
        return
    digest = sum(map(row_files.digest_of, _tables(location, folder, file)), Digest())
    if str(digest) != file.digest:
        raise PlanRefused(
            f"the file {file.file} of the plan was changed: its rows have the digest {digest}, "
            f"the plan says {file.digest}; plan again"
        )


@cache
def schema_of(kind: type) -> pa.Schema:
    """The columns of a dataclass: text, numbers, bytes, UTC times (µs); ids and enums as text."""
    import pyarrow as pa

    hints = get_type_hints(kind)
    columns = []
    for field in fields(kind):
        hint = hints[field.name]
        optional = type(None) in get_args(hint)
        base = next(part for part in (*get_args(hint), hint) if part is not type(None))
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
