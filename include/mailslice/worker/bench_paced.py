"""Latency of the hot path at a given rate rather than at its peak: operations begin when they are due, however long earlier ones take.

An enqueue's latency is from when it was due; a dequeue's from when its message was due to be published to the end of `complete`, so it holds the broker's
time, too. Who publishes is a process of its own, as producers are; the one that is measured has worked before, and finds an empty queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from mailslice.codec import message
from mailslice.model.errors import Refused
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import ROUTING_KEY, RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.publisher import james_properties
from mailslice.worker.apart import Process
from mailslice.worker.bench import (
    PATIENCE,
    Measured,
    bench_mail,
    measuring,
    percentiles,
    source_of,
    there_and_back,
)
from mailslice.worker.bench_own import complete_own, not_own
from mailslice.worker.delays import own_headers
from mailslice.worker.delivery import Delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker
from mailslice.worker.store_cpu import StoreCpu

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

_MOST_BEHIND = 2048
"""Operations that may be under way: one that is due while so many are waits, and its waiting counts."""
_HEAD_START = 0.05
"""Seconds in which both processes hear when the first message is due."""

_HEARTBEAT = 300
"""Seconds: who publishes sleeps in between, and answers no heartbeat."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`count` mails of `size` bytes, so many a second; before them, as fast as they go, `warm` there and back."""

    settings: Settings
    queue: QueueName
    count: int
    size: int
    in_flight: int
    enqueue_rate: float
    dequeue_rate: float
    warm: int = 1


def measure_paced(pace: Pace) -> dict[str, Any]:
    """Mails enqueued at the one rate, then delivered at the other and completed: rates that were reached, latencies in ms. The queue must be empty."""
    with Process(_working, pace) as worker:
        enqueued = worker.answer()
        with Process(_publishing, pace) as publisher:
            worker.begin(publisher.answer())
            worker.answer()
            began = time.monotonic() + _HEAD_START
            publisher.begin(began)
            worker.begin(began)
            publisher.answer()
            taken = worker.answer()
    return {"count": pace.count, **enqueued, **taken}


def _working(pipe: Connection, pace: Pace) -> dict[str, Any]:
    """The process that is measured."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_both_ways(pipe, pace))


async def _both_ways(pipe: Connection, pace: Pace) -> dict[str, Any]:
    cpu = StoreCpu(pace.settings)
    with source_of(pace.size) as source:
        async with open_worker(pace.settings, pace.queue) as worker:
            await there_and_back(worker, cpu, source, pace.warm, pace.in_flight)
            with measuring(cpu) as enqueued:
                await _paced(
                    pace.count,
                    pace.enqueue_rate,
                    enqueued,
                    lambda number: worker.enqueue(bench_mail(number), source),
                )
            pipe.send(
                {
                    "enqueue_rate": enqueued.rate,
                    "enqueue_ms": asdict(percentiles(enqueued.latencies)),
                }
            )
            taken = await _taken(pipe, worker, cpu, pace, await asyncio.to_thread(pipe.recv))
    return {"dequeue_rate": taken.rate, "dequeue_ms": asdict(percentiles(taken.latencies))}


async def _paced(
    count: int,
    rate: float,
    measured: Measured,
    operation: Callable[[int], Coroutine[Any, Any, object]],
) -> None:
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


async def _taken(
    pipe: Connection, worker: QueueWorker, cpu: StoreCpu, pace: Pace, coming: list[EnqueueId]
) -> Measured:
    """Completes the mails of the messages that are `coming`, in their order, from the moment on that the pipe says."""
    due: dict[EnqueueId, float] = {}

    async def complete(delivery: Delivery) -> None:
        await complete_own(delivery)
        measured.done(time.monotonic() - due[delivery.item.enqueue_id])

    async with aclosing(worker.deliveries(pace.in_flight, give_up_after=PATIENCE)) as deliveries:
        first = asyncio.ensure_future(anext(deliveries))
        while not deliveries.connected and not first.done():  # noqa: ASYNC110 - nothing else waits for that moment
            await asyncio.sleep(0.01)
        pipe.send("consuming")
        began = await asyncio.to_thread(pipe.recv)
        due.update(
            (enqueue_id, began + number / pace.dequeue_rate)
            for number, enqueue_id in enumerate(coming)
        )
        try:
            with measuring(cpu) as measured:
                async with (
                    asyncio.timeout(len(coming) / pace.dequeue_rate + PATIENCE.total_seconds()),
                    asyncio.TaskGroup() as group,
                ):
                    group.create_task(complete(await first))
                    for _ in coming[1:]:
                        group.create_task(complete(await anext(deliveries)))
        except TimeoutError:
            missing = len(coming) - len(measured.latencies)
            raise Refused(
                f"{missing} of {len(coming)} mails did not come back from queue {pace.queue}: does somebody else consume it?"
            ) from None
        await worker.settle()
    return measured


def _publishing(pipe: Connection, pace: Pace) -> None:
    """The process that publishes each message when it is due. It has all of them in hand when it answers first."""
    with blocking_connection(pace.settings.rabbitmq, heartbeat=_HEARTBEAT) as connection:
        channel = connection.channel()
        held = list(_held_back(channel, pace.queue, pace.count))
        if held:  # all are ours. Unacknowledged until they are published again, they cost the broker what is measured (8 % of the rate)
            channel.basic_ack(held[-1].tag, multiple=True)
        pipe.send([each.enqueue_id for each in held])
        began = pipe.recv()
        for number, each in enumerate(held):
            time.sleep(max(0.0, began + number / pace.dequeue_rate - time.monotonic()))
            channel.basic_publish(
                RabbitNames(pace.queue).exchange,
                ROUTING_KEY,
                each.body,
                james_properties(each.headers, None),
            )


@dataclass(frozen=True, slots=True)
class _Held:
    """A message in the hands of who will publish it again."""

    tag: int
    enqueue_id: EnqueueId
    body: bytes
    headers: dict[str, Any]


def _held_back(channel: BlockingChannel, queue: QueueName, count: int) -> Iterator[_Held]:
    """Takes the messages of the mails in hand; all go back, and Refused is raised, when one is somebody else's."""
    for _ in range(count):
        got, properties, body = channel.basic_get(RabbitNames(queue).work_queue, auto_ack=False)
        if got is None or properties is None or body is None:
            return
        tag, item = got.delivery_tag, message.decode(body)
        if (refused := not_own(item.mail.name)) is not None:
            channel.basic_nack(tag, multiple=True, requeue=True)
            raise refused
        yield _Held(tag, item.enqueue_id, body, own_headers(properties.headers or {}))
