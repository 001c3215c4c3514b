"""A queue in its own vhost and bucket, and its state in the stores, read without the worker."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mailslice.admin.queues import create
from mailslice.model.errors import QueueMissing
from mailslice.model.mail import EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.ids import unpack
from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST, split
from mailslice.stores.rabbitmq.connection import blocking_connection

GOLDEN = Path(__file__).parents[2] / "golden"


def mail(name: str = "m-1", **changes: Any) -> Mail:
    return Mail(
        **{
            "name": name,
            "sender": "alice@example.org",
            "recipients": ("bob@example.net",),
            **changes,
        }
    )


def golden(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{case}.json").read_text())
    return found


def golden_body(case: str) -> bytes:
    return base64.b64decode(golden(case)["amqp"]["body_base64"])


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Waits for a condition that a worker of this loop must reach. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


@asynccontextmanager
async def back_at_once(spool: Place4Queue) -> AsyncIterator[None]:
    """Meanwhile what is parked comes back at once, not after the minute of the park queue's TTL."""
    over = asyncio.Event()

    async def expire() -> None:
        while not over.is_set():
            with suppress(QueueMissing):
                await asyncio.to_thread(spool.expire, spool.names.park_queue)
            await asyncio.sleep(0.2)

    expiring = asyncio.create_task(expire())
    try:
        yield
    finally:
        over.set()
        await expiring


@dataclass(frozen=True)
class Place4Queue:
    """One queue, its settings and its stores."""

    settings: Settings
    stores: Stores
    queue: QueueName

    @property
    def names(self) -> RabbitNames:
        return RabbitNames(self.queue)

    def rows(self) -> list[ViewRow]:
        written = self.stores.tables.written
        pages = written.rows_of(self.queue, written.partitions(self.queue))
        return [row for _, page in pages for row in page]

    def live(self) -> list[ViewRow]:
        marks = self.marks()
        return [row for row in self.rows() if row.enqueue_id not in marks]

    def marks(self) -> set[EnqueueId]:
        # Not by mailslice.bench: these tests also run with only the wheel (tests/versions).
        pages = self.stores.tables.deleted.packed_ids_of(self.queue, split(LOWEST, HIGHEST, 32))
        return {one for page in pages for one in unpack(page)}

    def blob_keys(self) -> set[str]:
        return {blob.key for blob in self.stores.blobs.list()}

    def ready(self, name: str) -> int:
        """Ready messages of a RabbitMQ queue: the current figure, unlike the management API's."""
        with blocking_connection(self.settings.rabbitmq) as connection:
            return int(connection.channel().queue_declare(name, passive=True).method.message_count)

    def wait_for_ready(self, name: str, count: int, seconds: float = 20) -> int:
        """Waits until `ready` is `count`, or for `seconds`; returns `ready`. A broker dead-letters
        and requeues some time after its answer.
        """
        deadline = time.monotonic() + seconds
        while (found := self.ready(name)) != count and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def take(self, name: str, seconds: float = 20) -> tuple[Any, bytes] | None:
        """Takes one message off a RabbitMQ queue: (properties, body). None if none comes within
        `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not self.ready(name) and time.monotonic() < deadline:
            time.sleep(0.1)
        with blocking_connection(self.settings.rabbitmq) as connection:
            _, properties, body = connection.channel().basic_get(name, auto_ack=True)
            return None if body is None else (properties, body)

    def expire(self, name: str) -> None:
        """Lets RabbitMQ dead-letter the ready messages of a queue, as after their TTL."""
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            while (method := channel.basic_get(name)[0]) is not None:
                channel.basic_nack(method.delivery_tag, requeue=False)

    def publish(
        self,
        exchange: str,
        body: bytes,
        headers: dict[str, Any] | None = None,
        routing_key: str = "",
    ) -> None:
        import pika

        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(
                delivery_mode=2,
                priority=0,
                content_type="text/plain",
                headers=headers or {"x-dead-letter-routing-key": ""},
            )
            channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)

    def put_as_james(
        self,
        item: QueuedMail,
        header: bytes,
        body: bytes,
        world: Partition | None,
        enqueued_time: Any = None,
    ) -> None:
        """Writes blobs, row and message like another producer. Without `world` it writes no row."""
        from mailslice.codec import message

        self.stores.blobs.put(item.header_blob_id, header)
        self.stores.blobs.put(item.body_blob_id, body)
        if world is not None:
            self.stores.tables.written.insert_many(
                [ViewRow(self.queue, world, enqueued_time or world.slice_start, item)]
            )
            self.stores.tables.content_starts.insert_first(self.queue, world.slice_start)
            self.stores.tables.browse_starts.insert_first(self.queue, world.slice_start)
        self.publish(self.names.exchange, message.encode(item))


def at(settings: Settings, name: str = "spool") -> Iterator[Place4Queue]:
    with open_stores(settings) as stores:
        yield Place4Queue(settings, stores, create(stores, name))


@pytest.fixture
def spool(fresh_module: Any) -> Iterator[Place4Queue]:
    """An own queue and bucket. The tests of a module share the tables, which take seconds to
    create.
    """
    name = f"spool-{uuid.uuid4().hex[:8]}"
    fresh = fresh_module.but(MAILSLICE_S3_BUCKET=f"{fresh_module.settings.s3.bucket}-{name}")
    for world in at(fresh.settings, name):
        yield world
        world.stores.blobs.delete_many([blob.key for blob in world.stores.blobs.list()])
        world.stores.blobs.client.delete_bucket(Bucket=fresh.settings.s3.bucket)
