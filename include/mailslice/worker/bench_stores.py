"""What each store does alone, with the hot path's own clients and sizes: the limits that stand beside its figures in the same run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

from mailslice.codec import message
from mailslice.model.clock import system_clock
from mailslice.model.mail import BlobId, EnqueueId, Place, QueuedMail, QueueName, ViewRow
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores.blobs.hot import HotBlobs
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.worker.bench import HEADER_BYTES, PATIENCE, Measured, bench_mail, many, measuring
from mailslice.worker.bridge import Bridge
from mailslice.worker.discarding import KEYS_A_REQUEST
from mailslice.worker.queue_worker import open_worker
from mailslice.worker.store_cpu import StoreCpu

_BYTES = 200_000_000
"""Written to S3 at most."""
_SMALL_IN_FLIGHT = 64
"""Statements and messages are small: so many at once, at least, whatever the mails' size allows."""
_DELETERS = 2
_STORE_OF = {"s3": "s3", "view": "cassandra", "confirmed": "rabbitmq", "acked": "rabbitmq"}


async def measure_stores(
    settings: Settings, queue: QueueName, *, size: int, in_flight: int, operations: int
) -> dict[str, object]:
    """Under `limits` operations a second: blobs (two are one mail), rows, deleted checks (reads), marks, messages; with the CPU of client and server.

    Leaves nothing behind. `queue` must exist; its messages and rows are not touched.
    """
    cpu = StoreCpu(settings)
    small = max(in_flight, _SMALL_IN_FLIGHT)
    puts, gets, deletes = await _blobs(
        settings, cpu, size, in_flight, max(50, min(operations, _BYTES // size))
    )
    inserts, reads, marks = await _view(settings, queue, cpu, small, operations)
    publishes, acks = await _messages(settings, cpu, small, operations)
    found = {
        "s3_puts": puts,
        "s3_gets": gets,
        "s3_bulk_deletes": deletes,
        "view_inserts": inserts,
        "view_reads": reads,
        "view_marks": marks,
        "confirmed_publishes": publishes,
        "acked_deliveries": acks,
    }
    return {
        "limits": {name: measured.rate for name, measured in found.items()},
        "limits_cpu_seconds_per_1000": {
            name: _cpu(name, measured) for name, measured in found.items()
        },
        "slowest_store_mails_rate": min(puts.rate / 2, inserts.rate, publishes.rate),
    }


def _cpu(name: str, measured: Measured) -> dict[str, float | None]:
    server = measured.stores[_STORE_OF[name.partition("_")[0]]]
    return {
        "client": measured.per_thousand(measured.cpu_seconds),
        "server": measured.per_thousand(server),
    }


async def _blobs(
    settings: Settings, cpu: StoreCpu, size: int, in_flight: int, operations: int
) -> tuple[Measured, Measured, Measured]:
    blobs = HotBlobs(settings.s3, settings.s3.bucket)
    ids = [BlobId(str(uuid4())) for _ in range(operations)]
    # A mail is two blobs: its small header, its body.
    contents = (os.urandom(min(HEADER_BYTES, size)), os.urandom(max(1, size - HEADER_BYTES)))
    puts = await many(
        cpu, operations, in_flight, lambda number: blobs.put(ids[number], contents[number % 2])
    )
    gets = await many(cpu, operations, in_flight, lambda number: blobs.get(ids[number]))
    deletes = await _deletes(blobs, cpu, ids)
    blobs.close()
    return puts, gets, deletes


async def _deletes(blobs: HotBlobs, cpu: StoreCpu, ids: list[BlobId]) -> Measured:
    """As the worker deletes: 100 keys a request, two requests at once."""
    requests = iter([ids[at : at + KEYS_A_REQUEST] for at in range(0, len(ids), KEYS_A_REQUEST)])

    async def delete() -> None:
        for keys in requests:
            began = time.perf_counter()
            await blobs.delete_many(keys)
            for _ in keys:
                measured.done(time.perf_counter() - began)

    with measuring(cpu) as measured:
        await asyncio.gather(*(delete() for _ in range(_DELETERS)))
    return measured


async def _view(
    settings: Settings, queue: QueueName, cpu: StoreCpu, in_flight: int, operations: int
) -> tuple[Measured, Measured, Measured]:
    """Rows and marks of a queue name that nobody uses."""
    alone = QueueName(f"mailslice-bench-limits-{uuid4().hex[:8]}")
    now = system_clock()
    async with open_worker(settings, queue) as worker:
        tables, bridge = worker.wiring.tables, Bridge(worker.wiring.stores.cassandra)
        place = Place(slice_start(now, worker.wiring.shape.window), 0)
        items = [
            QueuedMail(EnqueueId(uuid4()), bench_mail(number), BlobId("none"), BlobId("none"))
            for number in range(operations)
        ]
        rows = [ViewRow(alone, place, now, item) for item in items]
        ids = [item.enqueue_id for item in items]
        try:
            inserts = await many(
                cpu,
                operations,
                in_flight,
                lambda number: bridge.rows(tables.written.insert_future(rows[number])),
            )
            reads = await many(
                cpu,
                operations,
                in_flight,
                lambda number: bridge.rows(tables.deleted.is_marked_future(alone, ids[number])),
            )
            marks = await many(
                cpu,
                operations,
                in_flight,
                lambda number: bridge.rows(tables.deleted.mark_future(alone, ids[number])),
            )
        finally:
            await asyncio.to_thread(
                tables.written.delete_partition, alone, place, time.time_ns() // 1000
            )
            await asyncio.to_thread(tables.deleted.drop_in_chunks, alone, ids)
    return inserts, reads, marks


async def _messages(
    settings: Settings, cpu: StoreCpu, in_flight: int, operations: int
) -> tuple[Measured, Measured]:
    body = message.encode(
        QueuedMail(
            EnqueueId(uuid4()), bench_mail("message"), BlobId(str(uuid4())), BlobId(str(uuid4()))
        )
    )
    with _own_queue(settings) as name:
        async with _publisher(settings) as publisher:
            publishes = await many(
                cpu,
                operations,
                in_flight,
                lambda _: publisher.publish("", body, {}, None, routing_key=name),
            )
        return publishes, await _acks(settings, cpu, name, in_flight, operations)


async def _acks(
    settings: Settings, cpu: StoreCpu, name: str, prefetch: int, operations: int
) -> Measured:
    """From the opening of the connection to the last ack."""
    everything = asyncio.get_running_loop().create_future()

    def take(delivered: Message) -> None:
        delivered.ack()
        measured.done(asyncio.get_running_loop().time() - delivered.arrived)
        if len(measured.latencies) == operations and not everything.done():
            everything.set_result(delivered.link)

    consumer = Consumer(settings.rabbitmq, name, prefetch, on_message=take)
    try:
        with measuring(cpu) as measured:
            consumer.start()
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await (await everything).flushed()
    finally:
        await consumer.close()
    return measured


@contextmanager
def _own_queue(settings: Settings) -> Iterator[str]:
    """A durable queue for as long as it is needed."""
    name = f"mailslice-bench-limits-{uuid4().hex[:8]}"
    with blocking_connection(settings.rabbitmq) as connection:
        connection.channel().queue_declare(name, durable=True)
    try:
        yield name
    finally:
        with blocking_connection(settings.rabbitmq) as connection:
            connection.channel().queue_delete(name)


@asynccontextmanager
async def _publisher(settings: Settings) -> AsyncIterator[Publisher]:
    publisher = Publisher(settings.rabbitmq)
    try:
        await publisher.connect()
        yield publisher
    finally:
        await publisher.close()
