"""Warm-up before a measurement: first of the stores, whose JVMs compile what is used often, then of each process that measures.

Servers that have just started need five times the CPU for a mail; they level off after some ten thousand (docs/performance.md shows it).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.worker.bench import Measured, source_of, there_and_back
from mailslice.worker.queue_worker import open_worker
from mailslice.worker.store_cpu import StoreCpu

_MAILS, _BYTES = 500, 64 * 1024 * 1024
"""Of one round, at most."""
_LAST = 4
"""Rounds that have to bring nothing new."""
_CHEAPER = 0.97
_OWN_BYTES = 32 * 1024 * 1024


async def warm_stores(
    settings: Settings,
    queue: QueueName,
    *,
    mails: int,
    size: int,
    in_flight: int,
    at_most: timedelta,
) -> dict[str, Any]:
    """Up to `mails` of `size` bytes there and back, round by round, until the last four rounds cost no less than those before, or for `at_most` and a round.

    `level`: which of the two it was. `rates_of_rounds`: mails there and back a second; `cpu_seconds_per_1000_of_rounds`: of worker and stores together, None
    where a store is elsewhere. The queue must be empty and not used by others.
    """
    cpu, mails = StoreCpu(settings), max(1, min(mails, _MAILS, _BYTES // size))
    seconds: list[float] = []
    used: list[float] = []
    with source_of(size) as source:
        async with open_worker(settings, queue) as worker:
            began = time.monotonic()
            while not seconds or (
                not is_level(used or seconds) and time.monotonic() - began < at_most.total_seconds()
            ):
                both = await there_and_back(worker, cpu, source, mails, in_flight)
                seconds.append(sum(each.seconds for each in both))
                used += _used(both)
            took = time.monotonic() - began
    return {
        "seconds": round(took, 1),
        "mails": mails * len(seconds),
        "level": is_level(used or seconds),
        "rates_of_rounds": [round(mails / each, 1) for each in seconds],
        "cpu_seconds_per_1000_of_rounds": [round(1000 * each / mails, 3) for each in used] or None,
    }


def _used(both: Sequence[Measured]) -> list[float]:
    """CPU seconds of a round, of all that took part: how many others use the machine does not change it. Nothing when a store's are not known."""
    known = [each.all_cpu_seconds for each in both]
    return [] if None in known else [sum(each or 0.0 for each in known)]


def is_level(costs: Sequence[float]) -> bool:
    """Whether the last rounds brought nothing: none of them cost less, by 3 %, than the best before. Dear ones say nothing: others use the machine, too."""
    before, last = costs[:-_LAST], costs[-_LAST:]
    return bool(before) and min(last) > _CHEAPER * min(before)


def own_mails(size: int, in_flight: int) -> int:
    """Mails that warm a process up: enough to open all connections and to fill its caches."""
    return max(1, min(4 * in_flight, _OWN_BYTES // size))
