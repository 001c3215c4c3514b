"""Stores that are down at start, that die in the middle, and that come back: nothing lost, nothing
sent twice, an error that names the address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from mailslice.admin import queues
from mailslice.codec import message
from mailslice.model.errors import (
    BadSetting,
    MailsliceError,
    StoreUnavailable,
    Unconfirmed,
    UnknownQueue,
)
from mailslice.model.mail import QueueName
from mailslice.stores import open_stores
from mailslice.worker import Deliveries, Delivery, consume, open_worker
from mailslice.worker.dequeue.expired_delay_consumer import ExpiredDelayConsumer
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.content_loader import Loader
from mailslice.worker.process import handler_pool as handling
from tests.services.worker.conftest import at, mail, until
from tests.services.worker.cuttable import Cuttable

CONTENT = b"A: b\r\n\r\nc"


async def next_of(deliveries: Deliveries, seconds: float = 25) -> Delivery:
    return await asyncio.wait_for(anext(deliveries), seconds)


def through(fresh: Any, store: str, port: int) -> Any:
    """The settings with one store behind the proxy."""
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
    change = {
        "cassandra": {
            "MAILSLICE_CASSANDRA_CONTACT_POINTS": "127.0.0.1",
            "MAILSLICE_CASSANDRA_PORT": str(port),
            "MAILSLICE_CASSANDRA_TIMEOUT": "2s",
        },
        "rabbitmq": {
            "MAILSLICE_RABBITMQ_URL": url._replace(
                netloc=f"{url.username}:{url.password}@127.0.0.1:{port}"
            ).geturl(),
            "MAILSLICE_RABBITMQ_TIMEOUT": "3s",
        },
        "s3": {"MAILSLICE_S3_ENDPOINT": f"http://127.0.0.1:{port}", "MAILSLICE_S3_TIMEOUT": "3s"},
    }
    return fresh.but(**change[store]).settings


@pytest.fixture
async def rabbit(fresh: Any) -> AsyncIterator[Cuttable]:
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
    async with Cuttable(url.hostname or "", url.port or 0) as proxy:
        yield proxy


@pytest.fixture
async def s3(fresh: Any) -> AsyncIterator[Cuttable]:
    url = urlsplit(fresh.env["MAILSLICE_S3_ENDPOINT"])
    async with Cuttable(url.hostname or "", url.port or 0) as proxy:
        yield proxy


async def opening(settings: Any, name: str = "spool") -> MailsliceError:
    began = time.monotonic()
    try:
        async with open_worker(settings, QueueName(name)):
            raise AssertionError("opened")
    except MailsliceError as error:
        assert time.monotonic() - began < 45, "15 s, and what a busy machine adds"
        return error


@pytest.mark.parametrize("store", ["cassandra", "rabbitmq", "s3"])
async def test_a_store_that_is_down_at_start_is_named(fresh: Any, store: str) -> None:
    for _ in at(fresh.settings):
        error = await opening(through(fresh, store, 1))
    assert isinstance(error, StoreUnavailable)
    assert "127.0.0.1:1" in str(error)
    assert "\n" not in str(error)


async def test_a_wrong_password_is_a_bad_setting_without_the_password(fresh: Any) -> None:
    for _ in at(fresh.settings):
        url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
        wrong = url._replace(netloc=f"{url.username}:sesame@{url.hostname}:{url.port}").geturl()
        rabbit = await opening(fresh.but(MAILSLICE_RABBITMQ_URL=wrong).settings)
        s3 = await opening(fresh.but(MAILSLICE_S3_SECRET_KEY="sesame").settings)
    assert isinstance(rabbit, BadSetting)
    assert isinstance(s3, BadSetting)
    assert "MAILSLICE_RABBITMQ_URL" in str(rabbit)
    assert "MAILSLICE_S3_SECRET_KEY" in str(s3)
    assert "sesame" not in f"{rabbit}{s3}"


async def test_an_unknown_queue_is_refused_with_the_known_ones(spool: Any) -> None:
    error = await opening(spool.settings, "spoool")
    assert isinstance(error, UnknownQueue)
    assert "spool" in str(error)


async def test_an_enqueue_without_a_broker_fails_with_the_address_and_is_taken_back(
    fresh: Any, rabbit: Cuttable
) -> None:
    for spool in at(fresh.settings):
        async with open_worker(through(fresh, "rabbitmq", rabbit.port), spool.queue) as worker:
            await worker.enqueue(mail("before"), CONTENT)
            await rabbit.cut()
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{rabbit.port}"):
                await worker.enqueue(mail("during"), CONTENT)
            assert [row.item.mail.name for row in spool.live()] == ["before"]
            assert len(spool.blob_keys()) == 2
            await rabbit.mend()
            await worker.enqueue(mail("after"), CONTENT)
        assert sorted(row.item.mail.name for row in spool.live()) == ["after", "before"]
        assert spool.wait_for_ready(spool.names.work_queue, 2) == 2


async def test_a_delayed_enqueue_without_a_broker_leaves_no_delay(
    fresh: Any, rabbit: Cuttable
) -> None:
    for spool in at(fresh.settings):
        async with open_worker(through(fresh, "rabbitmq", rabbit.port), spool.queue) as worker:
            hour = timedelta(hours=1)
            before = await worker.enqueue(mail("before"), CONTENT, delay=hour)
            await rabbit.cut()
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{rabbit.port}"):
                await worker.enqueue(mail("during"), CONTENT, delay=hour)
            rows = await asyncio.to_thread(list, spool.stores.own.delayed_mails.rows(spool.queue))
            assert len(rows) == 2
            assert [row.enqueue_id for row in rows if not row.published] == [before.enqueue_id]


async def test_an_enqueue_whose_confirm_never_comes_is_taken_back_and_its_message_is_dropped(
    fresh: Any, rabbit: Cuttable
) -> None:
    for spool in at(fresh.settings):
        async with open_worker(through(fresh, "rabbitmq", rabbit.port), spool.queue) as worker:
            await worker.enqueue(mail("before"), CONTENT)
            rabbit.hangs = True
            with pytest.raises(
                Unconfirmed,
                match=r"did not confirm a message within 3 s; the mail may be delivered",
            ):
                await worker.enqueue(mail("hanging"), CONTENT)
            rabbit.hangs = False  # and now it is delivered, long after the error
            assert await asyncio.to_thread(spool.wait_for_ready, spool.names.work_queue, 2) == 2
        async with (
            open_worker(spool.settings, spool.queue) as worker,
            aclosing(worker.deliveries(4)) as deliveries,
        ):
            delivery = await next_of(deliveries)
            assert delivery.item.mail.name == "before"
            await delivery.complete()
            with pytest.raises(TimeoutError):
                await next_of(deliveries, 1)
        assert spool.ready(spool.names.dead_letter_queue) == 0


async def test_an_enqueue_without_s3_fails_with_the_address_and_nothing_is_published(
    fresh: Any, s3: Cuttable
) -> None:
    for spool in at(fresh.settings):
        async with open_worker(through(fresh, "s3", s3.port), spool.queue) as worker:
            await s3.cut()
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{s3.port}"):
                await worker.enqueue(mail(), CONTENT)
        assert spool.ready(spool.names.work_queue) == 0
        assert spool.live() == []


async def test_a_cancelled_enqueue_is_taken_back(fresh: Any, rabbit: Cuttable) -> None:
    for spool in at(fresh.settings):
        async with open_worker(through(fresh, "rabbitmq", rabbit.port), spool.queue) as worker:
            await worker.enqueue(mail("before"), CONTENT)
            rabbit.hangs = True
            task = asyncio.create_task(worker.enqueue(mail("cancelled"), CONTENT))
            await asyncio.sleep(0.7)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            rabbit.hangs = False
        assert [row.item.mail.name for row in spool.live()] == ["before"]


async def test_the_consumer_reconnects_after_a_cut_and_hands_nothing_out_twice_at_once(
    fresh: Any, rabbit: Cuttable
) -> None:
    for spool in at(fresh.settings):
        async with open_worker(through(fresh, "rabbitmq", rabbit.port), spool.queue) as worker:
            items = [await worker.enqueue(mail(f"m-{number}"), CONTENT) for number in range(6)]
            async with aclosing(worker.deliveries(8)) as deliveries:
                in_hand = await next_of(deliveries)
                await rabbit.cut()
                await asyncio.sleep(1)
                await rabbit.mend()
                others = [await next_of(deliveries) for _ in range(5)]
                assert {each.item.enqueue_id for each in (in_hand, *others)} == {
                    item.enqueue_id for item in items
                }
                await in_hand.complete()  # with a tag of the connection that is gone
                for other in others:
                    await other.complete()
                with pytest.raises(TimeoutError):
                    await next_of(deliveries, 1.5)
        assert spool.marks() == {item.enqueue_id for item in items}
        assert spool.ready(spool.names.work_queue) == 0


async def test_a_mail_waits_in_place_while_s3_is_down_and_is_delivered_when_it_is_back(
    fresh: Any, s3: Cuttable
) -> None:
    for spool in at(fresh.settings):
        async with open_worker(through(fresh, "s3", s3.port), spool.queue) as worker:
            item = await worker.enqueue(mail(), CONTENT)
            await s3.cut()
            async with aclosing(worker.deliveries(4)) as deliveries:
                with pytest.raises(TimeoutError):
                    await next_of(deliveries, 3)
                assert deliveries.idle_seconds == 0
                await s3.mend()
                delivery = await next_of(deliveries)
                assert delivery.item == item
                assert not delivery.redelivered  # it was held, not requeued
                await delivery.complete()
        assert spool.ready(spool.names.dead_letter_queue) == 0
        assert spool.ready(spool.names.work_queue) == 0


@pytest.mark.parametrize("store", ["rabbitmq", "s3"])
async def test_deliveries_give_up_with_the_address_when_told_to(
    fresh: Any, rabbit: Cuttable, s3: Cuttable, store: str
) -> None:
    proxy = {"rabbitmq": rabbit, "s3": s3}[store]
    for spool in at(fresh.settings):
        async with (
            open_worker(through(fresh, store, proxy.port), spool.queue) as worker,
            aclosing(worker.deliveries(4, give_up_after=timedelta(seconds=2))) as deliveries,
        ):
            first = await worker.enqueue(mail("first"), CONTENT)
            assert (await next_of(deliveries)).item == first
            await proxy.cut()
            spool.publish(spool.names.exchange, message.encode(replace(first, enqueue_id=uuid4())))
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{proxy.port}"):
                await next_of(deliveries)
            assert time.monotonic() - began < 45


async def test_a_check_that_fails_after_the_content_was_loaded_keeps_no_part_of_the_budget(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(1)) as deliveries:
            await (
                await next_of(deliveries)
            ).requeue()  # it may be a second copy now, which is checked again once it is loaded
            asked = iter(
                [False, StoreUnavailable("Cassandra at c:9042 does not answer"), False, False]
            )

            async def is_marked(_: object) -> bool:
                answer = next(asked)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            monkeypatch.setattr(worker.context.checks, "is_marked", is_marked)
            delivery = await next_of(deliveries)
            monkeypatch.undo()
            await delivery.complete()
        everything = worker.context.loader.budget.try_acquire(
            worker.context.settings.worker.memory_budget_mib << 20
        )
        assert everything is not None


async def test_a_mail_that_is_settled_twice_at_once_is_acknowledged_once(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(3):
            await worker.enqueue(mail(f"m-{number}"), CONTENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            first, second, third = [await next_of(deliveries) for _ in range(3)]
            await asyncio.gather(
                first.complete(),
                first.complete(),
                first.retry(),
                second.complete(),
                second.complete(),
            )
            await asyncio.sleep(0.3)  # for a broker that closes the channel
            assert deliveries.connected
            await third.complete()
            with pytest.raises(TimeoutError):
                await next_of(deliveries, 1)


async def test_two_workers_and_a_completion_between_share_the_mails(spool: Any) -> None:
    async with (
        open_worker(spool.settings, spool.queue) as one,
        open_worker(spool.settings, spool.queue) as two,
    ):
        items = await asyncio.gather(
            *(one.enqueue(mail(f"m-{number}"), CONTENT) for number in range(30))
        )

        both = asyncio.Barrier(2)

        async def work(worker: Any) -> list[Any]:
            done = []
            async with aclosing(worker.deliveries(4)) as deliveries:
                delivery = await next_of(deliveries)
                await asyncio.wait_for(both.wait(), 25)
                while True:
                    await delivery.complete()
                    done.append(delivery.item.enqueue_id)
                    try:
                        delivery = await next_of(deliveries, 2)
                    except TimeoutError:
                        return done

        first, second = await asyncio.gather(work(one), work(two))
    assert sorted(first + second) == sorted(item.enqueue_id for item in items)


async def test_a_completion_while_cassandra_is_down_can_be_asked_for_again(fresh: Any) -> None:
    async with Cuttable("127.0.0.1", int(fresh.env["MAILSLICE_CASSANDRA_PORT"])) as cassandra:
        for spool in at(fresh.settings):
            async with open_worker(
                through(fresh, "cassandra", cassandra.port), spool.queue
            ) as worker:
                item = await worker.enqueue(mail(), CONTENT)
                async with aclosing(worker.deliveries(4)) as deliveries:
                    delivery = await next_of(deliveries)
                    await cassandra.cut()
                    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{cassandra.port}"):
                        await delivery.complete()
                    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{cassandra.port}"):
                        await worker.enqueue(mail("during"), CONTENT)
                    await cassandra.mend()
                    async with asyncio.timeout(30):
                        while item.enqueue_id not in spool.marks():
                            try:
                                await delivery.complete()
                            except StoreUnavailable:
                                await asyncio.sleep(0.5)
            assert [row.item.mail.name for row in spool.live()] == []


async def test_an_outage_of_cassandra_leaves_no_message_and_no_live_row_of_what_failed_in_it(
    fresh: Any,
) -> None:
    """Cassandra hangs for 30 s: inserts time out, and are applied when it goes on.

    Their callers were told long before.
    """
    async with Cuttable("127.0.0.1", int(fresh.env["MAILSLICE_CASSANDRA_PORT"])) as cassandra:
        for spool in at(fresh.settings):
            settings = through(fresh, "cassandra", cassandra.port)
            async with open_worker(settings, spool.queue) as worker:
                await worker.enqueue(mail("before"), CONTENT)
                cassandra.hangs = True
                for name in ("under way", "tried again"):
                    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{cassandra.port}"):
                        await worker.enqueue(mail(name), CONTENT)
                assert worker.context.statistics.undoing == 2
                await asyncio.sleep(30)
                cassandra.hangs = False
                await until(lambda: worker.context.statistics.undoing == 0, 60)
                async with asyncio.timeout(60):
                    while True:
                        try:
                            await worker.enqueue(mail("after"), CONTENT)
                        except StoreUnavailable:
                            await asyncio.sleep(0.5)
                        else:
                            break
                await until(lambda: worker.context.statistics.undoing == 0, 60)
                assert worker.context.statistics.abandoned == 0
            assert "under way" in {row.item.mail.name for row in spool.rows()}, "it was applied"
            assert sorted(row.item.mail.name for row in spool.live()) == ["after", "before"]
            assert len(spool.blob_keys()) == 4
            names = []
            while (taken := spool.take(spool.names.work_queue, 0)) is not None:
                names.append(message.decode(taken[1]).mail.name)
            assert names == ["before", "after"]


async def test_a_stop_while_cassandra_is_away_ends_and_what_was_handled_goes_back(
    fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "DRAIN_SECONDS", 1.0)
    stop = asyncio.Event()
    async with Cuttable("127.0.0.1", int(fresh.env["MAILSLICE_CASSANDRA_PORT"])) as cassandra:

        async def handle(_mail: Any, _content: bytes) -> None:
            await cassandra.cut()
            stop.set()

        for spool in at(fresh.settings):
            async with open_worker(
                through(fresh, "cassandra", cassandra.port), spool.queue
            ) as worker:
                await worker.enqueue(mail(), CONTENT)
                done = await asyncio.wait_for(consume(worker, handle, concurrency=1, stop=stop), 60)
                assert done.total == 0
                assert await asyncio.to_thread(spool.wait_for_ready, spool.names.work_queue, 1) == 1


async def test_nothing_is_handed_out_any_more_while_the_deliveries_are_closed(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go_on, close = asyncio.Event(), asyncio.Event(), ExpiredDelayConsumer.close

    async def slowly(self: ExpiredDelayConsumer) -> None:
        closing.set()
        await go_on.wait()
        await close(self)

    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(3):
            await worker.enqueue(mail(f"m-{number}"), CONTENT)
        deliveries = worker.deliveries(4)
        first = await next_of(deliveries)
        await until(lambda: len(worker.state.in_hand) == 3)  # the others are ready
        monkeypatch.setattr(ExpiredDelayConsumer, "close", slowly)
        ending = asyncio.create_task(deliveries.aclose())
        await asyncio.wait_for(closing.wait(), 20)
        assert await anext(deliveries, None) is None
        # It goes on: else what is ready here, and every later copy of it, would wait for good.
        ending.cancel()
        await asyncio.wait({ending})
        go_on.set()
        await asyncio.wait_for(deliveries.aclose(), 20)
        assert list(worker.state.in_hand) == [first.item.enqueue_id]
        await first.complete()
    assert spool.wait_for_ready(spool.names.work_queue, 2) == 2


async def test_a_mail_waits_while_cassandra_is_down(fresh: Any) -> None:
    async with Cuttable("127.0.0.1", int(fresh.env["MAILSLICE_CASSANDRA_PORT"])) as cassandra:
        for spool in at(fresh.settings):
            async with open_worker(
                through(fresh, "cassandra", cassandra.port), spool.queue
            ) as worker:
                item = await worker.enqueue(mail(), CONTENT)
                await cassandra.cut()
                async with aclosing(worker.deliveries(4)) as deliveries:
                    with pytest.raises(TimeoutError):
                        await next_of(deliveries, 3)
                    await cassandra.mend()
                    assert (await next_of(deliveries, 40)).item == item
            assert spool.ready(spool.names.dead_letter_queue) == 0


async def dropping_its_cancellation() -> None:
    """What asyncio makes of a gather whose one part fails in the turn in which the whole is
    cancelled: the failure, and no cancellation.
    """
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise StoreUnavailable("it failed as it was cancelled") from None


@pytest.mark.parametrize("where", ["loading", "surfacing"])
async def test_deliveries_end_although_a_store_fails_as_they_do(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    at_it = asyncio.Event()

    async def stuck(*_: object, **__: object) -> None:
        at_it.set()
        await dropping_its_cancellation()

    queue = QueueName("spool")
    queues.create(open_stores(fresh.settings), queue)
    async with open_worker(fresh.settings, queue) as worker:
        await worker.enqueue(
            mail(), CONTENT, delay=None if where == "loading" else timedelta(seconds=0.2)
        )
        monkeypatch.setattr(
            *((Loader, "load", stuck) if where == "loading" else (Delays, "on_expired", stuck))
        )
        deliveries = worker.deliveries(4)
        coming = asyncio.ensure_future(anext(deliveries, None))
        await asyncio.wait_for(at_it.wait(), 30)
        await asyncio.wait_for(deliveries.aclose(), 20)
        assert await coming is None
