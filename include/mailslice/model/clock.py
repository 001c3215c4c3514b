"""The clock is an argument. Only entry points pass `system_clock`; tests pass their own."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the present time as an aware datetime in UTC."""


def system_clock() -> datetime:
    return datetime.now(UTC)


def utc_text(at: datetime, timespec: str = "auto") -> str:
    """ISO 8601 in UTC with Z; `timespec`: the precision, as `datetime.isoformat` has it."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def elapsed_seconds() -> float:
    """Seconds of a monotonic clock that also runs while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
