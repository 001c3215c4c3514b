"""The delay levels, and which of them a mail takes (ADR 7). Pure.

A delay is split into multiples of two days, of four hours, and of a quarter of an hour. Each is a
level, so three hops reach every due time but for the last quarter, for which a worker waits.
"""

from bisect import bisect
from datetime import timedelta

_DAY, _HOUR, _QUARTER = 24 * 3600, 3600, 900
_SHORT = (1, 5, 30, 60, 120, 240, 480, 600, 6 * _HOUR)
"""Further levels: for the default back-off, and those of earlier versions."""
_QUARTERS = range(_QUARTER, 4 * _HOUR, _QUARTER)
_FOUR_HOURS = range(4 * _HOUR, 2 * _DAY, 4 * _HOUR)
_TWO_DAYS = range(2 * _DAY, 30 * _DAY + 1, 2 * _DAY)
DELAY_LEVELS: tuple[int, ...] = tuple(sorted({*_SHORT, *_QUARTERS, *_FOUR_HOURS, *_TWO_DAYS}))
"""Seconds. A declared queue's TTL cannot change: levels may be added and never removed."""
LONGEST_DELAY = timedelta(days=30)
LONGEST_WAIT = timedelta(seconds=_QUARTER)
"""A worker holds a copy that is due within this time: half of RabbitMQ's `consumer_timeout`."""
SLACK = 0.5
"""Seconds by which a level may exceed the remaining time. The due time is fixed before the row is
written, so a delay of an hour is a few milliseconds short of an hour when its level is chosen."""
_SNAP = 0.125
"""The share of a pause by which `snapped` may change it."""


def level_for(remaining: timedelta) -> int:
    """Seconds of the longest level within `remaining` plus SLACK, or else of the shortest level."""
    seconds = remaining.total_seconds() + SLACK
    return DELAY_LEVELS[max(bisect(DELAY_LEVELS, seconds) - 1, 0)]


_SUMS = sorted(
    {
        first + second
        for first in DELAY_LEVELS
        for second in (0, *DELAY_LEVELS)
        if level_for(timedelta(seconds=first + second)) == first
    }
)
"""The times in seconds that a mail can wait in one or two levels."""


def snapped(pause: timedelta) -> timedelta:
    """The sum of at most two levels nearest to `pause`; `pause` if none is within an eighth."""
    seconds = pause.total_seconds()
    at = bisect(_SUMS, seconds)
    nearest = min(_SUMS[max(at - 1, 0) : at + 1], key=lambda total: abs(total - seconds))
    return timedelta(seconds=nearest) if abs(nearest - seconds) <= _SNAP * seconds else pause
