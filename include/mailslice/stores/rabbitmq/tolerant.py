"""pika reads header values that Python has no object for as None, instead of failing.

A time beyond the year 9999 (milliseconds where AMQP means seconds), an infinite or undefined float: RabbitMQ passes them on, and pika would raise while it
reads the frame, which ends the connection. The message goes back and is delivered again: one message would stop its queue for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pika import data

_SIZES = {b"T": 8, b"d": 8, b"f": 4}
_decode: Callable[[bytes, int], tuple[Any, int]] = data.decode_value


def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """As pika's, but for values of those kinds that cannot be read."""
    try:
        return _decode(encoded, offset)
    except (ValueError, OverflowError, OSError):
        size = _SIZES.get(encoded[offset : offset + 1])
        if size is None:
            raise
        return None, offset + 1 + size


def install() -> None:
    """Arrays and tables look the function up in pika's module, so that what is inside of them is read so, too."""
    data.decode_value = decode_value
