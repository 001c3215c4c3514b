"""Measures the hot path, in this process. Measures only: making and emptying the queue is the caller's.

Rates are a second; latencies in ms; CPU is this process' own, and beside it the stores' where they run on this machine. An enqueue's latency is the whole
call; a dequeue's is from the broker's delivery to the end of `complete`, so it holds the wait in the prefetch window.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import resource
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

from mailslice.model.mail import Mail, QueueName
from mailslice.model.names import BENCH_NAMES
from mailslice.model.settings import Settings
from mailslice.worker.bench_own import complete_own, progressing
from mailslice.worker.delivery import Delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker
from mailslice.worker.store_cpu import STORES, StoreCpu, spent

HEADER_BYTES = 500
_FROM_FILE_BYTES = 1024 * 1024
"""Larger mails are enqueued from a file, so that what is measured is mailslice's memory, not the caller's."""
PATIENCE = timedelta(seconds=30)
_PARTS = 10


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles, ms."""

    p50: float
    p95: float
    p99: float


@dataclass(slots=True)
class Measured:
    """One thing done many times. `latencies` in seconds, in the order in which they ended; `ended` when, since the beginning: arrays, which take
    a quarter of what lists would add to the memory that is measured.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    stores: Mapping[str, float | None] = field(default_factory=dict)
    latencies: MutableSequence[float] = field(default_factory=lambda: array("d"))
    in_flight: MutableSequence[float] = field(default_factory=lambda: array("d"))
    """As `latencies`, without the wait for room in the window before S3."""
    ended: MutableSequence[float] = field(default_factory=lambda: array("d"))
    began: float = field(default_factory=time.perf_counter)

    def done(self, latency: float) -> None:
        """One operation has ended."""
        self.latencies.append(latency)
        self.ended.append(time.perf_counter() - self.began)

    @property
    def rate(self) -> float:
        """Operations a second."""
        return round(len(self.latencies) / self.seconds, 1)

    def per_thousand(self, seconds: float | None) -> float | None:
        """CPU seconds as CPU seconds per 1,000 operations."""
        return None if seconds is None else round(1000 * seconds / len(self.latencies), 3)

    @property
    def all_cpu_seconds(self) -> float | None:
        """Of this process and the stores; None where a store's are not known."""
        seconds = [each for each in self.stores.values() if each is not None]
        return self.cpu_seconds + sum(seconds) if len(seconds) == len(STORES) else None

    def rate_of_parts(self) -> list[float]:
        """The rate in each tenth of the operations: a queue that slows down as it fills, or empties, shows it here."""
        edges = (
            [
                0.0,
                *(
                    self.ended[len(self.ended) * part // _PARTS - 1]
                    for part in range(1, _PARTS + 1)
                ),
            ]
            if len(self.ended) >= _PARTS
            else []
        )
        count = len(self.ended) / _PARTS
        return [
            round(count / max(later - earlier, 1e-6), 1)
            for earlier, later in itertools.pairwise(edges)
        ]


@contextmanager
def measuring(cpu: StoreCpu) -> Iterator[Measured]:
    """Takes the time, and the CPU of this process and the stores, of the block."""
    found = Measured()
    stores, own = cpu.read(), time.process_time()
    found.began = time.perf_counter()
    yield found
    found.seconds = time.perf_counter() - found.began
    found.cpu_seconds = time.process_time() - own
    found.stores = spent(stores, cpu.read())


def percentiles(seconds: Sequence[float]) -> Latency:
    """Nearest rank, of latencies in seconds, as ms."""
    ordered = sorted(seconds)
    return Latency(
        *(
            round(1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)], 2)
            for share in (0.50, 0.95, 0.99)
        )
    )


async def measure_hotpath(
    settings: Settings,
    queue: QueueName,
    *,
    count: int,
    size: int,
    in_flight: int,
    warm: int = 1,
    window: int | None = None,
) -> dict[str, object]:
    """Enqueues `count` mails of `size` bytes, `in_flight` at a time, then dequeues and completes them; before that `warm` of them, unmeasured.

    `window`: so many requests to S3 at once, in place of as many as it bears.
    The queue must be empty and not used by others.
    """
    cpu = StoreCpu(settings)
    with source_of(size) as source:
        async with open_worker(settings, queue) as worker:
            blobs = worker.wiring.blobs
            blobs.puts.on_enter = _entered
            if window is not None:
                blobs.puts.hold(window)
                blobs.gets.hold(window)
            await there_and_back(worker, cpu, source, warm, in_flight)
            enqueued, taken = await there_and_back(worker, cpu, source, count, in_flight)
    return {
        "queue": queue,
        "count": count,
        "size": size,
        "in_flight": in_flight,
        "enqueue_rate": enqueued.rate,
        "dequeue_rate": taken.rate,
        "enqueue_ms": asdict(percentiles(enqueued.latencies)),
        "enqueue_in_flight_ms": asdict(percentiles(enqueued.in_flight)),
        "dequeue_ms": asdict(percentiles(taken.latencies)),
        "cpu_seconds_per_1000": round(1000 * (enqueued.cpu_seconds + taken.cpu_seconds) / count, 3),
        "enqueue_cpu_seconds_per_1000": enqueued.per_thousand(enqueued.cpu_seconds),
        "dequeue_cpu_seconds_per_1000": taken.per_thousand(taken.cpu_seconds),
        "stores_cpu_seconds_per_1000": {
            store: {
                "enqueue": enqueued.per_thousand(enqueued.stores[store]),
                "dequeue": taken.per_thousand(taken.stores[store]),
            }
            for store in STORES
        },
        "cpu_bound_rate": {"enqueue": cpu_bound_rate(enqueued), "dequeue": cpu_bound_rate(taken)},
        "share_of_cores": {"enqueue": share_of_cores(enqueued), "dequeue": share_of_cores(taken)},
        "share_of_cpu_bound_rate": {
            "enqueue": _share_of_bound(enqueued),
            "dequeue": _share_of_bound(taken),
        },
        "enqueue_rate_of_tenths": enqueued.rate_of_parts(),
        "dequeue_rate_of_tenths": taken.rate_of_parts(),
        "peak_mib": peak_mib(),
        "window_limit": {"puts": int(blobs.puts.limit), "gets": int(blobs.gets.limit)},
    }


_FIRST_ENTRY: ContextVar[list[float]] = ContextVar("_FIRST_ENTRY")


def _entered() -> None:
    """A request of the operation under way entered the window: its first one counts."""
    if (first := _FIRST_ENTRY.get(None)) is not None and not first:
        first.append(time.perf_counter())


def cpu_bound_rate(measured: Measured) -> float | None:
    """The rate at which worker and stores, at their CPU per operation, would keep all cores of this machine busy. None when a store is elsewhere."""
    seconds = measured.all_cpu_seconds
    return round((os.cpu_count() or 1) * len(measured.latencies) / seconds, 1) if seconds else None


def share_of_cores(measured: Measured) -> dict[str, float | None]:
    """Who had the cores of this machine while it was measured: worker and stores; `rest` is the others, the kernel's idle time, and waits. None as above."""
    whole = measured.seconds * (os.cpu_count() or 1)
    used = {
        "worker": measured.cpu_seconds,
        **{store: measured.stores.get(store) for store in STORES},
    }
    shares = {
        name: None if seconds is None else round(seconds / whole, 3)
        for name, seconds in used.items()
    }
    known = [share for share in shares.values() if share is not None]
    return {
        **shares,
        "rest": round(max(0.0, 1 - sum(known)), 3) if len(known) == len(shares) else None,
    }


def _share_of_bound(measured: Measured) -> float | None:
    bound = cpu_bound_rate(measured)
    return None if bound is None else round(measured.rate / bound, 3)


def peak_mib() -> float:
    """The most that was resident of this process' own memory. What `getrusage` says counts the parent's at the fork, too."""
    try:
        found = re.search(
            r"^VmHWM:\s+(\d+) kB",
            Path("/proc/self/status").read_text(encoding="ascii", errors="replace"),
            re.MULTILINE,
        )
    except OSError:
        found = None
    kib = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kib / 1024, 1)


def bench_mail(name: object) -> Mail:
    """An envelope of a benchmark."""
    return Mail(
        name=f"{BENCH_NAMES}{name}",
        sender="alice@bench.example",
        recipients=("bob@bench.example",),
        last_updated_ns=time.time_ns(),
    )


@contextmanager
def source_of(size: int) -> Iterator[bytes | Path]:
    """A mail of `size` bytes: in memory, or, when it is large, in a file."""
    with tempfile.TemporaryDirectory(prefix="mailslice-bench-") as folder:
        yield (
            _content(size)
            if size <= _FROM_FILE_BYTES
            else _written(Path(folder) / "mail.eml", size)
        )


async def there_and_back(
    worker: QueueWorker, cpu: StoreCpu, source: bytes | Path, count: int, in_flight: int
) -> tuple[Measured, Measured]:
    """`count` mails enqueued, then dequeued and completed: nothing stays."""
    enqueued = await many(
        cpu, count, in_flight, lambda number: worker.enqueue(bench_mail(number), source)
    )
    return enqueued, await take(worker, cpu, count, in_flight)


async def many(
    cpu: StoreCpu, count: int, in_flight: int, operation: Callable[[int], Awaitable[object]]
) -> Measured:
    """`in_flight` tasks share the numbers: bounded, without a task for each."""
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


async def take(worker: QueueWorker, cpu: StoreCpu, count: int, in_flight: int) -> Measured:
    """Dequeues and completes `count` mails, and deletes their blobs. Refused at a mail of somebody else, and when no more come."""
    with measuring(cpu) as measured:
        async with (
            progressing(lambda: len(measured.latencies), count),
            aclosing(worker.deliveries(in_flight, give_up_after=PATIENCE)) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            # One task iterates; completions run beside it, bounded by the prefetch.
            for _ in range(count):
                group.create_task(_complete(await anext(deliveries), measured))
        await worker.settle()
    return measured


async def _complete(delivery: Delivery, measured: Measured) -> None:
    await complete_own(delivery)
    measured.done(asyncio.get_running_loop().time() - delivery.arrived)


def _content(size: int) -> bytes:
    header = b"From: alice@bench.example\r\nTo: bob@bench.example\r\nX-Bench: "
    filling = b"x" * max(0, min(HEADER_BYTES, size) - len(header) - 4)
    return (header + filling + b"\r\n\r\n" + b"0123456789abcdef" * (size // 16 + 1))[:size]


def _written(file: Path, size: int) -> Path:
    """A file of a mail of `size` bytes, written piece by piece."""
    with file.open("wb") as out:
        out.write(_content(_FROM_FILE_BYTES))
        piece = os.urandom(_FROM_FILE_BYTES)
        for left in range(size - _FROM_FILE_BYTES, 0, -_FROM_FILE_BYTES):
            out.write(piece[:left])
    return file
