"""Warm-up: first of the stores, whose JVMs compile what is used often, then of each process.

Servers that have just started need five times the CPU for a mail; they level off after some ten
thousand mails (docs/performance.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mailslice.bench.measure import Measurement, Work, opened

_MAILS, _BYTES = 500, 64 * 1024 * 1024
"""Of one round, at most."""
_LAST = 4
"""Rounds that have to bring nothing new."""
_CHEAPER = 0.97
_OWN_BYTES = 32 * 1024 * 1024


async def warm_stores(work: Work, at_most: timedelta) -> dict[str, Any]:
    """Mails there and back, round by round, until four rounds cost no less than those before.

    Or for `at_most` and a round; `level`: which of the two it was. `rates_of_rounds`: mails there
    and back a second. CPU is of worker and stores together, None where a store is elsewhere.
    """
    mails = max(1, min(work.count, _MAILS, _BYTES // work.size))
    seconds: list[float] = []
    used: list[float] = []
    async with opened(work) as bench:
        began = time.monotonic()
        while not seconds or (
            not is_level(used or seconds) and time.monotonic() - began < at_most.total_seconds()
        ):
            both = await bench.round_trip(mails)
            seconds.append(sum(measured.seconds for measured in both))
            used += _used(both)
        took = time.monotonic() - began
    return {
        "seconds": round(took, 1),
        "mails": mails * len(seconds),
        "level": is_level(used or seconds),
        "rates_of_rounds": [round(mails / round_seconds, 1) for round_seconds in seconds],
        "cpu_seconds_per_1000_of_rounds": [
            round(1000 * round_seconds / mails, 3) for round_seconds in used
        ]
        or None,
    }


def _used(both: Sequence[Measurement]) -> list[float]:
    """CPU seconds of a round, which others on the machine do not change; nothing when unknown."""
    known = [measured.all_cpu_seconds for measured in both]
    return [] if None in known else [sum(seconds or 0.0 for seconds in known)]


def is_level(costs: Sequence[float]) -> bool:
    """Whether none of the last rounds cost less, by 3 %, than the best before.

    Dear rounds say nothing: others use the machine, too.
    """
    before, last = costs[:-_LAST], costs[-_LAST:]
    return bool(before) and min(last) > _CHEAPER * min(before)


def own_mails(size: int, in_flight: int) -> int:
    """Mails that warm a process up: enough to open all connections and to fill its caches."""
    return max(1, min(4 * in_flight, _OWN_BYTES // size))
