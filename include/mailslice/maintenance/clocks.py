"""Whoever writes or compares a time of the stores compares its clock first, in each step."""

from __future__ import annotations

from datetime import timedelta

from mailslice.maintenance.run import Run
from mailslice.model.durations import format_duration
from mailslice.model.errors import ClockSkew


def require_clock(context: Run, grace: timedelta | None = None) -> timedelta:
    """How far Cassandra's clock is ahead. Raises ClockSkew above a quarter of the grace."""
    allowed = context.settings.duty.grace if grace is None else grace
    skew = context.stores.cassandra.now_skew(context.clock)
    if abs(skew) > allowed / 4:
        seconds = skew.total_seconds()
        direction = "ahead of" if seconds > 0 else "behind"
        raise ClockSkew(
            f"Cassandra's clock is {abs(seconds):.3f} s {direction} this machine's; allowed is "
            f"a quarter of the grace {format_duration(allowed)}: set the clocks right, or give "
            "a longer grace"
        )
    return skew
