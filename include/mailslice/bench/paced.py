"""Latency at a given rate: each operation starts when it is due, even if earlier ones still run.

The latency of an enqueue starts when the enqueue is due. The latency of a dequeue starts when its
message is due to be published and ends with `complete`, so it includes the broker's time. Another
process publishes, as producers do. The measured process is warm and consumes an empty queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from mailslice.bench.isolated import Process
from mailslice.bench.measure import Bench, Measurement, Work, measuring, opened, percentiles
from mailslice.bench.own_mails import (
    STORES_TIMEOUT,
    bench_mail,
    complete_own,
    foreign_mail,
    progressing,
)
from mailslice.codec import message
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import ROUTING_KEY, RabbitNames
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.publisher import james_properties
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.io.message_copy import own_headers

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

_MAX_UNDER_WAY = 2048
"""Most operations at once. A due operation that waits for this counts its wait as latency."""
_HEAD_START = 0.05
"""Seconds from now to the first message: time to tell both processes."""
_HEARTBEAT = 300
"""Seconds. The publisher sleeps between messages and answers no heartbeat meanwhile."""


def measure_paced(work: Work, enqueue_rate: float, dequeue_rate: float) -> dict[str, Any]:
    """Enqueues mails at one rate, then publishes and completes them at the other.

    Returns the rates that were reached, and latencies in ms.
    """
    with Process(_work, work, enqueue_rate, dequeue_rate) as worker:
        enqueued = worker.answer()
        with Process(_publish, work, dequeue_rate) as publisher:
            worker.send(publisher.answer())
            worker.answer()
            began = time.monotonic() + _HEAD_START
            publisher.send(began)
            worker.send(began)
            publisher.answer()
            taken = worker.answer()
    return {"count": work.count, **enqueued, **taken}


async def _work(
    pipe: Connection, work: Work, enqueue_rate: float, dequeue_rate: float
) -> dict[str, Any]:
    """The process that is measured."""
    async with opened(work) as bench:
        await bench.round_trip(work.warm)

        async def enqueue(number: int) -> None:
            await bench.worker.enqueue(bench_mail(number), bench.source)

        with measuring(bench.cpu) as enqueued:
            await _at_pace(work.count, enqueue_rate, enqueued, enqueue)
        pipe.send(_figures("enqueue", enqueued))
        coming = await asyncio.to_thread(pipe.recv)
        taken = await _take(pipe, bench, dequeue_rate, coming)
    return _figures("dequeue", taken)


def _figures(way: str, measured: Measurement) -> dict[str, Any]:
    return {f"{way}_rate": measured.rate, f"{way}_ms": percentiles(measured.latencies)}


async def _at_pace(
    count: int, rate: float, measured: Measurement, operation: Callable[[int], Awaitable[object]]
) -> None:
    room = asyncio.Semaphore(_MAX_UNDER_WAY)

    async def one(number: int, due: float) -> None:
        try:
            await operation(number)
        finally:
            room.release()
        measured.done(time.perf_counter() - due)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await room.acquire()
            group.create_task(one(number, due))


async def _take(
    pipe: Connection, bench: Bench, rate: float, coming: list[EnqueueId]
) -> Measurement:
    """Completes the mails of the ids `coming`. The pipe gives the time of the first message."""
    due: dict[EnqueueId, float] = {}

    async def complete(delivery: Delivery) -> None:
        await complete_own(delivery)
        measured.done(time.monotonic() - due[delivery.item.enqueue_id])

    async with aclosing(
        bench.worker.deliveries(bench.in_flight, give_up_after=STORES_TIMEOUT)
    ) as deliveries:
        first = asyncio.ensure_future(anext(deliveries))
        while not deliveries.connected and not first.done():  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)
        pipe.send("consuming")
        began = await asyncio.to_thread(pipe.recv)
        due |= {enqueue_id: began + number / rate for number, enqueue_id in enumerate(coming)}
        with measuring(bench.cpu) as measured:
            async with (
                progressing(lambda: len(measured.latencies), len(coming)),
                asyncio.TaskGroup() as group,
            ):
                group.create_task(complete(await first))
                for _ in coming[1:]:
                    group.create_task(complete(await anext(deliveries)))
        await bench.worker.settle()
    return measured


def _publish(pipe: Connection, work: Work, rate: float) -> None:
    """The process that publishes each message when it is due."""
    with blocking_connection(work.settings.rabbitmq, heartbeat=_HEARTBEAT) as connection:
        channel = connection.channel()
        taken = list(take_messages(channel, work.queue, work.count))
        if taken:  # all are ours; without the ack the broker is 8 % slower
            channel.basic_ack(taken[-1].tag, multiple=True)
        pipe.send([taken_message.enqueue_id for taken_message in taken])
        began = pipe.recv()
        for number, taken_message in enumerate(taken):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            properties = james_properties(taken_message.headers, None)
            channel.basic_publish(
                RabbitNames(work.queue).exchange, ROUTING_KEY, taken_message.body, properties
            )


@dataclass(frozen=True, slots=True)
class _Message:
    """A message that was taken off the queue, to be published again."""

    tag: int
    enqueue_id: EnqueueId
    body: bytes
    headers: dict[str, Any]


def take_messages(channel: BlockingChannel, queue: QueueName, count: int) -> Iterator[_Message]:
    """The queue's messages. At a foreign mail, requeues all of them and raises Refused."""
    for _ in range(count):
        got, properties, body = channel.basic_get(RabbitNames(queue).work_queue, auto_ack=False)
        if got is None or properties is None or body is None:
            return
        tag, item = got.delivery_tag, message.decode(body)
        if (refused := foreign_mail(item.mail.name)) is not None:
            channel.basic_nack(tag, multiple=True, requeue=True)
            raise refused
        yield _Message(tag, item.enqueue_id, body, own_headers(properties.headers or {}))
