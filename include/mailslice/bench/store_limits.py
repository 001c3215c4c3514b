"""The rate of each store alone, with the hot path's clients and sizes, in the same run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from cassandra.cluster import ResponseFuture

from mailslice.bench.clearing import drop_marks
from mailslice.bench.measure import HEADER_BYTES, Measurement, Work, many, measuring
from mailslice.bench.own_mails import STORES_TIMEOUT, bench_mail
from mailslice.bench.store_cpu import StoreCpu
from mailslice.codec import message
from mailslice.model.clock import system_clock
from mailslice.model.mail import BlobId, EnqueueId, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.worker.io.blob_deleter import KEYS_A_REQUEST
from mailslice.worker.io.cassandra_bridge import Bridge
from mailslice.worker.queue_worker import open_worker

_BYTES = 200_000_000
"""The most that is written to S3."""
_SMALL_IN_FLIGHT = 64
"""Least statements and messages in flight: they are small whatever the size of the mails."""
_DELETERS = 2
_STORES = {"s3": "s3", "view": "cassandra", "confirmed": "rabbitmq", "acked": "rabbitmq"}


async def measure_stores(work: Work) -> dict[str, Any]:
    """`limits`: operations a second. `limits_cpu_seconds_per_1000`: CPU of client and server.

    A mail has two blobs. `view_reads` are deleted checks. The queue must exist; its messages and
    rows are not touched. Everything that was written is deleted.
    """
    cpu, small = work.cpu, max(work.in_flight, _SMALL_IN_FLIGHT)
    measured = {
        **await measure_blobs(work),
        **await _view(work, cpu, small),
        **await _messages(work.settings, cpu, small, work.count),
    }
    slowest = measured["s3_puts"].rate / 2, measured["view_inserts"].rate
    return {
        "limits": {name: limit.rate for name, limit in measured.items()},
        "limits_cpu_seconds_per_1000": {
            name: _cpu(name, limit) for name, limit in measured.items()
        },
        "slowest_store_mails_rate": min(*slowest, measured["confirmed_publishes"].rate),
    }


def _cpu(name: str, measured: Measurement) -> dict[str, float | None]:
    server = measured.stores[_STORES[name.partition("_")[0]]]
    return {
        "client": measured.per_thousand(measured.cpu_seconds),
        "server": measured.per_thousand(server),
    }


async def measure_blobs(work: Work, *, by_obstore: bool = False) -> dict[str, Measurement]:
    """PUTs and GETs, in turn of a small header and of a body; then bulk deletes."""
    blobs = AsyncBlobStore(work.settings.s3, work.settings.s3.bucket)
    if by_obstore:
        blobs.small = None
    count = max(50, min(work.count, _BYTES // work.size))
    ids = [BlobId(str(uuid4())) for _ in range(count)]
    header, body = min(HEADER_BYTES, work.size), max(1, work.size - HEADER_BYTES)
    contents = os.urandom(header), os.urandom(body)
    cpu = work.cpu
    measured = {
        "s3_puts": await many(
            cpu, count, work.in_flight, lambda number: blobs.put(ids[number], contents[number % 2])
        ),
        "s3_gets": await many(cpu, count, work.in_flight, lambda number: blobs.get(ids[number])),
        "s3_bulk_deletes": await _deletes(blobs, cpu, ids),
    }
    blobs.close()
    return measured


async def _deletes(blobs: AsyncBlobStore, cpu: StoreCpu, ids: list[BlobId]) -> Measurement:
    """Deletes as the worker does: 100 keys a request, two requests at once."""
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


async def _view(work: Work, cpu: StoreCpu, in_flight: int) -> dict[str, Measurement]:
    """Inserts, reads and marks rows under a queue name that nobody uses."""
    alone, now = QueueName(f"mailslice-bench-limits-{uuid4().hex[:8]}"), system_clock()
    async with open_worker(work.settings, work.queue) as worker:
        tables, bridge = worker.context.tables, Bridge(worker.context.stores.cassandra)
        partition = Partition(slice_start(now, worker.context.shape.window), 0)
        none = BlobId("none")
        rows = [
            ViewRow(
                alone, partition, now, QueuedMail(EnqueueId(uuid4()), bench_mail(n), none, none)
            )
            for n in range(work.count)
        ]
        ids = [row.item.enqueue_id for row in rows]

        async def measured(begin: Callable[[int], ResponseFuture]) -> Measurement:
            return await many(cpu, work.count, in_flight, lambda n: bridge.rows(begin(n)))

        deleted = tables.deleted
        try:
            return {
                "view_inserts": await measured(lambda n: tables.written.insert_future(rows[n])),
                "view_reads": await measured(lambda n: deleted.is_marked_future(alone, ids[n])),
                "view_marks": await measured(lambda n: deleted.mark_future(alone, ids[n])),
            }
        finally:
            now_us = time.time_ns() // 1000
            cleared = tables.written.delete_partition_future(alone, partition, now_us)
            await asyncio.to_thread(cleared.result)
            await asyncio.to_thread(drop_marks, tables.deleted, alone, ids)


async def _messages(
    settings: Settings, cpu: StoreCpu, in_flight: int, count: int
) -> dict[str, Measurement]:
    blob = BlobId(str(uuid4()))
    body = message.encode(QueuedMail(EnqueueId(uuid4()), bench_mail("message"), blob, blob))
    with _own_queue(settings) as name:
        publisher = Publisher(settings.rabbitmq)

        async def publish(_: int) -> None:
            await publisher.publish("", body, {}, None, routing_key=name)

        try:
            await publisher.connect()
            publishes = await many(cpu, count, in_flight, publish)
        finally:
            await publisher.close()
        acks = await _acks(settings, cpu, name, in_flight, count)
    return {"confirmed_publishes": publishes, "acked_deliveries": acks}


async def _acks(
    settings: Settings, cpu: StoreCpu, name: str, prefetch: int, count: int
) -> Measurement:
    """Consumes `count` messages. The time is from opening the connection to the last ack."""
    last = asyncio.get_running_loop().create_future()

    def take(delivered: Message) -> None:
        delivered.ack()
        measured.done(asyncio.get_running_loop().time() - delivered.arrived)
        if len(measured.latencies) == count and not last.done():
            last.set_result(delivered.link)

    consumer = Consumer(settings.rabbitmq, name, prefetch, on_message=take)
    try:
        with measuring(cpu) as measured:
            consumer.start()
            async with asyncio.timeout(STORES_TIMEOUT.total_seconds()):
                await (await last).flushed()
    finally:
        await consumer.close()
    return measured


@contextmanager
def _own_queue(settings: Settings) -> Iterator[str]:
    """The name of a new durable queue, which is deleted at the end of the block."""
    name = f"mailslice-bench-limits-{uuid4().hex[:8]}"
    with blocking_connection(settings.rabbitmq) as connection:
        connection.channel().queue_declare(name, durable=True)
    try:
        yield name
    finally:
        with blocking_connection(settings.rabbitmq) as connection:
            connection.channel().queue_delete(name)
