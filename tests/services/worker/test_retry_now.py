"""Delayed mails that are tried now: once each, beside live workers."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from mailslice.admin.filters import MailFilter
from mailslice.admin.leased_lock import LeasedLock
from mailslice.codec.wildcards import Wildcard
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.stores.cassandra import own
from mailslice.stores.cassandra.own.table import create
from mailslice.stores.rabbitmq.blocking_publisher import ready_messages
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import open_worker
from mailslice.worker.enqueue.delayed_mails import DelayedRows, Delays
from mailslice.worker.io.context import Tuning
from mailslice.worker.retries import Retried, deliver_due, flush, retry_now
from tests.services.worker.conftest import mail

CONTENT = b"A: b\r\n\r\nlater"
EVERY = MailFilter()
HOUR = timedelta(hours=1)
SHORT = Tuning(copy_before_row=1.0)
"""The copy that comes before the row expires while a test waits."""


async def delivered(deliveries: Any, seconds: float) -> list[Any]:
    """All that is handed out within this time."""
    found = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                delivery = await anext(deliveries)
                found.append(delivery)
    except TimeoutError:
        return found


def waiting(spool: Any) -> int:
    with blocking_connection(spool.settings.rabbitmq) as connection:
        return ready_messages(connection.channel(), spool.names.work_queue)


async def test_a_delayed_mail_is_delivered_once_beside_a_live_worker(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue, tuning=SHORT) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=HOUR)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = asyncio.ensure_future(anext(deliveries))
            await asyncio.sleep(1)
            outcome = await retry_now(worker, EVERY)
            assert (outcome.retried, outcome.soon) == ([item.enqueue_id], 0)
            delivery = await asyncio.wait_for(first, 20)
            assert delivery.item == item
            assert await delivered(deliveries, 6) == []
            await delivery.complete()
        assert spool.live() == []


async def test_a_mail_that_fails_again_keeps_its_new_delay(spool: Any) -> None:
    """The retry's second copy, and the old one, belong to rows that are gone."""
    async with open_worker(spool.settings, spool.queue, tuning=SHORT) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=HOUR)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = asyncio.ensure_future(anext(deliveries))
            await asyncio.sleep(1)
            await retry_now(worker, EVERY)
            delivery = await asyncio.wait_for(first, 20)
            await delivery.retry(after=HOUR)
            assert await delivered(deliveries, 6) == []
        row = spool.stores.own.delayed_mails.get(spool.queue, item.enqueue_id)
        assert row.due > datetime.now(UTC) + timedelta(minutes=50)


async def test_a_mail_that_fails_again_at_once_is_not_waited_for(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue, tuning=SHORT) as worker:
        await worker.enqueue(mail(), CONTENT, delay=HOUR)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = asyncio.ensure_future(anext(deliveries))
            await asyncio.sleep(1)
            outcome = await retry_now(worker, EVERY)
            await (await asyncio.wait_for(first, 20)).retry(after=HOUR)
            async with asyncio.timeout(5):
                assert await deliver_due(worker, outcome.retried) == 0


async def test_without_a_worker_the_asker_brings_the_mails_to_the_queue(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        items = [await worker.enqueue(mail(f"m-{n}"), CONTENT, delay=HOUR) for n in range(3)]
        outcome = await retry_now(worker, EVERY)
        assert set(outcome.retried) == {item.enqueue_id for item in items}
        assert await deliver_due(worker, outcome.retried) == 0
        assert await asyncio.to_thread(waiting, spool) == 3
        again = await retry_now(worker, EVERY)
        assert (again.retried, again.soon) == ([], 0)


async def test_asked_again_before_they_are_delivered_nothing_is_doubled(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue, tuning=SHORT) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=HOUR)
        assert (await retry_now(worker, EVERY)).retried == [item.enqueue_id]
        again = await retry_now(worker, EVERY)
        assert (again.retried, again.soon) == ([], 1)
        assert await deliver_due(worker, [item.enqueue_id]) == 0
        await asyncio.sleep(3)
        assert await asyncio.to_thread(waiting, spool) == 1


async def test_the_own_tables_are_looked_at_beside_the_event_loop(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def watched(*args: Any) -> str:
        threads.append(threading.current_thread())
        return create(*args)

    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT, delay=HOUR)
    monkeypatch.setattr(own, "create", watched)
    async with open_worker(spool.settings, spool.queue) as worker:
        assert len((await retry_now(worker, EVERY)).retried) == 1
    assert threads
    assert threading.current_thread() not in threads


async def test_only_what_matches_and_is_far_is_retried(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        wanted = await worker.enqueue(
            mail("one", recipients=("a@example.net",)), CONTENT, delay=HOUR
        )
        await worker.enqueue(mail("two", recipients=("a@example.org",)), CONTENT, delay=HOUR)
        await worker.enqueue(mail("one", recipients=("b@example.net",)), CONTENT)
        soon = await worker.enqueue(mail("soon"), CONTENT, delay=timedelta(seconds=50))
        deleted = await worker.enqueue(mail("deleted"), CONTENT, delay=HOUR)
        spool.stores.tables.deleted.mark_many(spool.queue, [deleted.enqueue_id])
        by_domain = MailFilter(domain="example.net", name=Wildcard("o*"))
        assert (await retry_now(worker, by_domain, dry_run=True)).retried == [wanted.enqueue_id]
        assert (await retry_now(worker, by_domain)).retried == [wanted.enqueue_id]
        ids = frozenset({soon.enqueue_id, deleted.enqueue_id, uuid4()})
        outcome = await retry_now(worker, MailFilter(ids=ids))
        assert (outcome.retried, outcome.soon, outcome.deleted) == ([], 1, 1)


async def test_the_delay_of_a_mail_that_was_deleted_is_closed_but_by_no_dry_run(spool: Any) -> None:
    """Its copy may be lost: an open row has no end of its own."""
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=HOUR)
        spool.stores.tables.deleted.mark_many(spool.queue, [item.enqueue_id])
        for dry_run in (True, False):
            outcome = await retry_now(worker, EVERY, dry_run=dry_run)
            row = spool.stores.own.delayed_mails.get(spool.queue, item.enqueue_id)
            assert (outcome.deleted, row.published) == (1, not dry_run)
        assert (await retry_now(worker, EVERY)).deleted == 0


async def test_a_mail_that_is_overdue_is_left_and_named_until_a_flush_delivers_it(
    spool: Any,
) -> None:
    """As one whose copy RabbitMQ lost."""
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=HOUR)
        rows = worker.state.delays.rows
        row = await rows.load(item.enqueue_id)
        assert row is not None
        await rows.save(replace(row, due=datetime.now(UTC) - timedelta(minutes=2)))
        outcome = await retry_now(worker, EVERY)
        assert (outcome.retried, outcome.soon, outcome.overdue) == ([], 0, 1)
        assert "1 mails are overdue" in (outcome.problem(spool.queue) or "")
        assert await worker.flush() == 1
        outcome = await retry_now(worker, EVERY)
        assert (outcome.overdue, outcome.problem(spool.queue)) == (0, None)
        assert await asyncio.to_thread(waiting, spool) == 1


async def test_a_mail_that_is_delayed_anew_meanwhile_is_left_as_it_is(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=HOUR)
        table = spool.stores.own.delayed_mails
        before = table.get(spool.queue, item.enqueue_id)
        table.close(spool.queue, item.enqueue_id, uuid4(), before.written_us)
        assert not await worker.state.delays.bring_forward(before)
        assert table.get(spool.queue, item.enqueue_id).published


async def test_two_who_retry_do_not_do_it_at_once(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT, delay=HOUR)
        locks, lock = spool.stores.own.locks, f"retry/{spool.queue}"
        locks.acquire(lock, "somebody", timedelta(minutes=1))
        with pytest.raises(Refused, match="somebody else retries"):
            await retry_now(worker, EVERY, lease=timedelta(seconds=1))
        locks.release(lock, "somebody")
        assert len((await retry_now(worker, EVERY)).retried) == 1
        assert locks.holder(lock) is None


async def test_who_retries_nothing_of_what_is_delayed_takes_no_lock_and_an_id_reads_its_row_alone(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=HOUR)
        locks, lock = spool.stores.own.locks, f"retry/{spool.queue}"
        locks.acquire(lock, "somebody", timedelta(minutes=1))
        for nothing in (MailFilter(name="other"), MailFilter(ids=frozenset({uuid4()}))):
            outcome = await retry_now(worker, nothing, lease=timedelta(seconds=1))
            assert outcome == Retried()
        assert locks.holder(lock) == "somebody"
        locks.release(lock, "somebody")

        monkeypatch.delattr(own.DelayedMails, "rows")  # all of 30 days
        by_id = MailFilter(ids=frozenset({item.enqueue_id, uuid4()}))
        assert (await retry_now(worker, by_id)).retried == [item.enqueue_id]


async def test_a_retry_that_lost_its_lock_changes_nothing_more(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(2):
            await worker.enqueue(mail(f"m-{number}"), CONTENT, delay=HOUR)
        before = [row.token for row in spool.stores.own.delayed_mails.rows(spool.queue)]

        load = DelayedRows.load

        async def slow(rows: DelayedRows, *given: Any) -> Any:
            await asyncio.sleep(1.5)
            return await load(rows, *given)

        monkeypatch.setattr(DelayedRows, "load", slow)
        with pytest.raises(StoreUnavailable, match="took too long: ask again"):
            await retry_now(worker, EVERY, lease=timedelta(seconds=1))
        assert [row.token for row in spool.stores.own.delayed_mails.rows(spool.queue)] == before


async def test_where_one_fails_the_others_end_first_and_are_counted(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def first_fails(_: Delays, row: Any, _right: Any) -> bool:
        calls.append(row)
        if len(calls) == 1:
            raise StoreUnavailable("away")
        await asyncio.sleep(0.2)
        return True

    monkeypatch.setattr(Delays, "bring_forward", first_fails)
    outcome = Retried()
    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(3):
            await worker.enqueue(mail(f"m-{number}"), CONTENT, delay=HOUR)
        with pytest.raises(StoreUnavailable, match="away"):
            await retry_now(worker, EVERY, outcome)
    assert len(outcome.retried) == 2


async def test_a_flush_that_fails_half_way_is_recorded(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(2):
            await worker.enqueue(mail(f"m-{number}"), CONTENT, delay=HOUR)
    closed, close = [], DelayedRows.close

    async def second_fails(rows: DelayedRows, row: Any) -> None:
        closed.append(row)
        if len(closed) > 1:
            raise StoreUnavailable("away")
        await close(rows, row)

    monkeypatch.setattr(DelayedRows, "close", second_fails)
    flushed: list[int] = []
    with pytest.raises(StoreUnavailable, match="away"):
        await flush(spool.settings, spool.queue, flushed.append)
    assert flushed == [1]


async def test_a_flush_that_is_refused_is_no_decision(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_lock: LeasedLock) -> None:
        raise Refused("somebody else flushes")

    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT, delay=HOUR)
    monkeypatch.setattr(LeasedLock, "renew", refused)
    flushed: list[int] = []
    with pytest.raises(Refused):
        await flush(spool.settings, spool.queue, flushed.append)
    assert flushed == []
