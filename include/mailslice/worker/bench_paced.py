"""Latency of the hot path at a given rate rather than at its peak: operations begin when they are due, however long earlier ones take.

An enqueue's latency is from when it was due; a dequeue's from when its message was due to be published to the end of `complete`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from mailslice.codec import message
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker.bench import PATIENCE, Measured, bench_mail, measuring, percentiles, source_of, warm_up
from mailslice.worker.delays import own_headers
from mailslice.worker.delivery import Delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker
from mailslice.worker.store_cpu import StoreCpu

_MOST_BEHIND = 2048
"""Operations that may be under way: one that is due while so many are waits, and its waiting counts."""
_Held = list[tuple[bytes, dict[str, Any]]]


async def measure_paced(
    settings: Settings, queue: QueueName, *, count: int, size: int, in_flight: int, enqueue_rate: float, dequeue_rate: float
) -> dict[str, Any]:
    """`count` mails of `size` bytes enqueued at `enqueue_rate`, then delivered at `dequeue_rate` and completed. The queue must be empty."""
    cpu = StoreCpu(settings)
    with source_of(size) as source:
        async with open_worker(settings, queue) as worker:
            await warm_up(worker)
            with measuring(cpu) as enqueued:
                await _paced(count, enqueue_rate, enqueued, lambda number: worker.enqueue(bench_mail(f"bench-{number}"), source))
    held = await asyncio.to_thread(_held_back, settings, queue, count)
    async with open_worker(settings, queue) as worker:
        taken = await _taken(worker, cpu, held, in_flight, dequeue_rate)
    return {
        "count": count,
        "enqueue_rate": enqueued.rate,
        "enqueue_ms": asdict(percentiles(enqueued.latencies)),
        "dequeue_rate": taken.rate,
        "dequeue_ms": asdict(percentiles(taken.latencies)),
    }


async def _paced(count: int, rate: float, measured: Measured, operation: Callable[[int], Coroutine[Any, Any, object]]) -> None:
    places = asyncio.Semaphore(_MOST_BEHIND)

    async def one(number: int, due: float) -> None:
        try:
            await operation(number)
        finally:
            places.release()
        measured.done(time.perf_counter() - due)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await places.acquire()
            group.create_task(one(number, due))


async def _taken(worker: QueueWorker, cpu: StoreCpu, held: _Held, in_flight: int, rate: float) -> Measured:
    exchange, publisher = RabbitNames(worker.queue).exchange, worker.wiring.publisher
    due: dict[EnqueueId, float] = {}
    enqueue_ids = [message.decode(body).enqueue_id for body, _ in held]

    async def publish(number: int) -> None:
        body, headers = held[number]
        due[enqueue_ids[number]] = began + number / rate
        await publisher.publish(exchange, body, headers, None)

    async def complete(delivery: Delivery) -> None:
        await delivery.complete()
        measured.done(time.perf_counter() - due[delivery.item.enqueue_id])

    await publisher.connect()
    async with aclosing(worker.deliveries(in_flight, give_up_after=PATIENCE)) as deliveries:
        coming = asyncio.ensure_future(anext(deliveries))
        while not deliveries.connected and not coming.done():  # noqa: ASYNC110 - nothing else waits for that moment
            await asyncio.sleep(0.01)
        with measuring(cpu) as measured:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                group.create_task(_paced(len(held), rate, Measured(), publish))
                for number in range(len(held)):
                    group.create_task(complete(await coming))
                    if number + 1 < len(held):
                        coming = asyncio.ensure_future(anext(deliveries))
        await worker.settle()
    return measured


def _held_back(settings: Settings, queue: QueueName, count: int) -> _Held:
    """Takes the messages of the mails off the queue, to publish each when it is due; rows and blobs stay."""
    held: _Held = []
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        while len(held) < count:
            _, properties, body = channel.basic_get(RabbitNames(queue).work_queue, auto_ack=True)
            if body is None:
                break
            held.append((body, own_headers(properties.headers or {})))
    return held
