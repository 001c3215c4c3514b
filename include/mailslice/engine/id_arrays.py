"""Enqueue ids as numpy rows of 16 bytes, without a loop over single ids.

Converts from and to the text of plan files and the packed form of requests.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mailslice.model.errors import PlanRefused
from mailslice.stores.cassandra.ids import WIDTH

Ids: TypeAlias = npt.NDArray[np.uint8]
"""Ids as an array of shape (n, 16)."""
Times: TypeAlias = npt.NDArray[np.int64]
"""Write times, microseconds since the epoch."""
_TEXT = 36
_DASHES = (8, 13, 18, 23)
_DIGIT_POSITIONS = np.array([at for at in range(_TEXT) if at not in _DASHES])
"""Where the 32 hex digits are in a text."""


def of_packed(packed: bytes) -> Ids:
    """Packed ids (`stores.cassandra.ids`) as rows."""
    return np.frombuffer(packed, np.uint8).reshape(-1, WIDTH)[:, 4:]


def of_halves(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> Ids:
    """Ids from their high and low 64 bits, as `page_decoder.decode` returns them."""
    return np.stack([high, low], axis=1).astype(">u8").view(np.uint8).reshape(-1, 16)


def pack(ids: Ids) -> bytes:
    packed = np.empty((len(ids), WIDTH), np.uint8)
    packed[:, :4] = (0, 0, 0, 16)
    packed[:, 4:] = ids
    return packed.tobytes()


def low_halves(ids: Ids) -> npt.NDArray[np.uint64]:
    """The last 64 bits of each id, 62 of them random. A collision only keeps a mark needlessly."""
    return np.ascontiguousarray(ids[:, 8:]).view(">u8")[:, 0].astype(np.uint64)


def as_values(ids: Ids) -> npt.NDArray[np.bytes_]:
    """Each id as one value, which sorts and compares by its bytes."""
    return np.ascontiguousarray(ids).view("S16")[:, 0]


def among(values: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """For each value whether it is among `known`, which must be sorted."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    same: npt.NDArray[np.bool_] = known[at] == values
    return same


def texts(ids: Ids) -> pa.StringArray:
    """The ids as text, as `str` writes a UUID."""
    letters = np.full((len(ids), _TEXT), ord("-"), np.uint8)
    digits = ids.tobytes().hex().encode()
    letters[:, _DIGIT_POSITIONS] = np.frombuffer(digits, np.uint8).reshape(-1, 32)
    ends = np.arange(0, _TEXT * (len(ids) + 1), _TEXT, dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(ids), pa.py_buffer(ends.tobytes()), pa.py_buffer(letters.tobytes())
    )


def of_texts(column: pa.ChunkedArray | pa.Array) -> Ids:
    """The ids of `texts`. Raises PlanRefused for a text that `texts` would not write."""
    if not len(column):
        return np.zeros((0, 16), np.uint8)
    lengths = pc.min_max(pc.binary_length(column)).as_py()
    if column.null_count or set(lengths.values()) != {_TEXT}:
        raise PlanRefused("a plan file holds what is no enqueue id: plan again")
    fixed = column.cast(pa.binary()).cast(pa.binary(_TEXT))
    fixed = fixed.combine_chunks() if isinstance(fixed, pa.ChunkedArray) else fixed
    fixed = pa.concat_arrays(fixed.chunks) if isinstance(fixed, pa.ChunkedArray) else fixed
    letters = np.frombuffer(fixed.buffers()[1], np.uint8)[
        fixed.offset * _TEXT : (fixed.offset + len(fixed)) * _TEXT
    ].reshape(-1, _TEXT)
    digits = letters[:, _DIGIT_POSITIONS].tobytes()
    if digits.translate(None, b"0123456789abcdef") or (letters[:, _DASHES] != ord("-")).any():
        raise PlanRefused("a plan file holds what is no enqueue id: plan again")
    return np.frombuffer(bytes.fromhex(digits.decode()), np.uint8).reshape(-1, 16)
