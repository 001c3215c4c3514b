"""Measures the hot path, and beside it what each store does alone in the same run. Measures only: making and emptying the queue is the caller's.

Rates are a second; latencies in ms; CPU is this process' own. An enqueue's latency is the whole call; a dequeue's is from the broker's delivery to the end of
`complete`, so it holds the wait in the prefetch window.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from mailslice.codec import message
from mailslice.model.clock import system_clock
from mailslice.model.mail import BlobId, EnqueueId, Mail, Place, QueuedMail, QueueName, ViewRow
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores.blobs.hot import HotBlobs
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.worker.bridge import Bridge
from mailslice.worker.queue_worker import QueueWorker, open_worker

_HEADER_BYTES = 500
_FROM_FILE_BYTES = 1024 * 1024
"""Larger mails are enqueued from a file, so that what is measured is mailslice's memory, not the caller's."""
_LIMIT_OPERATIONS = 2000


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles, ms."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class _Measured:
    seconds: float
    cpu_seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return round(len(self.latencies) / self.seconds, 1)


def percentiles(seconds: Sequence[float]) -> Latency:
    """Nearest rank, of latencies in seconds, as ms."""
    ordered = sorted(seconds)
    return Latency(*(round(1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)], 2) for share in (0.50, 0.95, 0.99)))


async def measure_hotpath(settings: Settings, queue: QueueName, *, count: int, size: int, in_flight: int) -> dict[str, object]:
    """Enqueues `count` mails of `size` bytes, `in_flight` at a time, then dequeues and completes them. The queue must be empty and not used by others."""
    with tempfile.TemporaryDirectory(prefix="mailslice-bench-") as folder:
        source: bytes | Path = _content(size) if size <= _FROM_FILE_BYTES else _written(Path(folder) / "mail.eml", size)
        async with open_worker(settings, queue) as worker:
            await worker.enqueue(_mail("warm"), b"A: b\r\n\r\nwarm-up")
            await _take(worker, 1, 1)
            enqueued = await _many(count, in_flight, lambda number: worker.enqueue(_mail(f"bench-{number}"), source))
        # A worker each, so that the first one's open connections and caches are not the second one's.
        async with open_worker(settings, queue) as worker:
            taken = await _take(worker, count, in_flight)
    return {
        "queue": queue,
        "count": count,
        "size": size,
        "in_flight": in_flight,
        "enqueue_rate": enqueued.rate,
        "dequeue_rate": taken.rate,
        "enqueue_ms": asdict(percentiles(enqueued.latencies)),
        "dequeue_ms": asdict(percentiles(taken.latencies)),
        "cpu_seconds_per_1000": round(1000 * (enqueued.cpu_seconds + taken.cpu_seconds) / count, 3),
        "enqueue_cpu_seconds_per_1000": round(1000 * enqueued.cpu_seconds / count, 3),
        "dequeue_cpu_seconds_per_1000": round(1000 * taken.cpu_seconds / count, 3),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


async def measure_stores(settings: Settings, queue: QueueName, *, size: int, in_flight: int, operations: int = _LIMIT_OPERATIONS) -> dict[str, object]:
    """What each store does alone: blob puts (two are one mail), view inserts, confirmed publishes, each with its CPU seconds per 1,000 operations.

    Leaves nothing behind. `queue` must exist; its messages and rows are not touched.
    """
    puts = await _puts(settings, size, in_flight, max(50, min(operations, 200_000_000 // size)))
    async with open_worker(settings, queue) as worker:
        inserts = await _inserts(worker, in_flight, operations)
    publishes = await _publishes(settings, in_flight, operations)
    named = {"s3_put": puts, "view_insert": inserts, "confirmed_publish": publishes}
    rates = {f"{name}_rate": measured.rate for name, measured in named.items()}
    cpu = {f"{name}_cpu_seconds_per_1000": round(1000 * measured.cpu_seconds / len(measured.latencies), 3) for name, measured in named.items()}
    return {**rates, **cpu, "slowest_store_mails_rate": min(puts.rate / 2, inserts.rate, publishes.rate)}


def _mail(name: str) -> Mail:
    return Mail(name=name, sender="alice@bench.example", recipients=("bob@bench.example",), last_updated_ns=time.time_ns())


def _content(size: int) -> bytes:
    header = b"From: alice@bench.example\r\nTo: bob@bench.example\r\nX-Bench: "
    filling = b"x" * max(0, min(_HEADER_BYTES, size) - len(header) - 4)
    return (header + filling + b"\r\n\r\n" + b"0123456789abcdef" * (size // 16 + 1))[:size]


def _written(file: Path, size: int) -> Path:
    """A file of a mail of `size` bytes, written piece by piece."""
    with file.open("wb") as out:
        out.write(_content(_FROM_FILE_BYTES))
        piece = os.urandom(_FROM_FILE_BYTES)
        for left in range(size - _FROM_FILE_BYTES, 0, -_FROM_FILE_BYTES):
            out.write(piece[:left])
    return file


async def _many(count: int, in_flight: int, operation: Callable[[int], Awaitable[object]]) -> _Measured:
    """`in_flight` tasks share the numbers: bounded, without a task for each."""
    numbers = iter(range(count))
    latencies: list[float] = []

    async def work() -> None:
        for number in numbers:
            began = time.perf_counter()
            await operation(number)
            latencies.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(in_flight, count)):
            group.create_task(work())
    return _Measured(time.perf_counter() - began, time.process_time() - cpu, latencies)


async def _take(worker: QueueWorker, count: int, in_flight: int) -> _Measured:
    latencies: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    async with aclosing(worker.deliveries(in_flight, give_up_after=timedelta(seconds=30))) as deliveries, asyncio.TaskGroup() as group:
        # One task iterates; completions run beside it, bounded by the prefetch.
        for _ in range(count):
            delivery = await anext(deliveries)
            group.create_task(_complete(delivery.complete, delivery.arrived, latencies))
    await worker.settle()
    return _Measured(time.perf_counter() - began, time.process_time() - cpu, latencies)


async def _complete(complete: Callable[[], Awaitable[None]], arrived: float, latencies: list[float]) -> None:
    await complete()
    latencies.append(asyncio.get_running_loop().time() - arrived)


async def _puts(settings: Settings, size: int, in_flight: int, operations: int) -> _Measured:
    blobs = HotBlobs(settings.s3, settings.s3.bucket)
    ids = [BlobId(str(uuid4())) for _ in range(operations)]
    # A mail is two blobs: its small header, its body.
    contents = (os.urandom(min(_HEADER_BYTES, size)), os.urandom(max(1, size - _HEADER_BYTES)))
    measured = await _many(operations, in_flight, lambda number: blobs.put(ids[number], contents[number % 2]))
    for at in range(0, operations, 500):
        await blobs.delete_many(ids[at : at + 500])
    return measured


async def _inserts(worker: QueueWorker, in_flight: int, operations: int) -> _Measured:
    tables, bridge = worker.wiring.tables, Bridge(worker.wiring.stores.cassandra)
    alone = QueueName(f"mailslice-bench-limits-{uuid4().hex[:8]}")
    now = system_clock()
    place = Place(slice_start(now, worker.wiring.shape.window), 0)

    async def insert(number: int) -> None:
        item = QueuedMail(EnqueueId(uuid4()), _mail(f"bench-{number}"), BlobId("none"), BlobId("none"))
        await bridge.rows(tables.written.insert_future(ViewRow(alone, place, now, item)))

    measured = await _many(operations, max(in_flight, 64), insert)
    await asyncio.to_thread(tables.written.delete_partition, alone, place, time.time_ns() // 1000)
    return measured


async def _publishes(settings: Settings, in_flight: int, operations: int) -> _Measured:
    name = f"mailslice-bench-limits-{uuid4().hex[:8]}"
    item = QueuedMail(EnqueueId(uuid4()), _mail("bench"), BlobId(str(uuid4())), BlobId(str(uuid4())))
    body = message.encode(item)
    with blocking_connection(settings.rabbitmq) as connection:
        connection.channel().queue_declare(name, durable=True)
    publisher = Publisher(settings.rabbitmq)
    try:
        await publisher.connect()
        return await _many(operations, max(in_flight, 64), lambda _: publisher.publish("", body, {}, None, routing_key=name))
    finally:
        await publisher.close()
        with blocking_connection(settings.rabbitmq) as connection:
            connection.channel().queue_delete(name)
