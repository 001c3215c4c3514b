"""An older message of a mail, handed out again after a retry has put a later one in its place: what
is durable decides, in any process.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.codec import message
from mailslice.model.errors import StoreUnavailable
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker import open_worker
from mailslice.worker.dequeue.expired_delay_consumer import ExpiredDelayConsumer
from mailslice.worker.io.message_copy import MessageCopy
from tests.services.worker.conftest import Place4Queue, mail, until
from tests.services.worker.test_faults import CONTENT, next_of

pytestmark = pytest.mark.waits


async def test_a_pause_is_kept_by_another_process_too(
    spool: Place4Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            delivery = await next_of(deliveries)
            with monkeypatch.context() as broken:
                broken.setattr(Message, "ack", lambda _: False)  # it never gets to the broker
                await delivery.retry(after=timedelta(seconds=20))
            await deliveries.disconnect()
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        with pytest.raises(TimeoutError):
            await next_of(deliveries, 3)
        later = await next_of(deliveries, 60)
        assert (later.item, later.failures) == (item, 1)
        await later.complete()
        with pytest.raises(TimeoutError):
            await next_of(deliveries, 3)
    assert spool.live() == []


async def test_two_copies_of_a_mail_in_two_workers_publish_it_once(spool: Place4Queue) -> None:
    """Its worker lost RabbitMQ between copy and acknowledgement: another one publishes a copy."""
    async with AsyncExitStack() as stack:
        opening = (open_worker(spool.settings, spool.queue) for _ in range(3))
        workers = [await stack.enter_async_context(one) for one in opening]
        delays, due = workers[0].state.delays, datetime.now(UTC) + timedelta(seconds=8)
        for number in range(10):
            item = await workers[0].enqueue(mail(f"m-{number}"), CONTENT)
            taken = await asyncio.to_thread(spool.take, spool.names.work_queue)
            assert taken is not None
            properties, body = taken
            copy = MessageCopy(body, properties.headers, None)
            failed = copy.with_headers({"x-mailslice-failures": 1})
            await delays.schedule(item.enqueue_id, failed, due)
            older: Any = copy
            assert await workers[1].state.delays.defer_to_later_attempt(item.enqueue_id, older)
        hops = [ExpiredDelayConsumer(one.context, one.state.delays) for one in workers]
        for hop in hops:
            hop.start()
        await asyncio.sleep((due - datetime.now(UTC)).total_seconds() + 4)
        for hop in hops:
            await hop.close()
    assert spool.ready(spool.names.hop_queue) == 0
    assert spool.ready(spool.names.work_queue) == 10


async def test_a_row_whose_copy_never_came_to_be_loses_no_mail(
    spool: Place4Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between row and copy: the message that is handed out again is all there is."""
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            delivery = await next_of(deliveries)

            async def crashed(*_: object) -> None:
                raise RuntimeError("killed")

            with monkeypatch.context() as broken:
                broken.setattr(worker.state.delays, "put", crashed)
                with pytest.raises(RuntimeError):
                    await delivery.retry(after=timedelta(seconds=4))
            await deliveries.disconnect()
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        later = await next_of(deliveries, 40)
        assert (later.item, later.failures) == (item, 1)
        await later.complete()
    await until(lambda: spool.live() == [])


async def test_who_was_served_is_not_served_by_another_process(
    spool: Place4Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(recipients=("a@b.example", "c@b.example")), CONTENT)
        async with aclosing(worker.deliveries(1)) as deliveries:
            delivery = await next_of(deliveries)
            with monkeypatch.context() as broken:
                broken.setattr(Message, "ack", lambda _: False)
                await delivery.retry(["c@b.example"])
            await deliveries.disconnect()
    assert spool.wait_for_ready(spool.names.work_queue, 2) == 2
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(1)) as deliveries,
    ):
        rest = await next_of(deliveries)
        assert rest.item.mail.recipients == ("c@b.example",)
        await rest.reject("no such user")
        taken = spool.take(spool.names.dead_letter_queue)
        assert taken is not None
        assert message.decode(taken[1]).mail.recipients == ("c@b.example",)


async def test_a_retry_that_is_repeated_leaves_the_copy_by_which_another_worker_took_it_over(
    spool: Place4Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has lost RabbitMQ alone, repeats its retry in vain, and is killed."""
    async with open_worker(spool.settings, spool.queue) as lost:
        item = await lost.enqueue(mail(), CONTENT)
        async with aclosing(lost.deliveries(4)) as deliveries:
            delivery = await next_of(deliveries)

            async def away(*_: object) -> None:
                raise StoreUnavailable("RabbitMQ does not answer")

            monkeypatch.setattr(lost.state.delays, "put", away)
            with pytest.raises(StoreUnavailable):
                await delivery.retry(after=timedelta(seconds=10))
            await deliveries.disconnect()
            async with (
                open_worker(spool.settings, spool.queue) as worker,
                aclosing(worker.deliveries(4)) as others,
            ):
                with pytest.raises(TimeoutError):
                    await next_of(others, 3)  # it publishes the row's copy, and acknowledges
                with pytest.raises(StoreUnavailable):
                    await delivery.retry(after=timedelta(seconds=10))
                later = await next_of(others, 60)
                assert (later.item, later.failures) == (item, 1)
                await later.complete()
    assert spool.live() == []
