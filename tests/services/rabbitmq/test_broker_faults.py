"""A broker that freezes, refuses, forgets its queues: how publisher and consumer come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from mailslice.model.errors import QueueMissing, StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq import consumer as consuming
from mailslice.stores.rabbitmq import link as linking
from mailslice.stores.rabbitmq import publisher as publishing
from mailslice.stores.rabbitmq.blocking_publisher import has_consumers
from mailslice.stores.rabbitmq.connection import blocking_connection, parameters
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.link import Link
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.stores.rabbitmq.topology import Topology
from tests.services.worker.conftest import until
from tests.services.worker.cuttable import Cuttable, blocked, unblocked

SPOOL = QueueName("spool")
NAMES = RabbitNames(SPOOL)


@pytest.fixture
def settings(fresh: Any) -> Any:
    Topology(fresh.settings).declare(SPOOL)
    return fresh.settings.rabbitmq


@pytest.fixture
async def proxy(settings: Any) -> AsyncIterator[Cuttable]:
    url = urlsplit(settings.url.get_secret_value())
    async with Cuttable(url.hostname or "", url.port or 0) as proxy:
        yield proxy


def through(fresh: Any, proxy: Cuttable, timeout: str) -> Any:
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
    netloc = f"{url.username}:{url.password}@127.0.0.1:{proxy.port}"
    return fresh.but(
        MAILSLICE_RABBITMQ_URL=url._replace(netloc=netloc).geturl(),
        MAILSLICE_RABBITMQ_TIMEOUT=timeout,
    ).settings.rabbitmq


async def test_a_broker_that_froze_is_given_up_long_before_its_heartbeats_stay_out(
    fresh: Any, proxy: Cuttable
) -> None:
    publisher = Publisher(through(fresh, proxy, "1s"))
    await publisher.publish(NAMES.exchange, b"1", {}, None)
    proxy.hangs = True
    with pytest.raises(StoreUnavailable, match="did not confirm a message within 1 s"):
        await publisher.publish(NAMES.exchange, b"2", {}, None)
    later = asyncio.create_task(publisher.publish(NAMES.exchange, b"3", {}, None))
    with pytest.raises(
        StoreUnavailable, match=r"RabbitMQ at 127\.0\.0\.1:\d+ confirmed nothing for 1 s"
    ):
        await later
    await proxy.cut()
    proxy.hangs = False
    await proxy.mend()
    await publisher.publish(NAMES.exchange, b"4", {}, None)
    await publisher.close()


async def test_a_slow_broker_that_confirms_something_keeps_its_connection(
    fresh: Any, proxy: Cuttable
) -> None:
    publisher = Publisher(through(fresh, proxy, "1s"))
    await publisher.publish(NAMES.exchange, b"1", {}, None)
    link = publisher._link
    assert link is not None
    proxy.hangs = True
    late = asyncio.create_task(publisher.publish(NAMES.exchange, b"2", {}, None))
    with pytest.raises(StoreUnavailable, match="did not confirm"):
        await late
    proxy.hangs = False  # its confirm comes now, before the second look
    await asyncio.sleep(publishing._RECHECK_SECONDS + 0.5)
    await publisher.publish(NAMES.exchange, b"3", {}, None)
    assert publisher._link is link
    await publisher.close()


async def test_attempts_to_connect_back_off_and_fail_with_the_reason(
    fresh: Any, proxy: Cuttable, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    opening = Link.open

    async def counted(settings: Any) -> Link:
        attempts.append(time.monotonic())
        return await opening(settings)

    monkeypatch.setattr(Link, "open", staticmethod(counted))
    publisher = Publisher(through(fresh, proxy, "5s"))
    await proxy.cut()
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            await publisher.publish(NAMES.exchange, b"1", {}, None)
    assert 2 <= len(attempts) <= 10, "a caller in a loop does not make it a storm"
    await proxy.mend()
    await publisher.publish(NAMES.exchange, b"2", {}, None)
    await publisher.close()


async def test_an_exchange_that_is_gone_does_not_cost_a_connection_for_each_mail(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    opening = Link.open

    async def counted(settings: Any) -> Link:
        nonlocal attempts
        attempts += 1
        return await opening(settings)

    monkeypatch.setattr(Link, "open", staticmethod(counted))
    publisher = Publisher(settings)
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        with pytest.raises(StoreUnavailable, match="404 NOT_FOUND - no exchange 'gone'"):
            await publisher.publish("gone", b"1", {}, None)
    assert attempts <= 8
    await publisher.publish(NAMES.exchange, b"2", {}, None)
    await publisher.close()


async def test_a_channel_that_cannot_be_confirmed_leaves_no_connection_behind(
    fresh: Any, proxy: Cuttable, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(through(fresh, proxy, "1s"))
    links: list[Link] = []
    opening = Link.open

    async def then_hang(settings: Any) -> Link:
        links.append(await opening(settings))
        proxy.hangs = True
        return links[-1]

    monkeypatch.setattr(Link, "open", staticmethod(then_hang))
    with pytest.raises(StoreUnavailable):
        await publisher.publish(NAMES.exchange, b"1", {}, None)
    await asyncio.wait_for(links[0].lost, 10)
    await publisher.close()


async def test_a_consumer_is_told_apart_from_a_lost_connection_when_its_queue_goes_and_comes_back(
    settings: Any, fresh: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lost: asyncio.Queue[Exception] = asyncio.Queue()
    found: asyncio.Queue[Message] = asyncio.Queue()
    consumer = Consumer(
        settings,
        NAMES.work_queue,
        5,
        on_message=found.put_nowait,
        on_lost=lambda _link, why: lost.put_nowait(why),
    )
    consumer.start()
    publisher = Publisher(settings)
    await publisher.publish(NAMES.exchange, b"1", {}, None)
    first = await asyncio.wait_for(found.get(), 10)
    with blocking_connection(settings) as connection:
        connection.channel().queue_delete(NAMES.work_queue)
    cancelled, refused = [await asyncio.wait_for(lost.get(), 10) for _ in range(2)]
    assert (type(cancelled), type(refused)) == (QueueMissing, QueueMissing)
    assert "the queue was deleted, or has moved" in str(cancelled)
    assert f"404 NOT_FOUND - no queue '{NAMES.work_queue}'" in str(refused)
    assert "the queue was deleted, or has moved" in caplog.text
    with pytest.raises(QueueMissing, match="has no queue bound"):
        await publisher.publish(NAMES.exchange, b"2", {}, None)
    await asyncio.to_thread(Topology(fresh.settings).declare, SPOOL)
    await publisher.publish(NAMES.exchange, b"3", {}, None)
    second = await asyncio.wait_for(found.get(), consuming.LONGEST_PAUSE + 10)
    assert (first.ack(), second.body, second.ack()) == (False, b"3", True)
    await consumer.close()
    await publisher.close()


async def test_a_link_that_was_given_up_is_closed_and_leaves_nothing_behind(settings: Any) -> None:
    faults: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    link = await Link.open(settings)
    link.fail(StoreUnavailable("it confirms nothing"))
    await asyncio.sleep(0.1)
    assert link.connection.is_closed, "it would send heartbeats"
    await link.close()
    assert faults == []


async def test_a_connection_that_is_lost_as_often_as_it_is_opened_is_opened_ever_more_rarely(
    settings: Any,
) -> None:
    opened: list[float] = []

    def lose() -> None:
        opened.append(time.monotonic())
        assert consumer.link is not None
        consumer.link.fail(StoreUnavailable("lost at once"))

    consumer = Consumer(settings, NAMES.work_queue, 5, on_message=lambda _: None, on_ready=lose)
    consumer.start()
    await asyncio.sleep(6)
    await consumer.close()
    assert 2 <= len(opened) < 9


async def test_a_tag_of_an_earlier_connection_is_never_sent(
    settings: Any, fresh: Any, proxy: Cuttable
) -> None:
    found: asyncio.Queue[Message] = asyncio.Queue()
    consumer = Consumer(
        through(fresh, proxy, "5s"), NAMES.work_queue, 5, on_message=found.put_nowait
    )
    consumer.start()
    publisher = Publisher(settings)
    for body in (b"1", b"2"):
        await publisher.publish(NAMES.exchange, body, {}, None)
    stale = [await asyncio.wait_for(found.get(), 10) for _ in range(2)]
    await proxy.cut()
    await proxy.mend()
    again = [await asyncio.wait_for(found.get(), 20) for _ in range(2)]
    assert [message.tag for message in again] == [message.tag for message in stale], (
        "the same numbers stand for other deliveries now"
    )
    assert [(message.ack(), message.requeue()) for message in stale] == [(False, False)] * 2
    await consumer.close()
    await publisher.close()
    with blocking_connection(settings) as connection:
        assert (
            connection.channel().queue_declare(NAMES.work_queue, passive=True).method.message_count
            == 2
        )


@pytest.mark.parametrize("before", [0, 1])
async def test_a_consumer_that_is_stopped_before_it_knows_its_tag_is_none_any_more(
    fresh: Any, settings: Any, proxy: Cuttable, before: int
) -> None:
    """Else the broker goes on delivering to somebody who settles nothing.

    `before`: connections that it consumed by, and lost.
    """
    told: list[str] = []
    late = asyncio.Event()

    class Slow(Consumer):
        async def subscribe(self, *arguments: Any) -> str:
            told.append(await super().subscribe(*arguments))
            if len(told) > before:
                late.set()
                await asyncio.Event().wait()  # the answer is on its way
            return told[-1]

    publisher = Publisher(settings)
    await publisher.publish(NAMES.exchange, b"1", {}, None)
    found: asyncio.Queue[Message] = asyncio.Queue()
    consumer = Slow(through(fresh, proxy, "5s"), NAMES.work_queue, 5, on_message=found.put_nowait)
    consumer.start()
    for _ in range(before):
        await asyncio.wait_for(found.get(), 20)
        await proxy.cut()
        await proxy.mend()
    await asyncio.wait_for(found.get(), 20)
    await asyncio.wait_for(late.wait(), 20)
    await asyncio.wait_for(consumer.stop(), 4)
    await publisher.publish(NAMES.exchange, b"2", {}, None)
    await until(lambda: waiting(settings) == 2)
    await consumer.close()
    await publisher.close()


def waiting(settings: Any) -> int:
    """Messages that nobody has."""
    with blocking_connection(settings) as connection:
        return int(
            connection.channel().queue_declare(NAMES.work_queue, passive=True).method.message_count
        )


async def test_a_connection_that_comes_about_when_nobody_waits_for_it_any_more_is_closed(
    fresh: Any, proxy: Cuttable
) -> None:
    proxy.hangs = True
    opening = asyncio.create_task(Link.open(through(fresh, proxy, "10s"), last_wait=0.05))
    await until(lambda: proxy.clients == 1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (proxy.clients, proxy.passed) == (1, 0)
    proxy.hangs = False
    await until(lambda: proxy.clients == 0)
    assert proxy.passed > 500, "it was opened, and then closed"


async def test_a_broker_in_alarm_is_waited_for_and_the_error_says_why(
    fresh: Any, settings: Any, proxy: Cuttable
) -> None:
    publisher = Publisher(through(fresh, proxy, "1s"))
    await publisher.publish(NAMES.exchange, b"1", {}, None)
    link = publisher._link
    assert link is not None
    proxy.say(blocked("low on memory"))
    await asyncio.sleep(0.3)
    passed = proxy.passed
    began = time.monotonic()
    results = await asyncio.gather(
        *(publisher.publish(NAMES.exchange, b"x" * 100_000, {}, None) for _ in range(20)),
        return_exceptions=True,
    )
    assert time.monotonic() - began >= 0.9, "it waits to its time-out"
    assert all(
        isinstance(result, StoreUnavailable)
        and "blocks publishers (low on memory); not confirmed within 1 s" in str(result)
        for result in results
    )
    assert proxy.passed - passed < 1000, "nothing piles up in buffers, to be delivered after all"
    waiting = asyncio.create_task(publisher.publish(NAMES.exchange, b"2", {}, None))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    proxy.say(unblocked())
    await asyncio.wait_for(waiting, 5)
    assert publisher._link is link, "the connection outlives the alarm"
    await publisher.close()


async def test_a_consumer_that_was_resumed_while_its_broker_froze_can_be_paused_again(
    settings: Any, fresh: Any, proxy: Cuttable
) -> None:
    consumer = Consumer(
        through(fresh, proxy, "1s"), NAMES.work_queue, 5, on_message=lambda _message: None
    )
    consumer.start()
    await until(lambda: has_consumers(settings, NAMES.work_queue))
    await consumer.pause()
    proxy.hangs = True
    await consumer.resume()
    proxy.hangs = False
    await until(lambda: has_consumers(settings, NAMES.work_queue))
    await consumer.pause()
    await until(lambda: not has_consumers(settings, NAMES.work_queue), 5)
    await consumer.close()


@pytest.mark.soak
async def test_a_consumer_whose_broker_froze_learns_it_by_the_heartbeats_and_comes_back(
    fresh: Any, proxy: Cuttable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linking, "parameters", lambda settings: parameters(settings, heartbeat=1))
    lost: asyncio.Queue[Exception] = asyncio.Queue()
    found: asyncio.Queue[Message] = asyncio.Queue()
    consumer = Consumer(
        through(fresh, proxy, "5s"),
        NAMES.work_queue,
        5,
        on_message=found.put_nowait,
        on_lost=lambda _link, why: lost.put_nowait(why),
    )
    consumer.start()
    publisher = Publisher(fresh.settings.rabbitmq)
    await publisher.publish(NAMES.exchange, b"1", {}, None)
    first = await asyncio.wait_for(found.get(), 10)
    proxy.hangs = True
    assert "heartbeats" in str(await asyncio.wait_for(lost.get(), 30))
    assert not first.ack()
    await proxy.cut()
    proxy.hangs = False
    await proxy.mend()
    again = await asyncio.wait_for(found.get(), 30)
    assert (again.body, again.redelivered, again.ack()) == (b"1", True, True)
    await consumer.close()
    await publisher.close()
