"""`bench delays`: counts hops through delay levels, and measures how late delayed mails are."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mailslice.bench.isolated import isolated
from mailslice.bench.measure import Measurement, Work, many, opened, percentiles
from mailslice.bench.own_mails import bench_mail, complete_own
from mailslice.bench.queues import bench_queue
from mailslice.model.delay_levels import LONGEST_WAIT, level_for
from mailslice.model.durations import format_duration
from mailslice.worker.dequeue.delivery import Delivery

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

DELAYS = tuple(timedelta(seconds=seconds) for seconds in (1, 5, 7))
_LONG = tuple(timedelta(minutes=minutes) for minutes in (54, 60, 67, 1440, 1447, 42547, 43200))
"""Delays too long to measure. Some are levels themselves: an hour, a day, 30 days."""
_ON_THE_WAY = timedelta(milliseconds=5)
"""Time that has passed since the due time was set, when a level is chosen."""


def measure_delays(
    settings: Settings, *, queue: QueueName, mails: int, print_progress: Callable[[str], None]
) -> dict[str, Any]:
    """`measured`: `mails` mails with each short delay. `computed`: hops of long delays.

    Lateness in ms, CPU of the worker in seconds.
    """
    rows = []
    with bench_queue(settings, queue, synthetic=False, print_progress=print_progress):
        for delay in DELAYS:
            print_progress(f"{mails} mails in {format_duration(delay)}")
            rows.append(isolated(_measure, Work(settings, queue, mails, 4096, 64), delay))
    computed = [{"delay": format_duration(delay), "hops": hops(delay)} for delay in _LONG]
    return {"count": mails, "measured": rows, "computed": computed}


def hops(delay: timedelta) -> int:
    """Levels that a mail goes through until the rest is so short that a worker waits it out."""
    remaining, count = delay - _ON_THE_WAY, 0
    while remaining > LONGEST_WAIT or not count:
        remaining -= timedelta(seconds=level_for(remaining))
        count += 1
    return count


async def _measure(work: Work, delay: timedelta) -> dict[str, Any]:
    due: dict[str, float] = {}

    async def enqueue(number: int) -> None:
        mail = bench_mail(number)
        due[mail.name] = time.monotonic() + delay.total_seconds()
        await bench.worker.enqueue(mail, bench.source, delay=delay)

    async def complete(delivery: Delivery, measured: Measurement) -> None:
        measured.done(time.monotonic() - due[delivery.item.mail.name])
        await complete_own(delivery)

    async with opened(work) as bench:
        statistics = bench.worker.context.statistics
        before = statistics.hops
        fill = partial(many, bench.cpu, work.count, bench.in_flight, enqueue)
        measured = await bench.take(work.count, complete, fill)
        hops_taken = statistics.hops - before
    return {
        "delay": format_duration(delay),
        "hops_a_mail": round(hops_taken / work.count, 3),
        "late_ms": percentiles(measured.latencies),
        "cpu_seconds_per_1000": measured.per_thousand(measured.cpu_seconds),
    }
