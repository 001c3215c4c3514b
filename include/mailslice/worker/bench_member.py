"""What each process of `bench_processes` does: its share of the enqueues, then of the dequeues, in step with the others; once to warm up, then measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mailslice.worker.bench import PATIENCE, bench_mail, many, peak_mib, source_of
from mailslice.worker.bench_own import complete_own, progressing
from mailslice.worker.delivery import Delivery
from mailslice.worker.dequeuer import Deliveries
from mailslice.worker.queue_worker import QueueWorker, open_worker
from mailslice.worker.store_cpu import StoreCpu

if TYPE_CHECKING:
    from mailslice.worker.bench_processes import Work

_LOOK = 0.01


def run_member(pipe: Connection, work: Work, number: int, progress: Any) -> float:
    """Answers by the pipe before and after each of the phases; the process' peak memory, MiB. `progress`: the mails that each process has completed."""
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
            done = 0
            for mails in work.rounds:
                done += mails
                await _phase(pipe, many(cpu, work.share(mails, number), work.in_flight, enqueue))
                await _phase(pipe, _take(worker, work.in_flight, number, progress, done))


async def _enqueue(worker: QueueWorker, source: bytes | Path, number: int, each: int) -> None:
    await worker.enqueue(bench_mail(f"{number}-{each}"), source)


async def _phase(pipe: Connection, work: Awaitable[object]) -> None:
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    began, cpu = time.monotonic(), time.process_time()
    await work
    pipe.send((began, time.monotonic(), time.process_time() - cpu))


async def _take(
    worker: QueueWorker, in_flight: int, number: int, progress: Any, until: int
) -> None:
    """Until all processes together have completed `until` mails; each writes a number of its own, so that nobody waits for a lock."""

    async def complete(delivery: Delivery) -> None:
        await complete_own(delivery)
        progress[number] += 1

    deliveries = worker.deliveries(in_flight, give_up_after=PATIENCE)
    async with progressing(lambda: sum(progress), until), asyncio.TaskGroup() as group:
        group.create_task(_close_at(deliveries, progress, until))
        async for delivery in deliveries:
            group.create_task(complete(delivery))
    await worker.settle()


async def _close_at(deliveries: Deliveries, progress: Any, until: int) -> None:
    while sum(progress) < until:  # noqa: ASYNC110 - other processes count, too
        await asyncio.sleep(_LOOK)
    await deliveries.aclose()
