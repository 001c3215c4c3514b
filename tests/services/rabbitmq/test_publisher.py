"""Confirms: in flight, refused, returned, lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.stores.rabbitmq.topology import Topology
from tests.services.worker.conftest import until
from tests.services.worker.cuttable import Cuttable

SPOOL = QueueName("spool")
NAMES = RabbitNames(SPOOL)


@pytest.fixture
def settings(fresh: Any) -> Any:
    Topology(fresh.settings).declare(SPOOL)
    return fresh.settings.rabbitmq


def taken(settings: Any, queue: str = NAMES.work_queue) -> list[tuple[Any, bytes]]:
    found = []
    with blocking_connection(settings) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(queue, auto_ack=True))[2] is not None:
            found.append((got[1], got[2]))
    return found


async def test_many_publishes_are_confirmed_beside_each_other_and_all_arrive(settings: Any) -> None:
    publisher = Publisher(settings)
    stamp = datetime(2026, 11, 21, 10, 0, 5, 900_000, tzinfo=UTC)
    await asyncio.gather(
        *(
            publisher.publish(NAMES.exchange, b"%d" % number, {"x": number}, stamp)
            for number in range(500)
        )
    )
    await publisher.close()
    found = taken(settings)
    assert {body for _, body in found} == {b"%d" % number for number in range(500)}
    assert {
        (p.delivery_mode, p.timestamp, p.headers["x-dead-letter-routing-key"]) for p, _ in found
    } == {(2, int(stamp.timestamp()), "")}


async def test_a_message_that_no_queue_takes_is_an_error_and_the_others_are_not(
    settings: Any,
) -> None:
    publisher = Publisher(settings)
    with blocking_connection(settings) as connection:
        connection.channel().exchange_declare("unbound", "direct")
    results = await asyncio.gather(
        *(
            publisher.publish(
                "unbound" if number % 10 == 0 else NAMES.exchange, b"%d" % number, {}, None
            )
            for number in range(100)
        ),
        return_exceptions=True,
    )
    assert [number for number, result in enumerate(results) if result is not None] == list(
        range(0, 100, 10)
    )
    assert "exchange 'unbound' has no queue bound (312 NO_ROUTE)" in str(results[0])
    assert len(taken(settings)) == 90
    await publisher.close()


async def test_an_exchange_that_is_not_there_fails_and_the_next_publish_connects_anew(
    settings: Any,
) -> None:
    publisher = Publisher(settings)
    with pytest.raises(StoreUnavailable, match="NOT_FOUND"):
        await publisher.publish("no-such-exchange", b"1", {}, None)
    await publisher.publish(NAMES.exchange, b"2", {}, None)
    await publisher.close()
    assert [body for _, body in taken(settings)] == [b"2"]


async def test_a_queue_that_is_full_and_refuses_is_an_error(settings: Any) -> None:
    with blocking_connection(settings) as connection:
        connection.channel().queue_declare(
            "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
    publisher = Publisher(settings)
    await publisher.publish("", b"1", {}, None, routing_key="full")
    # The limit is kept within a few messages.
    results = await asyncio.gather(
        *(
            publisher.publish("", b"%d" % number, {}, None, routing_key="full")
            for number in range(20)
        ),
        return_exceptions=True,
    )
    assert "refused a message" in str(results[-1])
    await publisher.close()


async def test_what_waits_for_a_confirm_fails_when_the_connection_is_cut(
    fresh: Any, settings: Any
) -> None:
    url = urlsplit(settings.url.get_secret_value())
    async with Cuttable(url.hostname or "", url.port or 0) as proxy:
        through = fresh.but(
            MAILSLICE_RABBITMQ_URL=url._replace(
                netloc=f"{url.username}:{url.password}@127.0.0.1:{proxy.port}"
            ).geturl()
        ).settings.rabbitmq
        publisher = Publisher(through)
        await publisher.publish(NAMES.exchange, b"1", {}, None)
        proxy.hangs = True
        waiting = [
            asyncio.create_task(publisher.publish(NAMES.exchange, b"2", {}, None)) for _ in range(5)
        ]
        await asyncio.sleep(0.2)
        await proxy.cut()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert all(
            isinstance(result, StoreUnavailable) and "lost before a confirm" in str(result)
            for result in results
        )
        proxy.hangs = False
        await proxy.mend()
        await asyncio.wait_for(publisher.publish(NAMES.exchange, b"3", {}, None), 20)
        await publisher.close()
    assert b"3" in {body for _, body in taken(settings)}


async def test_a_consumer_survives_the_deletion_of_its_queue(settings: Any, fresh: Any) -> None:
    found: asyncio.Queue[Message] = asyncio.Queue()
    lost = asyncio.Event()
    consumer = Consumer(
        settings, NAMES.work_queue, 5, on_message=found.put_nowait, on_lost=lambda *_: lost.set()
    )
    consumer.start()
    publisher = Publisher(settings)
    await publisher.publish(NAMES.exchange, b"1", {}, None)
    first = await asyncio.wait_for(found.get(), 30)
    with blocking_connection(settings) as connection:
        connection.channel().queue_delete(NAMES.work_queue)
    await asyncio.wait_for(lost.wait(), 30)
    assert not first.ack()
    await asyncio.to_thread(Topology(fresh.settings).declare, SPOOL)
    await publisher.publish(NAMES.exchange, b"2", {}, None)
    second = await asyncio.wait_for(found.get(), 40)
    assert second.body == b"2"
    assert second.ack()
    await second.link.flushed()
    await consumer.close()
    await publisher.close()
    assert taken(settings) == []


async def test_no_more_is_fetched_than_the_prefetch_and_what_is_not_settled_goes_back(
    settings: Any,
) -> None:
    publisher = Publisher(settings)
    for number in range(10):
        await publisher.publish(NAMES.exchange, b"%d" % number, {}, None)
    found: list[Message] = []
    consumer = Consumer(settings, NAMES.work_queue, 3, on_message=found.append)
    consumer.start()
    await until(lambda: len(found) >= 3)
    await asyncio.sleep(0.3)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert found[0].ack()
    await found[0].link.flushed()
    await until(lambda: len(found) >= 4)
    await asyncio.sleep(0.3)
    assert [message.body for message in found[3:]] == [b"3"]
    await consumer.close()
    await publisher.close()
    assert [body for _, body in taken(settings)] == [b"%d" % number for number in range(1, 10)]
