"""Checks of what callers of the public API pass: the error names the value."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from mailslice.model.errors import BadInput

MAX_PREFETCH = 65_535
"""The largest prefetch of AMQP."""


def check_content(content: object) -> None:
    """Raises BadInput unless the content is bytes, or the Path of a file."""
    if not isinstance(content, bytes | bytearray | Path):
        raise BadInput(
            f"content: {type(content).__name__} is not allowed; bytes are, or the Path of a file"
        )


def check_span(name: str, value: object) -> None:
    """Raises BadInput unless the value is a timedelta or None."""
    if value is not None and not isinstance(value, timedelta):
        raise BadInput(
            f"{name}={value!r} is not allowed; a timedelta is, as timedelta(seconds=5), or None"
        )


def check_count(name: str, value: Any, maximum: int | None = None) -> None:
    """BadInput unless it is a whole number from 1 (to `maximum`): AMQP prefetch 0 is no limit."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not 1 <= value <= (maximum or value):
        limit = "" if maximum is None else f" to {maximum}"
        raise BadInput(f"{name}={value!r} is not allowed; a whole number from 1{limit} is")
