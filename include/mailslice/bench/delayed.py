"""`bench delays`: hops through delay levels, and how late delayed mails are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mailslice.bench.isolated import isolated
from mailslice.bench.measure import Bench, Measured, Work, many, measuring, opened, percentiles
from mailslice.bench.own_mails import STORES_TIMEOUT, bench_mail, complete_own, progressing
from mailslice.bench.queues import bench_queue
from mailslice.model.delay_levels import LONGEST_WAIT, level_for
from mailslice.model.durations import format_duration
from mailslice.worker.delivery import Delivery

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

DELAYS = tuple(timedelta(seconds=seconds) for seconds in (1, 5, 7))
_LONG = tuple(timedelta(minutes=minutes) for minutes in (54, 60, 67, 1440, 1447, 42547, 43200))
"""With levels among them: an hour, a day, 30 days."""
_ON_THE_WAY = timedelta(milliseconds=5)
"""Between the due time of a delay and the choice of its level."""


def measure_delays(
    settings: Settings, *, queue: QueueName, mails: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """`measured`: so many mails by each delay, in turn. `computed`: hops of delays too long for it.

    Latenesses in ms, CPU of the worker in seconds.
    """
    rows = []
    with bench_queue(settings, queue, synthetic=False, say=say):
        for delay in DELAYS:
            say(f"{mails} mails in {format_duration(delay)}")
            rows.append(isolated(_measure, Work(settings, queue, mails, 4096, 64), delay))
    computed = [{"delay": format_duration(delay), "hops": hops(delay)} for delay in _LONG]
    return {"count": mails, "measured": rows, "computed": computed}


def hops(delay: timedelta) -> int:
    """Levels that a mail goes through, until a worker may wait out what remains."""
    remaining, count = delay - _ON_THE_WAY, 0
    while remaining > LONGEST_WAIT or not count:
        remaining -= timedelta(seconds=level_for(remaining))
        count += 1
    return count


async def _measure(work: Work, delay: timedelta) -> dict[str, Any]:
    async with opened(work) as bench:
        statistics = bench.worker.wiring.doings
        before = statistics.hops
        with measuring(bench.cpu) as measured:
            await _there_and_back(bench, work.count, delay, measured)
        hops_taken = statistics.hops - before
    return {
        "delay": format_duration(delay),
        "hops_a_mail": round(hops_taken / work.count, 3),
        "late_ms": percentiles(measured.latencies),
        "cpu_seconds_per_1000": measured.per_thousand(measured.cpu_seconds),
    }


async def _there_and_back(bench: Bench, count: int, delay: timedelta, measured: Measured) -> None:
    due: dict[str, float] = {}

    async def enqueue(number: int) -> None:
        mail = bench_mail(number)
        due[mail.name] = time.monotonic() + delay.total_seconds()
        await bench.worker.enqueue(mail, bench.source, delay=delay)

    async def complete(delivery: Delivery) -> None:
        measured.done(time.monotonic() - due[delivery.item.mail.name])
        await complete_own(delivery)

    deliveries = bench.worker.deliveries(bench.in_flight, give_up_after=STORES_TIMEOUT)
    async with (
        progressing(lambda: len(measured.latencies), count),
        aclosing(deliveries),
        asyncio.TaskGroup() as group,
    ):
        await many(bench.cpu, count, bench.in_flight, enqueue)
        for _ in range(count):
            group.create_task(complete(await anext(deliveries)))
    await bench.worker.settle()
