"""Handlers that take long: their mails are not unacknowledged meanwhile, and come back when the
process has died.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from mailslice.admin.enqueue import publish
from mailslice.bench.clearing import drop_marks
from mailslice.codec.headers import partition_in
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.stages import MailStage
from mailslice.worker import Deliveries, Delivery, open_worker
from mailslice.worker.dequeue import lease
from mailslice.worker.enqueue.delayed_mails import DelayedRows, Delays
from mailslice.worker.io.context import QueueContext, Tuning
from mailslice.worker.outcome import Disposition
from tests.services.worker.conftest import Place4Queue, at, back_at_once, mail, until
from tests.services.worker.test_faults import CONTENT, next_of

pytestmark = pytest.mark.waits

LENGTH = 5.0
OFTEN = Tuning(lease_check=0.2)
LONGER = 20.0
"""For a test that must be through before the first copy is due."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LONGEST_UNACKNOWLEDGED", 1.0)
    monkeypatch.setattr(lease, "LENGTH", timedelta(seconds=LENGTH))


async def leased(spool: Place4Queue, worker: Any, deliveries: Deliveries) -> Delivery:
    await worker.enqueue(mail(), CONTENT)
    delivery = await next_of(deliveries)
    await until(lambda: delivery.lease.is_out)
    return delivery


async def test_a_mail_that_is_long_in_a_handler_is_not_unacknowledged(
    spool: Place4Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LENGTH", timedelta(seconds=LONGER))
    async with open_worker(spool.settings, spool.queue, tuning=OFTEN) as worker:
        async with aclosing(worker.deliveries(4)) as deliveries:
            delivery = await leased(spool, worker, deliveries)
            row = spool.stores.own.delayed_mails.get(spool.queue, delivery.item.enqueue_id)
            assert row is not None
            assert (row.leased, row.published) == (True, False)
            assert await worker.flush() == 0, "it is in a handler"
            first = row.token
            await until(
                lambda: (
                    spool.stores.own.delayed_mails.get(spool.queue, row.enqueue_id).token != first
                )
            )
            await deliveries.disconnect()  # the broker has nothing of it to give back
            assert spool.ready(spool.names.work_queue) == 0
            await delivery.complete()
        async with aclosing(worker.deliveries(4)) as deliveries:
            with pytest.raises(TimeoutError):
                await next_of(deliveries, LONGER + 3)
    assert spool.live() == []


async def test_it_comes_back_when_its_process_has_died(spool: Place4Queue) -> None:
    async with (
        open_worker(spool.settings, spool.queue, tuning=OFTEN) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        delivery = await leased(spool, worker, deliveries)
        worker._watching.cancel()  # nobody renews the lease any more
        worker.state.in_hand.clear()
        again = await next_of(deliveries, LENGTH + 20)
        assert again.item == delivery.item
        assert again.failures == 0
        assert again.redelivered, "it has been in a handler"
        await again.complete()
    assert spool.live() == []


@pytest.mark.parametrize("how", ["delayed", "now", "narrowed", "rejected", "given back"])
async def test_its_outcome_is_the_only_one(spool: Place4Queue, how: str) -> None:
    async with (
        open_worker(spool.settings, spool.queue, tuning=OFTEN) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        await worker.enqueue(mail(recipients=("a@b.example", "c@b.example")), CONTENT)
        delivery = await next_of(deliveries)
        await until(lambda: delivery.lease.is_out)
        match how:
            case "delayed":
                await delivery.retry(after=timedelta(seconds=1))
            case "now":
                await delivery.retry()
            case "narrowed":
                await delivery.retry(["c@b.example"])
            case "given back":
                await delivery.requeue()
            case _:
                await delivery.reject("nobody wants it")
        if how != "rejected":
            again = await next_of(deliveries)
            assert again.failures == (how == "delayed")
            assert len(again.item.mail.recipients) == (1 if how == "narrowed" else 2)
            await again.complete()
        with pytest.raises(TimeoutError):
            await next_of(deliveries, LENGTH + 3)
    assert spool.wait_for_ready(spool.names.dead_letter_queue, how == "rejected") == (
        how == "rejected"
    )
    assert len(spool.live()) == (how == "rejected")


async def test_a_mail_that_was_closed_meanwhile_gets_no_lease(spool: Place4Queue) -> None:
    async with (
        open_worker(spool.settings, spool.queue, tuning=OFTEN) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        item = await worker.enqueue(mail(), CONTENT)
        delivery = await next_of(deliveries)
        spool.stores.tables.deleted.mark_many(spool.queue, [item.enqueue_id])
        await until(lambda: delivery.lease.is_out)
        assert spool.stores.own.delayed_mails.get(spool.queue, item.enqueue_id) is None
        await deliveries.disconnect()
    assert spool.ready(spool.names.work_queue) == 0


@pytest.mark.parametrize("how", ["delayed", "now", "narrowed", "rejected", "given back"])
async def test_a_mail_that_was_closed_stays_closed_when_a_cleanup_has_taken_its_mark(
    spool: Place4Queue, how: str
) -> None:
    """It hangs for a night: stuck_mails has set it aside, the broker has nothing of it, and the
    cleanup takes row and mark.
    """
    async with (
        open_worker(spool.settings, spool.queue, tuning=OFTEN) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        item = await worker.enqueue(mail(recipients=("a@b.example", "c@b.example")), CONTENT)
        delivery = await next_of(deliveries)
        spool.stores.tables.deleted.mark_many(spool.queue, [item.enqueue_id])
        await until(lambda: delivery.lease.is_out)
        drop_marks(spool.stores.tables.deleted, spool.queue, [item.enqueue_id])
        match how:
            case "delayed":
                await delivery.retry(after=timedelta(seconds=1))
            case "now":
                await delivery.retry()
            case "narrowed":
                await delivery.retry(["c@b.example"])
            case "given back":
                await delivery.requeue()
            case _:
                await delivery.reject("nobody wants it")
        with pytest.raises(TimeoutError):
            await next_of(deliveries, LENGTH)
    assert spool.ready(spool.names.dead_letter_queue) == 0


@pytest.mark.parametrize(
    ("how", "at", "after"),
    [
        ("renewed", "save", 0),
        ("renewed", "put", 0),
        ("delayed", "save", 0),
        ("delayed", "put", 0),
        ("delayed", "put", 1),
        ("rejected", "", 0),
    ],
)
async def test_a_process_that_dies_as_it_renews_or_settles_a_leased_mail_loses_nothing(
    spool: Place4Queue, monkeypatch: pytest.MonkeyPatch, how: str, at: str, after: int
) -> None:
    """`at`: the step of a schedule that fails, from its call `after` on."""
    tuning = replace(OFTEN, copy_before_row=LENGTH)
    failed: list[object] = []

    async def killed(*given: object) -> None:
        failed.append(given)
        raise StoreUnavailable("killed")

    async with (
        open_worker(spool.settings, spool.queue, tuning=tuning) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        item = await worker.enqueue(mail(), CONTENT)
        await (await next_of(deliveries)).requeue()
        delivery = await next_of(deliveries)
        assert delivery.redelivered
        await until(lambda: delivery.lease.is_out)
        with monkeypatch.context() as broken:
            if at:
                broken_class = DelayedRows if at == "save" else Delays
                whole, calls = getattr(broken_class, at), iter(range(100))

                async def failing(*given: Any) -> None:
                    await (whole if next(calls) < after else killed)(*given)

                broken.setattr(broken_class, at, failing)
            broken.setattr(QueueContext, "publish_dead_letter", killed)
            if how == "renewed":
                await until(lambda: failed)
            worker._watching.cancel()
            if how != "renewed":
                with pytest.raises(StoreUnavailable):
                    await (
                        delivery.retry(after=timedelta(seconds=1))
                        if how == "delayed"
                        else delivery.reject("nobody wants it")
                    )
            worker.state.in_hand.clear()
        again = await next_of(deliveries, 2 * LENGTH + 20)
        assert again.item == item
        await again.complete()
    assert spool.live() == []


@pytest.fixture
def marking(fresh: Any, request: pytest.FixtureRequest) -> Any:
    """A queue with stage marks."""
    name = f"q{abs(hash(request.node.name))}"
    yield from at(fresh.but(MAILSLICE_QUEUE_STAGE_MARKS=name).settings, name)


def release(world: Place4Queue, delivery: Delivery) -> None:
    """As stuck_mails: the mail, whose handler hangs, is taken, and published for another."""
    item, stages = delivery.item, world.stores.own.mail_stages
    taken = MailStage(item.enqueue_id, "run-1", 2, 1, item.mail.recipients)
    assert stages.advance(world.queue, None, taken)
    now, partition = system_clock(), partition_in(delivery.message.headers)
    publish(world.stores, world.queue, item, partition, now)


async def test_what_stuck_mails_has_released_does_not_go_to_the_handler_that_hangs(
    marking: Place4Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LENGTH", timedelta(seconds=10 * LONGER))
    opened = partial(open_worker, marking.settings, marking.queue, tuning=OFTEN)
    async with opened() as worker, opened() as other:
        async with aclosing(worker.deliveries(4)) as deliveries:
            delivery = await leased(marking, worker, deliveries)
            release(marking, delivery)
            await until(lambda: marking.ready(marking.names.park_queue) == 1)
            await until(lambda: not deliveries._slots, 5)  # it would fill a place of the window
            await deliveries.disconnect()
        async with back_at_once(marking), aclosing(other.deliveries(4)) as deliveries:
            again = await next_of(deliveries, 75)
            assert (again.item, again.attempt) == (delivery.item, 2)
            await again.complete()
    assert marking.live() == []


async def test_what_another_delays_after_a_release_keeps_its_delay(marking: Place4Queue) -> None:
    """The handler that hangs renews no lease over it, and gives nothing back."""
    opened = partial(open_worker, marking.settings, marking.queue, tuning=OFTEN)
    async with opened() as worker, opened() as other:
        async with aclosing(worker.deliveries(4)) as deliveries:
            delivery = await leased(marking, worker, deliveries)
        release(marking, delivery)
        async with aclosing(other.deliveries(4)) as deliveries:
            await (await next_of(deliveries)).retry(after=timedelta(hours=1))
        await asyncio.sleep(LENGTH)
        row = marking.stores.own.delayed_mails.get(marking.queue, delivery.item.enqueue_id)
        assert row is not None
        assert row.due is not None
        assert row.due > system_clock() + timedelta(minutes=50)
        assert await delivery.retry() is Disposition.GIVEN_BACK
        assert marking.ready(marking.names.work_queue) == 0
    assert len(marking.live()) == 1
