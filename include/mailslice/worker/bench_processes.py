"""The hot path by several processes against one queue: does it scale, and does a mail cost more CPU then?"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.worker.apart import Process
from mailslice.worker.bench import PATIENCE, bench_mail, many, peak_mib, source_of
from mailslice.worker.delivery import Delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker
from mailslice.worker.store_cpu import STORES, StoreCpu, spent

_LOOK = 0.05


def measure_processes(settings: Settings, queue: QueueName, *, processes: int, count: int, size: int, in_flight: int) -> dict[str, Any]:
    """`count` mails of `size` bytes enqueued by so many processes at once, then dequeued by them. `in_flight` is each one's. The queue must be empty."""
    cpu = StoreCpu(settings)
    progress = multiprocessing.get_context("spawn").Array("q", processes, lock=False)
    work = _Work(settings, queue, processes, count, size, in_flight)
    with ExitStack() as stack:
        running = [stack.enter_context(Process(_member, work, number, progress)) for number in range(processes)]
        enqueued = _together(running, cpu, count)
        taken = _together(running, cpu, count)
        peaks = [process.answer() for process in running]
    return {"processes": processes, "count": count, **_named("enqueue", enqueued), **_named("dequeue", taken), "peak_mib": max(peaks)}


def _named(what: str, found: dict[str, Any]) -> dict[str, Any]:
    return {f"{what}_{key}": value for key, value in found.items()}


def _together(running: Sequence[Process], cpu: StoreCpu, count: int) -> dict[str, Any]:
    """One phase: all are ready, all begin, all tell (began, ended, CPU seconds)."""
    for process in running:
        process.answer()
    before = cpu.read()
    for process in running:
        process.begin()
    told = [process.answer() for process in running]
    stores = spent(before, cpu.read())
    seconds = max(ended for _, ended, _ in told) - min(began for began, _, _ in told)
    return {
        "rate": round(count / seconds, 1),
        "cpu_seconds_per_1000": round(1000 * sum(used for _, _, used in told) / count, 3),
        "stores_cpu_seconds_per_1000": {store: None if (used := stores[store]) is None else round(1000 * used / count, 3) for store in STORES},
    }


@dataclass(frozen=True, slots=True)
class _Work:
    """What all processes do together."""

    settings: Settings
    queue: QueueName
    processes: int
    count: int
    size: int
    in_flight: int

    def share(self, number: int) -> int:
        """Mails that the process `number` enqueues."""
        return self.count // self.processes + (number < self.count % self.processes)


def _member(pipe: Connection, work: _Work, number: int, progress: Any) -> float:
    """One of the processes; its peak memory."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_both_ways(pipe, work, number, progress))
    return peak_mib()


async def _both_ways(pipe: Connection, work: _Work, number: int, progress: Any) -> None:
    cpu = StoreCpu(work.settings)
    with source_of(work.size) as source:
        async with open_worker(work.settings, work.queue) as worker:
            await worker.wiring.publisher.connect()
            enqueue = partial(_enqueue, worker, source, number)
            await _phase(pipe, lambda: many(cpu, work.share(number), work.in_flight, enqueue))
    async with open_worker(work.settings, work.queue) as worker:
        await _phase(pipe, lambda: _take(worker, work, number, progress))


async def _enqueue(worker: QueueWorker, source: bytes | Path, number: int, each: int) -> None:
    await worker.enqueue(bench_mail(f"bench-{number}-{each}"), source)


async def _phase(pipe: Connection, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    began, cpu = time.monotonic(), time.process_time()
    await work()
    pipe.send((began, time.monotonic(), time.process_time() - cpu))


async def _take(worker: QueueWorker, work: _Work, number: int, progress: Any) -> None:
    """Until all processes together have completed all mails; each writes a number of its own, so that nobody waits for a lock."""

    async def complete(delivery: Delivery) -> None:
        await delivery.complete()
        progress[number] += 1

    async with aclosing(worker.deliveries(work.in_flight, give_up_after=PATIENCE)) as deliveries, asyncio.TaskGroup() as group:
        coming = asyncio.ensure_future(anext(deliveries))
        while sum(progress) < work.count:
            await asyncio.wait({coming}, timeout=_LOOK)
            if coming.done():
                group.create_task(complete(coming.result()))
                coming = asyncio.ensure_future(anext(deliveries))
        coming.cancel()
        await asyncio.wait({coming})
    await worker.settle()
