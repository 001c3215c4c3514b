"""A broker of our own, put into alarm and killed: for real what other tests' proxy plays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mailslice.model.errors import QueueMissing, StoreUnavailable
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq.blocking_publisher import has_consumers
from mailslice.stores.rabbitmq.checkout import check_out
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.publisher import Publisher
from tests.own_broker import Broker, own_broker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
QUEUE = "kept"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with own_broker(tmp_path_factory.mktemp("broker")) as made:
        with blocking_connection(made.settings) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        yield made


async def published(publisher: Publisher, bodies: list[bytes]) -> list[Any]:
    return await asyncio.gather(
        *(publisher.publish("", body, {}, None, routing_key=QUEUE) for body in bodies),
        return_exceptions=True,
    )


def taken(broker: Broker) -> list[bytes]:
    found = []
    with blocking_connection(broker.settings) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(QUEUE, auto_ack=True))[2] is not None:
            found.append(got[2])
    return found


async def test_a_memory_alarm_is_waited_for_named_and_survived_and_consumers_go_on(
    broker: Broker,
) -> None:
    publisher, found = Publisher(broker.settings), asyncio.Queue[Message]()
    assert await published(publisher, [b"before"]) == [None]
    await asyncio.to_thread(broker.control, "set_vm_memory_high_watermark", "0")
    try:
        results = await published(publisher, [b"during %d" % number for number in range(20)])
        assert all(isinstance(result, StoreUnavailable) for result in results)
        assert {
            "blocks publishers (low on memory); not confirmed within 4 s" in str(result)
            for result in results
        } == {True}
        consumer = Consumer(broker.settings, QUEUE, 100, on_message=found.put_nowait)
        consumer.start()
        assert (await asyncio.wait_for(found.get(), 10)).ack()
        waiting = asyncio.create_task(published(publisher, [b"after"]))
    finally:
        await asyncio.to_thread(broker.control, "set_vm_memory_high_watermark", "absolute", "1GB")
    if await waiting != [None]:  # the alarm may outlast one time-out
        async with asyncio.timeout(60):
            while await published(publisher, [b"after"]) != [None]:
                pass
    await asyncio.sleep(1)
    await consumer.close()
    await publisher.close()
    left = taken(broker)
    assert b"after" in left or b"after" in [found.get_nowait().body for _ in range(found.qsize())]


async def test_a_broker_that_is_killed_keeps_every_message_that_it_confirmed(
    broker: Broker,
) -> None:
    taken(broker)
    publisher, found = Publisher(broker.settings), asyncio.Queue[Message]()
    consumer = Consumer(broker.settings, QUEUE, 10, on_message=found.put_nowait)
    results: list[Any] = []

    async def keep_publishing(first: int) -> None:
        for number in range(first, first + 400):
            results.extend(
                zip([b"%d" % number], await published(publisher, [b"%d" % number]), strict=True)
            )
            if number % 50 == 0:
                await asyncio.sleep(0.1)

    publishing = [asyncio.create_task(keep_publishing(first)) for first in (0, 1000, 2000)]
    await asyncio.sleep(0.5)
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    await asyncio.gather(*publishing)
    confirmed = {body for body, result in results if result is None}
    assert any(result is not None for _, result in results), (
        "the kill came while messages were under way"
    )
    assert len(confirmed) > 100
    consumer.start()
    seen: set[bytes] = set()
    async with asyncio.timeout(60):
        while not confirmed <= seen:
            message = await found.get()
            seen.add(message.body)
            assert message.ack()
    await consumer.close()
    await publisher.close()


def test_a_queue_that_has_crashed_is_not_taken_for_one_that_is_missing(broker: Broker) -> None:
    kill = "{ok, Q} = rabbit_amqqueue:lookup(Name), exit(amqqueue:get_pid(Q), kill)"
    broker.control(
        "eval",
        f'Name = rabbit_misc:r(<<"/">>, queue, <<"{QUEUE}">>), '
        f"[begin {kill}, timer:sleep(100) end || _ <- lists:seq(1, 20)].",
    )
    urls = {"url": broker.settings.url, "management_url": broker.management_url}
    settings = RabbitSettings.model_validate(urls)
    down = "has crashed|stopped by supervisor|due to timeout"
    with pytest.raises(StoreUnavailable, match=down) as raised:
        has_consumers(broker.settings, QUEUE)
    assert not isinstance(raised.value, QueueMissing)
    with pytest.raises(QueueMissing):
        has_consumers(broker.settings, "none")
    with (
        pytest.raises(StoreUnavailable, match=down),
        check_out(settings, QUEUE),
    ):
        raise AssertionError("looked through")
