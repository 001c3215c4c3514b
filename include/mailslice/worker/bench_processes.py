"""The hot path by several processes against one queue: does it scale, and does a mail cost more CPU then?"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.worker.apart import Process
from mailslice.worker.store_cpu import STORES, StoreCpu, spent


def measure_processes(settings: Settings, queue: QueueName, *, processes: int, count: int, size: int, in_flight: int) -> dict[str, Any]:
    """`count` mails of `size` bytes enqueued by so many processes at once, then dequeued by them. `in_flight` is each one's. The queue must be empty."""
    cpu = StoreCpu(settings)
    progress = multiprocessing.get_context("spawn").Array("q", processes, lock=False)
    work = Work(settings, queue, processes, count, size, in_flight)
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
class Work:
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


def _member(pipe: Connection, work: Work, number: int, progress: Any) -> float:
    """One of the processes; its peak memory."""
    from mailslice.worker.bench_member import run_member  # late: the process decides before what the drivers may import

    return run_member(pipe, work, number, progress)
