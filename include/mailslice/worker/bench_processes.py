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


def measure_processes(
    settings: Settings,
    queue: QueueName,
    *,
    processes: int,
    count: int,
    size: int,
    in_flight: int,
    warm: int = 1,
) -> dict[str, Any]:
    """`count` mails of `size` bytes enqueued by so many processes at once, then dequeued by them. `in_flight` and `warm` are each one's.

    Before that, `warm` mails go there and back. The queue must be empty. `share_of_cores`: `rest` is what nobody used, as when processes wait for a lock.
    """
    cpu = StoreCpu(settings)
    progress = multiprocessing.get_context("spawn").Array("q", processes, lock=False)
    work = Work(settings, queue, processes, size, in_flight, rounds=(warm * processes, count))
    with ExitStack() as stack:
        running = [
            stack.enter_context(Process(_member, work, number, progress))
            for number in range(processes)
        ]
        for mails in work.rounds:
            enqueued = _together(running, cpu, mails)
            taken = _together(running, cpu, mails)
        peaks = [process.answer() for process in running]
    return {
        "processes": processes,
        "count": count,
        **_named("enqueue", enqueued),
        **_named("dequeue", taken),
        "peak_mib": max(peaks),
    }


def _named(what: str, found: dict[str, Any]) -> dict[str, Any]:
    return {f"{what}_{key}": value for key, value in found.items()}


def _together(running: Sequence[Process], cpu: StoreCpu, count: int) -> dict[str, Any]:
    """One phase: all are ready, all begin, all tell (began, ended, CPU seconds)."""
    from mailslice.worker.bench import (
        Measured,
        share_of_cores,
    )  # late: the processes import this module before they keep numpy out of the drivers

    for process in running:
        process.answer()
    before = cpu.read()
    for process in running:
        process.begin()
    told = [process.answer() for process in running]
    stores = spent(before, cpu.read())
    seconds = max(ended for _, ended, _ in told) - min(began for began, _, _ in told)
    own = sum(used for _, _, used in told)
    return {
        "rate": round(count / seconds, 1),
        "cpu_seconds_per_1000": round(1000 * own / count, 3),
        "stores_cpu_seconds_per_1000": {
            store: None if (used := stores[store]) is None else round(1000 * used / count, 3)
            for store in STORES
        },
        "share_of_cores": share_of_cores(Measured(seconds=seconds, cpu_seconds=own, stores=stores)),
    }


@dataclass(frozen=True, slots=True)
class Work:
    """What all processes do together."""

    settings: Settings
    queue: QueueName
    processes: int
    size: int
    in_flight: int
    rounds: tuple[int, ...]
    """Mails there and back, of all processes."""

    def share(self, mails: int, number: int) -> int:
        """How many of `mails` the process `number` enqueues."""
        return mails // self.processes + (number < mails % self.processes)


def _member(pipe: Connection, work: Work, number: int, progress: Any) -> float:
    """One of the processes; its peak memory."""
    from mailslice.worker.bench_member import run_member  # late, as above

    return run_member(pipe, work, number, progress)
