"""Measures how the hot path scales with processes on one queue, and its CPU a mail."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from mailslice.bench.isolated import Process
from mailslice.bench.measure import Bench, Measurement, Work, opened, peak_mib, share_of_cores
from mailslice.bench.own_mails import STORES_TIMEOUT, complete_own, progressing
from mailslice.bench.store_cpu import STORES, StoreCpu, cpu_between
from mailslice.worker.dequeue.delivery import Delivery

_POLL_SECONDS = 0.01


def measure_processes(work: Work, processes: int) -> dict[str, Any]:
    """Several processes enqueue the mails at once, then dequeue them.

    `in_flight` and `warm` of the work count for each process. `rest` in `share_of_cores` is unused
    CPU, as when processes wait for a lock.
    """
    completed = multiprocessing.get_context("spawn").Array("q", processes, lock=False)
    with ExitStack() as stack:
        running = [
            stack.enter_context(Process(_member, work, number, completed))
            for number in range(processes)
        ]
        for mails in _rounds(work, processes):
            enqueued = _together(running, work.cpu, mails)
            taken = _together(running, work.cpu, mails)
        peaks = [process.answer() for process in running]
    return {
        "processes": processes,
        "count": work.count,
        **{f"enqueue_{name}": value for name, value in enqueued.items()},
        **{f"dequeue_{name}": value for name, value in taken.items()},
        "peak_mib": max(peaks),
    }


def _rounds(work: Work, processes: int) -> tuple[int, int]:
    """Mails that all processes together enqueue and dequeue: to warm up, and measured."""
    return work.warm * processes, work.count


def _together(running: Sequence[Process], cpu: StoreCpu, count: int) -> dict[str, Any]:
    """One phase: waits until all are ready, starts all, collects (began, ended, CPU seconds)."""
    for process in running:
        process.answer()
    before = cpu.seconds()
    for process in running:
        process.send()
    answers = [process.answer() for process in running]
    stores = cpu_between(before, cpu.seconds())
    seconds = max(ended for _, ended, _ in answers) - min(began for began, _, _ in answers)
    own = sum(used for _, _, used in answers)
    measured = Measurement(seconds, own, stores, latencies=[0.0] * count)
    return {
        "rate": measured.rate,
        "cpu_seconds_per_1000": measured.per_thousand(own),
        "stores_cpu_seconds_per_1000": {
            store: measured.per_thousand(stores[store]) for store in STORES
        },
        "share_of_cores": share_of_cores(measured),
    }


async def _member(pipe: Connection, work: Work, number: int, completed: Any) -> float:
    """One process: enqueues its share, then dequeues. Returns its peak memory in MiB.

    Each process counts in its own item of `completed`, which needs no lock.
    """
    until, processes = 0, len(completed)
    async with opened(work) as bench:
        await bench.worker.context.publisher.connect()
        for mails in _rounds(work, processes):
            until += mails
            share = mails // processes + (number < mails % processes)
            await _phase(pipe, bench.enqueue(share, f"{number}-"))
            await _phase(pipe, _take(bench, number, completed, until))
    return peak_mib()


async def _phase(pipe: Connection, work: Awaitable[object]) -> None:
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    began, cpu = time.monotonic(), time.process_time()
    await work
    pipe.send((began, time.monotonic(), time.process_time() - cpu))


async def _take(bench: Bench, number: int, completed: Any, until: int) -> None:
    """Completes mails until all processes together have completed `until`."""
    deliveries = bench.worker.deliveries(bench.in_flight, give_up_after=STORES_TIMEOUT)

    async def complete(delivery: Delivery) -> None:
        await complete_own(delivery)
        completed[number] += 1

    async def close() -> None:
        while sum(completed) < until:  # noqa: ASYNC110 - other processes count, too
            await asyncio.sleep(_POLL_SECONDS)
        await deliveries.aclose()

    async with progressing(lambda: sum(completed), until), asyncio.TaskGroup() as group:
        group.create_task(close())
        async for delivery in deliveries:
            group.create_task(complete(delivery))
    await bench.worker.settle()
