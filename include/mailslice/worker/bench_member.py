"""What each process of `bench_processes` does: its share of the enqueues, then of the dequeues, in step with the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mailslice.worker.bench import PATIENCE, bench_mail, many, peak_mib, source_of
from mailslice.worker.delivery import Delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker
from mailslice.worker.store_cpu import StoreCpu

if TYPE_CHECKING:
    from mailslice.worker.bench_processes import Work

_LOOK = 0.05


def run_member(pipe: Connection, work: Work, number: int, progress: Any) -> float:
    """Answers by the pipe before and after each of the two phases; the process' peak memory, MiB. `progress`: the mails that each process has completed."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_both_ways(pipe, work, number, progress))
    return peak_mib()


async def _both_ways(pipe: Connection, work: Work, number: int, progress: Any) -> None:
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


async def _take(worker: QueueWorker, work: Work, number: int, progress: Any) -> None:
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
