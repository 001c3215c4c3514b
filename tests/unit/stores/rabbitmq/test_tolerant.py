"""Header values that pika cannot make an object of do not end the connection that brings them."""

from __future__ import annotations

import struct

import pytest
from pika import data

from mailslice.stores.rabbitmq import connection  # noqa: F401 - whoever connects reads so

_LATE = b"T" + struct.pack(">Q", 1_795_000_000_000)
_TIME = b"T" + struct.pack(">Q", 0)


def _table(**values: bytes) -> bytes:
    body = b"".join(bytes([len(name)]) + name.encode() + value for name, value in values.items())
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "odd",
    [
        _LATE,
        b"d" + struct.pack(">d", float("inf")),
        b"d" + struct.pack(">d", float("nan")),
        b"f" + struct.pack(">f", float("nan")),
    ],
)
def test_an_odd_value_is_none_and_what_follows_it_is_read(odd: bytes) -> None:
    follows = b"I" + struct.pack(">i", 7)
    nested = b"A" + struct.pack(">I", len(odd + follows)) + odd + follows
    table = _table(
        odd=odd, after=follows, inner=b"F" + _table(odd=odd, after=follows), array=nested
    )
    found, offset = data.decode_table(table, 0)
    assert found == {
        "odd": None,
        "after": 7,
        "inner": {"odd": None, "after": 7},
        "array": [None, 7],
    }
    assert offset == len(table)


@pytest.mark.parametrize("array", [False, True])
def test_a_table_in_thousands_of_others_is_none_and_what_follows_it_is_read(*, array: bool) -> None:
    value = b"V"
    for _ in range(3000):
        value = b"A" + struct.pack(">I", len(value)) + value if array else b"F" + _table(a=value)
    found, offset = data.decode_table(table := _table(deep=value, after=_TIME), 0)
    assert (found["after"].year, offset) == (1970, len(table))


def test_a_good_value_is_read_as_before_and_a_broken_frame_still_fails() -> None:
    found, _ = data.decode_table(_table(at=_TIME), 0)
    assert found["at"].year == 1970
    with pytest.raises(struct.error):
        data.decode_table(_table(at=b"T\0"), 0)
