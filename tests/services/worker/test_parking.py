"""Stores that answer for most mails and not for some: the others go on, and each of those comes
when its store has it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from mailslice.model.errors import QueueMissing
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.management import shows_no_messages
from mailslice.worker import QueueWorker, consume, open_worker
from mailslice.worker.dequeue import lease, park
from tests.services.worker.conftest import Place4Queue, at, back_at_once, mail, until
from tests.services.worker.cuttable import Cuttable, blocked, unblocked
from tests.services.worker.marks_away import Away, MarksAway
from tests.services.worker.refusing import Refusing
from tests.services.worker.test_faults import CONTENT, next_of, through

pytestmark = pytest.mark.waits
MAILS, BAD = 120, 40


@pytest.fixture
async def s3(fresh: Any) -> AsyncIterator[Refusing]:
    url = urlsplit(fresh.env["MAILSLICE_S3_ENDPOINT"])
    async with Refusing(url.hostname or "", url.port or 0) as proxy:
        yield proxy


@pytest.fixture
async def rabbit(fresh: Any) -> AsyncIterator[Cuttable]:
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
    async with Cuttable(url.hostname or "", url.port or 0) as proxy:
        yield proxy


class Run:
    """A worker that consumes, and who was handed out how often."""

    def __init__(self, worker: QueueWorker) -> None:
        self._worker = worker
        self.stop = asyncio.Event()
        self.handed: Counter[str] = Counter()

    async def consume(self) -> None:
        await consume(self._worker, self._handle, prefetch=16, stop=self.stop)

    async def _handle(self, mail: Any, _content: bytes) -> None:
        self.handed[mail.name] += 1


def in_park(spool: Place4Queue) -> int:
    """Messages that are parked now; the park queue is made with the first consumer."""
    try:
        return spool.ready(spool.names.park_queue)
    except QueueMissing:
        return 0


async def until_parked(spool: Place4Queue, least: int = 1) -> None:
    await until(lambda: in_park(spool) >= least, 60)


async def partial(
    spool: Place4Queue, worker: QueueWorker, away: Any, back: Any, *, oldest: bool = False
) -> None:
    """`away(ids)` makes a third of the mails unreadable, `back()` ends that. `oldest`: the first
    ones of the queue, which fill the window before any other comes.
    """
    mails = [mail(f"m-{number:03}") for number in range(MAILS)]
    items = [
        item
        for part in (mails[:BAD], mails[BAD:])
        for item in await asyncio.gather(*(worker.enqueue(one, CONTENT) for one in part))
    ]
    bad = items[:BAD] if oldest else items[:: MAILS // BAD]
    away(bad)
    good = {item.mail.name for item in items} - {item.mail.name for item in bad}
    run = Run(worker)
    running = asyncio.create_task(run.consume())
    began = time.monotonic()
    await until(lambda: good <= run.handed.keys(), 60)
    assert time.monotonic() - began < 60
    assert set(run.handed) == good
    await until_parked(spool, BAD - 16)
    assert not await asyncio.to_thread(shows_no_messages, spool.stores.management, spool.queue)
    back()
    async with back_at_once(spool):
        await until(lambda: len(run.handed) == MAILS, 180)
    run.stop.set()
    await asyncio.wait_for(running, 60)
    assert set(run.handed.values()) == {1}
    assert await asyncio.to_thread(spool.ready, spool.names.dead_letter_queue) == 0
    assert spool.live() == []


@pytest.mark.parametrize("oldest", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_bodies_that_s3_does_not_give_hold_up_no_others(
    fresh: Any, s3: Refusing, *, oldest: bool
) -> None:
    proxied = fresh.but(MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{s3.port}").settings
    for spool in at(fresh.settings):
        async with open_worker(proxied, spool.queue) as worker:
            await partial(
                spool,
                worker,
                lambda bad: s3.unreadable.update(item.body_blob_id for item in bad),
                s3.unreadable.clear,
                oldest=oldest,
            )
    assert s3.refused >= BAD


@pytest.mark.parametrize(
    "away", [Away.UNAVAILABLE, pytest.param(Away.READ_TIMEOUT, marks=pytest.mark.soak)]
)
async def test_partitions_of_marks_that_do_not_answer_hold_up_no_others(
    fresh: Any, away: Away
) -> None:
    cassandra = fresh.settings.cassandra
    proxy = MarksAway(cassandra.contact_points[0], cassandra.port, away)
    async with proxy:
        proxied = fresh.but(
            MAILSLICE_CASSANDRA_CONTACT_POINTS="127.0.0.1", MAILSLICE_CASSANDRA_PORT=str(proxy.port)
        ).settings
        for spool in at(fresh.settings):
            async with open_worker(proxied, spool.queue) as worker:
                await partial(
                    spool,
                    worker,
                    lambda bad: proxy.ids.update(item.enqueue_id for item in bad),
                    proxy.ids.clear,
                )
    assert proxy.refused >= BAD


async def test_partitions_that_take_no_marks_hold_up_no_others(fresh: Any) -> None:
    """Their mails are handled, and nobody can write that down: a handler, and the window, must not
    wait for it.
    """
    cassandra = fresh.settings.cassandra
    host, port = cassandra.contact_points[0], cassandra.port
    async with MarksAway(host, port, Away.UNAVAILABLE, writes=True) as proxy:
        proxied = fresh.but(
            MAILSLICE_CASSANDRA_CONTACT_POINTS="127.0.0.1", MAILSLICE_CASSANDRA_PORT=str(proxy.port)
        ).settings
        for spool in at(fresh.settings):
            async with open_worker(proxied, spool.queue) as worker:
                await without_writes(spool, worker, proxy)
        assert proxy.refused >= BAD


async def without_writes(spool: Place4Queue, worker: QueueWorker, proxy: MarksAway) -> None:
    mails = [mail(f"m-{number:03}") for number in range(MAILS)]
    items = await asyncio.gather(*(worker.enqueue(one, CONTENT) for one in mails))
    bad = {item.enqueue_id for item in items[:: MAILS // BAD]}
    proxy.ids.update(bad)
    run = Run(worker)
    running = asyncio.create_task(run.consume())
    await until(lambda: len(run.handed) == MAILS, 60)
    await until(lambda: {row.enqueue_id for row in spool.live()} == bad, 10)
    assert not await asyncio.to_thread(shows_no_messages, spool.stores.management, spool.queue)
    proxy.ids.clear()
    await until(lambda: spool.live() == [], 60)
    run.stop.set()
    await asyncio.wait_for(running, 60)
    assert set(run.handed.values()) == {1}


async def test_a_mail_that_was_done_when_its_worker_ended_is_not_handed_out_again(
    fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No store took its mark. The next worker gets the lease's copy, and writes it."""
    monkeypatch.setattr(lease, "LENGTH", timedelta(seconds=5))
    cassandra = fresh.settings.cassandra
    host, port = cassandra.contact_points[0], cassandra.port
    async with MarksAway(host, port, Away.UNAVAILABLE, writes=True) as proxy:
        proxied = fresh.but(
            MAILSLICE_CASSANDRA_CONTACT_POINTS="127.0.0.1", MAILSLICE_CASSANDRA_PORT=str(proxy.port)
        ).settings
        for spool in at(fresh.settings):
            async with open_worker(proxied, spool.queue) as worker:
                proxy.ids.add((await worker.enqueue(mail(), CONTENT)).enqueue_id)
                assert await handed_until(worker, lambda: says_done(worker), cancel=True) == 1
            proxy.ids.clear()
            async with open_worker(fresh.settings, spool.queue) as worker:
                assert await handed_until(worker, lambda at=spool: not at.live()) == 0
            assert await asyncio.to_thread(spool.ready, spool.names.work_queue) == 0


def says_done(worker: QueueWorker) -> bool:
    """Whether the lease of its mail says that only the deleted mark is missing."""
    return any(delivery.lease.says_done for delivery in list(worker.state.in_hand.values()))


async def handed_until(
    worker: QueueWorker, condition: Callable[[], bool], *, cancel: bool = False
) -> int:
    """Consumes until the condition is true. Returns how many mails were handed out."""
    run = Run(worker)
    running = asyncio.create_task(run.consume())
    await until(condition, 60)
    if cancel:
        running.cancel()
    run.stop.set()
    await asyncio.wait({running}, timeout=60)
    return run.handed.total()


async def test_a_mail_is_parked_after_its_time_in_place_and_comes_back_by_itself(
    fresh: Any, s3: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(park, "RETRY_SECONDS", 1.0)
    proxied = fresh.but(MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{s3.port}").settings
    for spool in at(fresh.settings):
        async with open_worker(proxied, spool.queue) as worker:
            item = await worker.enqueue(mail(), CONTENT)
            s3.unreadable.add(item.body_blob_id)
            async with aclosing(worker.deliveries(1)) as deliveries:
                coming = asyncio.ensure_future(anext(deliveries))
                await until_parked(spool)
                assert deliveries.idle_seconds == 0, "an idle consumer would end before it is back"
                s3.unreadable.clear()
                # A place of the window is free for others meanwhile.
                other = await worker.enqueue(mail("other"), CONTENT)
                delivery = await asyncio.wait_for(coming, 25)
                assert delivery.item == other
                await delivery.complete()
            # Nobody holds it while this worker is gone.
        properties = await asyncio.to_thread(spool.take, spool.names.work_queue, 75)
        assert properties is not None
        headers = properties[0].headers
        assert headers["x-mailslice-parked"] == 1
        assert headers["x-mailslice-slice"]


async def test_mails_that_were_parked_before_are_parked_again_after_one_try_and_come_in_the_end(
    fresh: Any, s3: Refusing
) -> None:
    """A window full of them, with the whole half minute of a first trial ahead."""
    proxied = fresh.but(MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{s3.port}").settings
    for spool in at(fresh.settings):
        async with open_worker(proxied, spool.queue) as worker:
            await parked_again(spool, worker, s3)
        assert spool.live() == []
        assert spool.ready(spool.names.work_queue) == in_park(spool) == 0


async def parked_again(spool: Place4Queue, worker: QueueWorker, s3: Refusing) -> None:
    items = [await worker.enqueue(mail(f"m-{number}"), CONTENT) for number in range(40)]
    s3.unreadable.update(item.body_blob_id for item in items)
    for _ in items:
        taken = await asyncio.to_thread(spool.take, spool.names.work_queue)
        assert taken is not None
        headers = taken[0].headers | {"x-mailslice-parked": 1}
        await asyncio.to_thread(spool.publish, spool.names.exchange, taken[1], headers)
    run = Run(worker)
    running = asyncio.create_task(run.consume())
    began = time.monotonic()
    await until(lambda: in_park(spool) == len(items), 20)
    other = await worker.enqueue(mail("other"), CONTENT)
    await until(lambda: run.handed[other.mail.name], 10)
    assert time.monotonic() - began < park.RETRY_SECONDS
    s3.unreadable.clear()
    await until(lambda: len(run.handed) == len(items) + 1, 90)
    run.stop.set()
    await asyncio.wait_for(running, 60)
    assert set(run.handed.values()) == {1}
    assert worker.context.statistics.parked == len(items)


async def test_a_broker_in_alarm_takes_no_copy_and_the_mail_is_held_on(
    fresh: Any, s3: Refusing, rabbit: Cuttable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(park, "RETRY_SECONDS", 1.0)
    for spool in at(fresh.settings):
        settings = through(
            fresh.but(MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{s3.port}"), "rabbitmq", rabbit.port
        )
        async with open_worker(settings, spool.queue) as worker:
            item = await worker.enqueue(mail(), CONTENT)
            s3.unreadable.add(item.body_blob_id)
            async with aclosing(worker.deliveries(4)) as deliveries:
                coming = asyncio.ensure_future(anext(deliveries))
                await until(lambda: s3.refused)
                rabbit.say(blocked("low on memory"))
                await asyncio.sleep(8)
                assert await asyncio.to_thread(in_park, spool) == 0
                s3.unreadable.clear()
                delivery = await asyncio.wait_for(coming, 25)
                assert not delivery.redelivered
                rabbit.say(unblocked())
                await delivery.complete()
        assert spool.live() == []


async def test_a_park_queue_that_somebody_deleted_is_declared_again(
    fresh: Any, s3: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(park, "RETRY_SECONDS", 1.0)
    proxied = fresh.but(MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{s3.port}").settings
    for spool in at(fresh.settings):
        async with open_worker(proxied, spool.queue) as worker:
            item = await worker.enqueue(mail(), CONTENT)
            s3.unreadable.add(item.body_blob_id)
            async with aclosing(worker.deliveries(4)) as deliveries:
                coming = asyncio.ensure_future(anext(deliveries))
                await until(lambda: deliveries.connected and s3.refused)
                with blocking_connection(spool.settings.rabbitmq) as connection:
                    connection.channel().queue_delete(spool.names.park_queue)
                await until_parked(spool)
                coming.cancel()
                await asyncio.wait({coming})


async def test_a_mail_that_waits_long_for_a_handler_goes_to_somebody_else(
    spool: Place4Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailslice.worker.dequeue.park.LONGEST_UNACKNOWLEDGED", 2.0)
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail("first"), CONTENT)
        await worker.enqueue(mail("second"), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            await until_parked(spool)
            assert [*worker.state.in_hand] == [first.item.enqueue_id]
            await first.complete()
    assert len(spool.live()) == 1
