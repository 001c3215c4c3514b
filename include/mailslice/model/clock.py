"""The clock is an argument. Only entry points pass `system_clock`; tests pass their own."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Gives the present instant, aware, in UTC."""


def system_clock() -> datetime:
    return datetime.now(UTC)


def elapsed_seconds() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
