"""What a broker does to a worker: delivery limits, queues that go, alarms.

Good mail is never a dead letter for it, and nobody waits without a word.
"""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from contextlib import aclosing
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import StreamLostError

from mailslice.codec import message
from mailslice.model.errors import QueueMissing, StoreUnavailable
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import open_worker
from mailslice.worker.dequeue.park import Park
from mailslice.worker.enqueue.delayed_mails import DelayedRows
from mailslice.worker.io.context import Tuning
from mailslice.worker.outcome import Disposition
from tests.services.worker.conftest import at, back_at_once, mail, until
from tests.services.worker.cuttable import Cuttable, blocked, unblocked
from tests.services.worker.test_faults import CONTENT, next_of, through

pytestmark = pytest.mark.waits

LIMIT = 2


async def held(deliveries: Any, seconds: float) -> None:
    """Lets the worker take what there is, and hold it."""
    with pytest.raises(TimeoutError):
        await next_of(deliveries, seconds)


async def test_an_outage_never_pushes_good_mail_past_the_delivery_limit_of_a_quorum_queue(
    fresh: Any,
) -> None:
    url = urlsplit(fresh.env["MAILSLICE_S3_ENDPOINT"])
    async with Cuttable(url.hostname or "", url.port or 0) as s3:
        limited = fresh.but(
            MAILSLICE_QUEUE_QUORUM="true",
            MAILSLICE_QUEUE_QUORUM_GROUP_SIZE="1",
            MAILSLICE_QUEUE_DELIVERY_LIMIT=str(LIMIT),
        )
        proxied = limited.but(MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{s3.port}").settings
        for spool in at(limited.settings):
            async with open_worker(proxied, spool.queue) as worker:
                items = [await worker.enqueue(mail(f"m-{number}"), CONTENT) for number in range(3)]
                await s3.cut()
                for _ in range(LIMIT + 2):  # each end of a consumer counts for what it held
                    async with aclosing(worker.deliveries(8)) as deliveries:
                        await held(deliveries, 0.8)
                await s3.mend()
                found = {}
                async with back_at_once(spool), aclosing(worker.deliveries(8)) as deliveries:
                    for _ in items:
                        delivery = await next_of(deliveries, 100)  # it was parked
                        found[delivery.item.enqueue_id] = delivery.content
                        await delivery.complete()
                    await held(deliveries, 1)
            assert found == {item.enqueue_id: CONTENT for item in items}
            assert spool.ready(spool.names.dead_letter_queue) == 0


async def test_a_mail_in_a_handler_is_not_dead_lettered_when_its_connection_goes_again_and_again(
    fresh: Any,
) -> None:
    tuning = Tuning(lease_check=3600.0)  # the return itself is the occasion
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
    async with Cuttable(url.hostname or "", url.port or 0) as rabbit:
        limited = fresh.but(
            MAILSLICE_QUEUE_QUORUM="true",
            MAILSLICE_QUEUE_QUORUM_GROUP_SIZE="1",
            MAILSLICE_QUEUE_DELIVERY_LIMIT=str(LIMIT),
        )
        for spool in at(limited.settings):
            async with (
                open_worker(
                    through(limited, "rabbitmq", rabbit.port), spool.queue, tuning=tuning
                ) as worker,
                aclosing(worker.deliveries(8)) as deliveries,
            ):
                await worker.enqueue(mail(), CONTENT)
                in_hand = await next_of(deliveries)
                for _ in range(LIMIT + 2):
                    await rabbit.cut()
                    await rabbit.mend()
                    await held(deliveries, 0.8)
                    await until(lambda lease=in_hand.lease: lease.is_out, 20)
                await in_hand.complete()
                await held(deliveries, 1)
            assert spool.ready(spool.names.dead_letter_queue) == 0
            assert spool.ready(spool.names.work_queue) == 0
            assert spool.live() == []


async def test_a_delayed_mail_comes_on_time_though_the_broker_goes_at_a_goodbye(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = BlockingConnection.close

    def cut(connection: BlockingConnection) -> None:
        close(connection)
        raise StreamLostError("Transport indicated EOF")

    monkeypatch.setattr(BlockingConnection, "close", cut)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=1))
        delivery = await next_of(deliveries, 20)
        assert delivery.item == item
        await delivery.complete()


async def test_a_poisonous_mail_still_ends_as_a_dead_letter_at_the_limit(fresh: Any) -> None:
    limited = fresh.but(
        MAILSLICE_QUEUE_QUORUM="true",
        MAILSLICE_QUEUE_QUORUM_GROUP_SIZE="1",
        MAILSLICE_QUEUE_DELIVERY_LIMIT=str(LIMIT),
    )
    for spool in at(limited.settings):
        async with open_worker(spool.settings, spool.queue) as worker:
            await worker.enqueue(mail(), CONTENT)
            for _ in range(LIMIT + 1):  # with all stores up, whoever takes it goes without a word
                deliveries = worker.deliveries(8)
                await next_of(deliveries)
                await deliveries.disconnect()
                worker.state.in_hand.clear()
        async with asyncio.timeout(10):
            dead_letters = spool.names.dead_letter_queue
            while not spool.ready(dead_letters):  # noqa: ASYNC110 - the broker's own pace
                await asyncio.sleep(0.1)


async def test_levels_and_hop_that_somebody_deleted_are_declared_again_by_the_next_delay(
    spool: Any,
) -> None:
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        item = await worker.enqueue(mail("now"), CONTENT)
        delivery = await next_of(deliveries)
        await worker.enqueue(mail("warm"), CONTENT, delay=timedelta(seconds=1))
        with blocking_connection(spool.settings.rabbitmq) as connection:
            connection.channel().queue_delete(spool.names.delay_queue(1))
        with pytest.raises(
            StoreUnavailable, match=f"there is no queue '{spool.names.delay_queue(1)}'"
        ):
            await delivery.retry(after=timedelta(seconds=1.5))
        await delivery.retry(after=timedelta(seconds=1.5))
        again = await next_of(deliveries, 40)
        with blocking_connection(spool.settings.rabbitmq) as connection:
            connection.channel().queue_delete(
                spool.names.hop_queue
            )  # its consumer is cancelled, and declares it anew
        await asyncio.sleep(2)
        await again.retry(after=timedelta(seconds=1.5))
        assert (await next_of(deliveries, 40)).item.enqueue_id == item.enqueue_id


async def test_a_level_that_is_gone_when_a_copy_goes_round_is_declared_for_it(spool: Any) -> None:
    level = spool.names.delay_queue(1800)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(minutes=31))
        token = str(spool.stores.own.delayed_mails.get(spool.queue, item.enqueue_id).token)
        with blocking_connection(spool.settings.rabbitmq) as connection:
            connection.channel().queue_delete(level)
        spool.publish(
            "",
            message.encode(item),
            {"x-mailslice-token": token},
            routing_key=spool.names.hop_queue,
        )
        await held(deliveries, 0.2)
        await until(lambda: waiting_in(spool, level) == 1)


def waiting_in(spool: Any, queue: str) -> int | None:
    try:
        return int(spool.ready(queue))
    except QueueMissing:
        return None


async def test_an_outage_never_pushes_a_delayed_mail_past_a_delivery_limit(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the hop queue: RabbitMQ 4 gives every quorum queue one, and a policy may.

    What goes past it there is dropped, for there are no dead letters.
    """
    refused: list[object] = []
    parked: list[object] = []
    putting, closing = Park.put, DelayedRows.close

    async def away(*given: object) -> None:
        refused.append(given)
        raise StoreUnavailable("Cassandra does not answer")

    async def counted(*given: Any, **more: Any) -> bool:
        parked.append(given)
        return await putting(*given, **more)

    async def failing(*given: Any) -> None:
        await (away if len(refused) < 2 else closing)(*given)

    monkeypatch.setattr(Park, "put", counted)

    with blocking_connection(spool.settings.rabbitmq) as connection:
        connection.channel().queue_declare(
            spool.names.hop_queue,
            durable=True,
            arguments={"x-queue-type": "quorum", "x-delivery-limit": LIMIT},
        )
    async with open_worker(
        spool.settings, spool.queue, tuning=Tuning(held_delay_level=1)
    ) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=0.2))
        with monkeypatch.context() as patch:
            patch.setattr(DelayedRows, "load", away)
            for _ in range(LIMIT + 2):  # each end of a consumer counts for what it held
                seen = len(refused)
                async with aclosing(worker.deliveries(8)) as deliveries:
                    taking = asyncio.create_task(anext(deliveries))
                    await until(lambda: len(refused) >= seen + 2)  # noqa: B023 - awaited here
                    taking.cancel()
        assert parked
        refused.clear()
        parked.clear()
        monkeypatch.setattr(DelayedRows, "close", failing)
        async with aclosing(worker.deliveries(8)) as deliveries:
            delivery = await next_of(deliveries, 40)
            assert (delivery.item, delivery.content) == (item, CONTENT)
            await until(
                lambda: spool.stores.own.delayed_mails.get(spool.queue, item.enqueue_id).published
            )
            await delivery.complete()
            await held(deliveries, 0.5)
    assert len(refused) == 2
    assert not parked, "another worker would publish the mail once more"
    assert spool.wait_for_ready(spool.names.hop_queue, 0) == 0


async def test_workers_that_end_never_push_a_copy_that_waits_past_a_delivery_limit(
    spool: Any,
) -> None:
    with blocking_connection(spool.settings.rabbitmq) as connection:
        connection.channel().queue_declare(
            spool.names.hop_queue,
            durable=True,
            arguments={"x-queue-type": "quorum", "x-delivery-limit": LIMIT},
        )
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=20))
        async with aclosing(worker.deliveries(8)) as deliveries:
            taking = asyncio.create_task(anext(deliveries))
            await until(lambda: deliveries.has_expired_copies)  # after the level of 5 s
            taking.cancel()
        for _ in range(LIMIT + 1):
            async with aclosing(worker.deliveries(8)) as deliveries:
                await held(deliveries, 1)
        async with aclosing(worker.deliveries(8)) as deliveries:
            delivery = await next_of(deliveries, 60)
            assert delivery.item == item
            await delivery.complete()
    assert spool.live() == []


@pytest.mark.parametrize("gone", [False, True])
async def test_a_reject_keeps_the_mail_although_the_queue_was_made_anew_without_dead_letters(
    spool: Any, *, gone: bool
) -> None:
    """As James 3.5 declares it: RabbitMQ drops what is rejected there.

    `gone`: the dead letter exchange and queue were lost with it, and nobody made them.
    """
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        await worker.enqueue(mail("before"), CONTENT)
        await (await next_of(deliveries)).complete()
        with blocking_connection(spool.settings.rabbitmq) as connection:
            channel = connection.channel()
            if gone:
                channel.exchange_delete(spool.names.dead_letter_exchange)
                channel.queue_delete(spool.names.dead_letter_queue)
            channel.queue_delete(spool.names.work_queue)
            channel.queue_declare(spool.names.work_queue, durable=True)
            channel.queue_bind(spool.names.work_queue, spool.names.exchange, routing_key="")
        item = await worker.enqueue(mail("after"), CONTENT)
        await (await next_of(deliveries, 40)).reject("nobody wants it")
        properties, body = await asyncio.to_thread(spool.take, spool.names.dead_letter_queue)
    assert message.decode(body).enqueue_id == item.enqueue_id
    assert properties.headers["x-mailslice-reason"] == "nobody wants it"


async def test_a_reject_into_a_dead_letter_queue_that_is_full_frees_its_handler(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.RETRY_SECONDS", 1.0)
    dead_letters, arguments = spool.names.dead_letter_queue, {"x-max-length": 1}
    with blocking_connection(spool.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_delete(dead_letters)
        arguments |= {"x-overflow": "reject-publish"}
        channel.queue_declare(dead_letters, durable=True, arguments=arguments)
        channel.queue_bind(dead_letters, spool.names.dead_letter_exchange, routing_key="")
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        for name in ("first", "second"):
            await worker.enqueue(mail(name), CONTENT)
        await (await next_of(deliveries)).reject("nobody wants it")
        second = await next_of(deliveries)
        with pytest.raises(StoreUnavailable):
            await second.reject("nobody wants it")
        await asyncio.sleep(1.5)
        assert await second.reject("nobody wants it") is Disposition.RETRIED
        assert not worker.state.in_hand
        assert await worker.flush() == 1, "it would come in a minute"
        again = await next_of(deliveries, 75)
        assert (again.item, again.failures) == (second.item, 0)
        assert spool.take(dead_letters) is not None
        assert await again.reject("nobody wants it") is Disposition.REJECTED
        _, body = await asyncio.to_thread(spool.take, dead_letters)
        assert message.decode(body) == second.item
        await held(deliveries, 2)
    assert spool.ready(spool.names.work_queue) == spool.ready(dead_letters) == 0


async def test_what_comes_after_the_end_of_deliveries_is_let_go_with_their_connection(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard() -> None:
        """The broker does not hear of it."""

    async with open_worker(spool.settings, spool.queue) as worker:
        ended = worker.deliveries(4)
        await worker.enqueue(mail("before"), CONTENT)
        await (await next_of(ended)).complete()
        with monkeypatch.context() as patch:
            patch.setattr(ended._consumer, "stop", unheard)
            await ended.aclose()
        item = await worker.enqueue(mail("after"), CONTENT)
        await until(lambda: item.enqueue_id in worker.state.in_hand)
        await ended.disconnect()
        assert not worker.state.in_hand
        async with aclosing(worker.deliveries(4)) as deliveries:
            assert (await next_of(deliveries)).item == item


async def test_deliveries_that_are_over_are_forgotten(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        over = []
        for _ in range(2):
            await worker.enqueue(mail(), CONTENT)
            deliveries = worker.deliveries(4)
            await (await next_of(deliveries)).complete()
            await deliveries.disconnect()
            over.append(weakref.ref(deliveries))
            del deliveries
        await until(lambda: gc.collect() >= 0 and not any(each() for each in over))


@pytest.mark.soak
async def test_an_enqueue_into_a_broker_in_alarm_waits_says_why_and_leaves_nothing(
    fresh: Any,
) -> None:
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
    async with Cuttable(url.hostname or "", url.port or 0) as rabbit:
        for spool in at(fresh.settings):
            async with open_worker(through(fresh, "rabbitmq", rabbit.port), spool.queue) as worker:
                await worker.enqueue(mail("before"), CONTENT)
                rabbit.say(blocked("low on memory"))
                await asyncio.sleep(0.3)
                began = time.monotonic()
                with pytest.raises(
                    StoreUnavailable,
                    match=rf"127\.0\.0\.1:{rabbit.port} blocks publishers "
                    r"\(low on memory\); not confirmed within 3 s",
                ):
                    await worker.enqueue(mail("during"), CONTENT)
                assert time.monotonic() - began >= 2.9
                rabbit.say(unblocked())
                await worker.enqueue(mail("after"), CONTENT)
            assert sorted(row.item.mail.name for row in spool.live()) == ["after", "before"]
            assert spool.wait_for_ready(spool.names.work_queue, 2) == 2
            assert len(spool.blob_keys()) == 4
