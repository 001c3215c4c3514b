"""Measures the hot path in this process. The caller creates and empties the queue.

Rates are a second, latencies in ms. CPU is that of this process, and of the stores that run on
this machine. The latency of an enqueue is that of the whole call. The latency of a dequeue is from
the broker's delivery to the end of `complete`, so it includes the wait in the prefetch window.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import resource
import tempfile
import time
from array import array
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import MutableSequence as Floats
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from mailslice.bench.own_mails import STORES_TIMEOUT, bench_mail, complete_own, progressing
from mailslice.bench.store_cpu import STORES, StoreCpu, cpu_between
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.stores.blobs.window import Window
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker

HEADER_BYTES = 500
_FROM_FILE_BYTES = 1024 * 1024
"""Larger mails are enqueued from a file, so that the peak memory is mailslice's alone."""
_TENTHS = 10


@dataclass(frozen=True, slots=True)
class Work:
    """`count` mails of `size` bytes, `in_flight` at a time, after `warm` unmeasured mails.

    The queue must be empty and not used by others. `nearby`: settings with the stores' real ports,
    if `settings` name a proxy.
    """

    settings: Settings
    queue: QueueName
    count: int
    size: int
    in_flight: int
    warm: int = 1
    nearby: Settings | None = None

    @property
    def cpu(self) -> StoreCpu:
        """The CPU of the stores' processes."""
        return StoreCpu(self.nearby or self.settings)


@dataclass(slots=True)
class Measurement:
    """Figures of an operation that ran many times.

    `latencies` are in seconds, in the order in which the operations ended; `ended` are seconds
    since `began`. Arrays add a quarter of what lists would add to the measured memory.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    stores: Mapping[str, float | None] = field(default_factory=dict)
    latencies: Floats[float] = field(default_factory=lambda: array("d"))
    in_flight: Floats[float] = field(default_factory=lambda: array("d"))
    """As `latencies`, without the wait for the window of requests to S3."""
    ended: Floats[float] = field(default_factory=lambda: array("d"))
    began: float = field(default_factory=time.perf_counter)

    def done(self, latency: float) -> None:
        """Records an operation that ends now, with its latency in seconds."""
        self.latencies.append(latency)
        self.ended.append(time.perf_counter() - self.began)

    @property
    def rate(self) -> float:
        """Operations a second."""
        return round(len(self.latencies) / self.seconds, 1)

    def per_thousand(self, seconds: float | None) -> float | None:
        """Converts CPU seconds of all operations into CPU seconds per 1,000 operations."""
        return None if seconds is None else round(1000 * seconds / len(self.latencies), 3)

    @property
    def all_cpu_seconds(self) -> float | None:
        """CPU seconds of this process and all stores. None if a store's are unknown."""
        seconds = [used for used in self.stores.values() if used is not None]
        return self.cpu_seconds + sum(seconds) if len(seconds) == len(STORES) else None

    def rate_of_tenths(self) -> list[float]:
        """The rate in each tenth of the operations. Shows a queue that slows down as it fills."""
        if len(self.ended) < _TENTHS:
            return []
        count = len(self.ended) / _TENTHS
        last = [len(self.ended) * part // _TENTHS - 1 for part in range(1, _TENTHS + 1)]
        edges = [0.0, *(self.ended[at] for at in last)]
        return [round(count / max(end - begin, 1e-6), 1) for begin, end in pairwise(edges)]


@contextmanager
def measuring(cpu: StoreCpu) -> Iterator[Measurement]:
    """Measures the time of the block, and the CPU of this process and of the stores in it."""
    measured = Measurement()
    stores, own = cpu.seconds(), time.process_time()
    measured.began = time.perf_counter()
    yield measured
    measured.seconds = time.perf_counter() - measured.began
    measured.cpu_seconds = time.process_time() - own
    measured.stores = cpu_between(stores, cpu.seconds())


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in ms of latencies in seconds, by nearest rank."""
    ordered = sorted(seconds)
    ranks = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
    at = {name: max(0, math.ceil(share * len(ordered)) - 1) for name, share in ranks.items()}
    return {name: round(1000 * ordered[rank], 2) for name, rank in at.items()}


Complete = Callable[[Delivery, Measurement], Coroutine[None, None, None]]
"""Completes a mail, and records its latency."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A worker on the queue, and the mail that it enqueues."""

    worker: QueueWorker
    cpu: StoreCpu
    source: bytes | Path
    in_flight: int

    async def enqueue(self, count: int, prefix: str = "") -> Measurement:
        """Enqueues `count` mails, named by the prefix and their number."""

        async def enqueue(number: int) -> None:
            await self.worker.enqueue(bench_mail(f"{prefix}{number}"), self.source)

        return await many(self.cpu, count, self.in_flight, enqueue)

    async def take(
        self,
        count: int,
        complete: Complete | None = None,
        fill: Callable[[], Awaitable[object]] | None = None,
    ) -> Measurement:
        """Dequeues and completes `count` mails, and deletes their blobs.

        `fill` runs before the first mail is awaited. Raises Refused at a foreign mail, and if no
        more mails come.
        """
        complete = complete or _complete
        deliveries = self.worker.deliveries(self.in_flight, give_up_after=STORES_TIMEOUT)
        with measuring(self.cpu) as measured:
            async with (
                progressing(lambda: len(measured.latencies), count),
                aclosing(deliveries),
                asyncio.TaskGroup() as group,
            ):
                if fill is not None:
                    await fill()
                # One task iterates; completions run beside it, bounded by the prefetch.
                for _ in range(count):
                    group.create_task(complete(await anext(deliveries), measured))
            await self.worker.settle()
        return measured

    async def round_trip(self, count: int) -> tuple[Measurement, Measurement]:
        """Enqueues `count` mails, then dequeues and completes them: nothing remains."""
        return await self.enqueue(count), await self.take(count)


async def _complete(delivery: Delivery, measured: Measurement) -> None:
    await complete_own(delivery)
    measured.done(asyncio.get_running_loop().time() - delivery.message.arrived)


@asynccontextmanager
async def opened(work: Work) -> AsyncIterator[Bench]:
    """Opens a worker on the queue."""
    with source_of(work.size) as source:
        async with open_worker(work.settings, work.queue) as worker:
            yield Bench(worker, work.cpu, source, work.in_flight)


_FIRST_ENTRY: ContextVar[list[float]] = ContextVar("_FIRST_ENTRY")


class MeasuredWindow(Window):
    """Records when the current operation's first S3 request starts. `fixed`: a constant limit."""

    def __init__(
        self, fixed: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._is_fixed = fixed is not None
        if fixed is not None:
            self.limit, self._probing = fixed, False

    async def enter(self) -> float:
        began = await super().enter()
        if (first := _FIRST_ENTRY.get(None)) is not None and not first:
            first.append(time.perf_counter())
        return began

    def _update(self, now: float) -> None:
        if self._is_fixed:
            self._samples.clear()
        else:
            super()._update(now)


async def many(
    cpu: StoreCpu, count: int, in_flight: int, operation: Callable[[int], Awaitable[object]]
) -> Measurement:
    """Runs `operation(number)` for all numbers below `count`, in `in_flight` tasks."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            first: list[float] = []
            _FIRST_ENTRY.set(first)
            began = time.perf_counter()
            await operation(number)
            ended = time.perf_counter()
            measured.done(ended - began)
            measured.in_flight.append(ended - (first[0] if first else began))

    with measuring(cpu) as measured:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(in_flight, count)):
                group.create_task(work())
    return measured


async def measure_hotpath(
    work: Work, window: int | None = None, *, by_obstore: bool = False
) -> dict[str, Any]:
    """Enqueues the mails, then dequeues and completes them.

    `window`: a fixed number of S3 requests at once, instead of the adaptive one. `by_obstore`:
    without the client for small objects.
    """
    async with opened(work) as bench:
        blobs = bench.worker.context.blobs
        blobs.puts = MeasuredWindow(window)
        if by_obstore:
            blobs.small = None
        if window is not None:
            blobs.gets = MeasuredWindow(window)
        await bench.round_trip(work.warm)
        both = dict(zip(("enqueue", "dequeue"), await bench.round_trip(work.count), strict=True))
    all_cpu = sum(measured.cpu_seconds for measured in both.values())

    def by_way(figure: Callable[[Measurement], Any]) -> dict[str, Any]:
        return {way: figure(measured) for way, measured in both.items()}

    def named(name: str, figure: Callable[[Measurement], Any]) -> dict[str, Any]:
        return {f"{way}_{name}": value for way, value in by_way(figure).items()}

    def cpu_of(store: str) -> dict[str, Any]:
        return by_way(lambda measured: measured.per_thousand(measured.stores[store]))

    return {
        "queue": work.queue,
        "count": work.count,
        "size": work.size,
        "in_flight": work.in_flight,
        **named("rate", lambda measured: measured.rate),
        **named("ms", lambda measured: percentiles(measured.latencies)),
        "enqueue_in_flight_ms": percentiles(both["enqueue"].in_flight),
        "cpu_seconds_per_1000": round(1000 * all_cpu / work.count, 3),
        **named("cpu_seconds_per_1000", lambda one: one.per_thousand(one.cpu_seconds)),
        "stores_cpu_seconds_per_1000": {store: cpu_of(store) for store in STORES},
        "cpu_bound_rate": by_way(cpu_bound_rate),
        "share_of_cores": by_way(share_of_cores),
        "share_of_cpu_bound_rate": by_way(_share_of_bound),
        **named("rate_of_tenths", Measurement.rate_of_tenths),
        "peak_mib": peak_mib(),
        "window_limit": {"puts": int(blobs.puts.limit), "gets": int(blobs.gets.limit)},
    }


def cpu_bound_rate(measured: Measurement) -> float | None:
    """The rate at which worker and stores would keep all cores of this machine busy.

    None if a store runs elsewhere.
    """
    seconds = measured.all_cpu_seconds
    return round((os.cpu_count() or 1) * len(measured.latencies) / seconds, 1) if seconds else None


def share_of_cores(measured: Measurement) -> dict[str, float | None]:
    """Shares of this machine's cores: worker, stores and `rest` (other programs, idle, waits)."""
    available = measured.seconds * (os.cpu_count() or 1)
    used = {
        "worker": measured.cpu_seconds,
        **{store: measured.stores.get(store) for store in STORES},
    }
    shares = {
        name: None if seconds is None else round(seconds / available, 3)
        for name, seconds in used.items()
    }
    known = [share for share in shares.values() if share is not None]
    rest = round(max(0.0, 1 - sum(known)), 3) if len(known) == len(shares) else None
    return {**shares, "rest": rest}


def _share_of_bound(measured: Measurement) -> float | None:
    bound = cpu_bound_rate(measured)
    return None if bound is None else round(measured.rate / bound, 3)


def peak_mib() -> float:
    """Peak resident MiB of this process. `getrusage` would include the parent of a fork."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    kib = int(peak[1]) if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kib / 1024, 1)


@contextmanager
def source_of(size: int) -> Iterator[bytes | Path]:
    """A mail of `size` bytes: in memory, or in a file if it is larger than 1 MiB."""
    if size <= _FROM_FILE_BYTES:
        yield _content(size)
        return
    with tempfile.NamedTemporaryFile(prefix="mailslice-bench-", suffix=".eml") as file:
        file.write(_content(_FROM_FILE_BYTES))
        piece = os.urandom(_FROM_FILE_BYTES)
        for remaining in range(size - _FROM_FILE_BYTES, 0, -_FROM_FILE_BYTES):
            file.write(piece[:remaining])
        file.flush()
        yield Path(file.name)


def _content(size: int) -> bytes:
    header = b"From: alice@bench.example\r\nTo: bob@bench.example\r\nX-Bench: "
    filling = b"x" * max(0, min(HEADER_BYTES, size) - len(header) - 4)
    return (header + filling + b"\r\n\r\n" + b"0123456789abcdef" * (size // 16 + 1))[:size]
