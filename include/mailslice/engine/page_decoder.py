"""Decode packed pages of rows (`stores.cassandra.packed`) into numpy columns.

Columns of a fixed width come first; at most one column of any width comes last. Nearly all rows of
a page have every value, so that they start at equal distances, or at distances that only the last
column varies. Such a page is decoded without a loop over its values. A page with nulls in fixed
columns is decoded value by value.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from mailslice.stores.cassandra.packed import PackedPage

Columns = Mapping[str, npt.NDArray[Any]]

UUID, LONG, BOOL = 16, 8, 1
"""Widths of the values that are decoded.

A UUID becomes two unsigned columns, `NAME.high` and `NAME.low`. A LONG is signed. A BOOL is 0 or 1.
"""
_LENGTH = 4
_NULL = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns (name, width) in order. `last` has any width and becomes a 64-bit hash (null: 0)."""

    fixed: Sequence[tuple[str, int]]
    last: str | None = None
    width: int = field(init=False, default=0)
    """Bytes of a row with all fixed values, and with the length field of any last column."""

    def __post_init__(self) -> None:
        width = sum(_LENGTH + width for _, width in self.fixed) + (_LENGTH if self.last else 0)
        object.__setattr__(self, "width", width)


def decode(page: PackedPage, layout: Layout) -> Columns:
    """The columns of a page; a null is 0. Raises ValueError for bytes that are not such rows."""
    raw = np.frombuffer(page.data, np.uint8)
    even = len(raw) == page.rows * layout.width
    rows: npt.NDArray[np.uint8] | None = None
    hashes = np.zeros(page.rows, np.uint64)
    if even:
        rows = raw.reshape(page.rows, layout.width)
    elif layout.last is not None:
        rows, hashes = _uneven(page, layout, raw)
    if rows is None or not _complete(rows, layout, checked_last=even):
        return _value_by_value(page, layout)
    columns: dict[str, npt.NDArray[Any]] = {}
    at = _LENGTH
    for name, width in layout.fixed:
        columns |= _typed(name, np.ascontiguousarray(rows[:, at : at + width]), width)
        at += width + _LENGTH
    if layout.last is not None:
        columns[layout.last] = hashes
    return columns


def _complete(rows: npt.NDArray[np.uint8], layout: Layout, *, checked_last: bool) -> bool:
    """Whether every value has its column's width. `checked_last`: the last must be null, too."""
    lengths = [width for _, width in layout.fixed]
    if layout.last and checked_last:
        lengths.append(_NULL)
    ends = list(accumulate((_LENGTH + width for _, width in layout.fixed), initial=0))
    for at, length in zip(ends, lengths, strict=False):
        expected = np.frombuffer(length.to_bytes(_LENGTH, "big", signed=True), np.uint8)
        if not (rows[:, at : at + _LENGTH] == expected).all():
            return False
    return True


def _uneven(
    page: PackedPage, layout: Layout, raw: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint8] | None, npt.NDArray[np.uint64]]:
    """Rows without the last column's values, and hashes of these values; None for other bytes."""
    data, starts, hashes, at = page.data, [], [0] * page.rows, 0
    for row in range(page.rows):
        starts.append(at)
        at += layout.width
        length = int.from_bytes(data[at - _LENGTH : at], "big", signed=True)
        if length > 0:
            hashes[row] = _hash(data[at : at + length])
            at += length
    if at != len(data):
        return None, np.zeros(0, np.uint64)
    rows = raw[np.array(starts, np.int64)[:, None] + np.arange(layout.width)]
    return rows, np.array(hashes, np.uint64)


def _value_by_value(page: PackedPage, layout: Layout) -> Columns:
    """Decode each value by itself, for rows with nulls."""
    widths = [width for _, width in layout.fixed]
    values = [bytearray() for _ in widths]
    hashes: list[int] = []
    at, data = 0, page.data
    for _ in range(page.rows):
        for column, width in enumerate([*widths, *([None] if layout.last else [])]):
            length = int.from_bytes(data[at : at + _LENGTH], "big", signed=True)
            value = data[at + _LENGTH : at + _LENGTH + max(length, 0)]
            at += _LENGTH + max(length, 0)
            if width is None:
                hashes.append(_hash(value) if value else 0)
            elif length in {_NULL, width}:
                values[column] += value or bytes(width)
            else:
                raise ValueError(
                    f"column {layout.fixed[column][0]} has a value of {length} bytes, "
                    f"not of {width}"
                )
    if at != len(data):
        raise ValueError(f"{len(data)} bytes do not hold {page.rows} rows of {len(widths)} columns")
    columns: dict[str, npt.NDArray[Any]] = {}
    for (name, width), packed in zip(layout.fixed, values, strict=True):
        rows = np.frombuffer(bytes(packed), np.uint8).reshape(page.rows, width)
        columns |= _typed(name, rows, width)
    if layout.last is not None:
        columns[layout.last] = np.array(hashes, np.uint64)
    return columns


def _typed(name: str, values: npt.NDArray[np.uint8], width: int) -> dict[str, npt.NDArray[Any]]:
    if width == UUID:
        halves = values.view(">u8").astype(np.uint64)
        return {f"{name}.high": halves[:, 0], f"{name}.low": halves[:, 1]}
    if width == LONG:
        return {name: values.view(">i8").astype(np.int64)[:, 0]}
    return {name: values[:, 0]}


def _hash(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little") or 1
