"""Warm-up, first of the stores, whose JVMs compile code that runs often, then of each process.

Servers that have just started need five times the CPU for a mail. The CPU becomes level after
about ten thousand mails (docs/performance.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mailslice.bench.measure import Measurement, Work, opened

_MAILS, _BYTES = 500, 64 * 1024 * 1024
"""The most mails, and the most bytes, of one round."""
_LAST = 4
"""Rounds at the end that must not be cheaper than the rounds before them."""
_CHEAPER = 0.97
_OWN_BYTES = 32 * 1024 * 1024


async def warm_stores(work: Work, at_most: timedelta) -> dict[str, Any]:
    """Enqueues and dequeues mails in rounds, until four rounds cost no less than those before.

    Ends after `at_most`, too; `level`: whether costs had become level. `rates_of_rounds` are mails
    a second. CPU is of worker and stores together; None where a store is elsewhere.
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
    """The CPU seconds of a round, which other load does not change. Empty when they are unknown."""
    known = [measured.all_cpu_seconds for measured in both]
    return [] if None in known else [sum(seconds or 0.0 for seconds in known)]


def is_level(costs: Sequence[float]) -> bool:
    """Whether none of the last rounds was more than 3 % cheaper than the best round before.

    Only the cheapest rounds are compared: other load makes rounds dearer.
    """
    before, last = costs[:-_LAST], costs[-_LAST:]
    return bool(before) and min(last) > _CHEAPER * min(before)


def own_mails(size: int, in_flight: int) -> int:
    """How many mails warm a process up: they open all connections and fill the caches."""
    return max(1, min(4 * in_flight, _OWN_BYTES // size))
