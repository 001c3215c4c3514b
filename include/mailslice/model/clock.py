"""The clock is an argument. Only entry points pass `system_clock`; tests pass their own."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Gives the present instant, aware, in UTC."""


def system_clock() -> datetime:
    """The machine's clock."""
    return datetime.now(UTC)
