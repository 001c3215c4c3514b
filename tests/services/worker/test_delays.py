"""Mails that are delivered later: due times, deleted and flushed ones, copies that are doubled,
rows that are lost.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
from pydantic import SecretStr

from mailslice.codec import message
from mailslice.model.errors import BadInput, Refused, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Partition, QueuedMail, ViewRow
from mailslice.model.slices import slice_start
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.own.delays import DelayedMails
from mailslice.stores.rabbitmq.management import Management
from mailslice.worker import Deliveries, Delivery, open_worker
from mailslice.worker.enqueue.delayed_mails import DelayedRows, Delays
from mailslice.worker.io.context import Tuning
from mailslice.worker.io.deleted_check import was_cleaned
from mailslice.worker.io.message_copy import MessageCopy
from tests.services.worker.conftest import at, mail, until

CONTENT = b"A: b\r\n\r\nlater"


async def next_of(deliveries: Deliveries, seconds: float = 20) -> Delivery:
    return await asyncio.wait_for(anext(deliveries), seconds)


async def nothing_within(deliveries: Deliveries, seconds: float) -> bool:
    try:
        await asyncio.wait_for(anext(deliveries), seconds)
    except TimeoutError:
        return True
    return False


def row(spool: Any, item: Any) -> Any:
    return spool.stores.own.delayed_mails.get(spool.queue, item.enqueue_id)


async def test_a_retry_with_a_delay_comes_back_when_it_is_due_as_the_same_mail(spool: Any) -> None:
    after, late = timedelta(seconds=1.7), []
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            delivery = await next_of(deliveries)
            # A busy machine makes one late; a rule that is wrong makes each of them late.
            while len(late) < 6 and not any(each < timedelta(seconds=1) for each in late):
                asked = datetime.now(UTC)
                await delivery.retry(after=after)
                assert [found.item for found in spool.live()] == [item]
                delivery = await next_of(deliveries)
                late.append(datetime.now(UTC) - asked - after)
                assert (delivery.item, delivery.content) == (item, CONTENT)
            await delivery.complete()
            await until(lambda: row(spool, item).published and not spool.blob_keys())
    assert min(late) >= timedelta(0)
    assert min(late) < timedelta(seconds=1)


async def test_a_mail_goes_round_the_levels_and_can_be_delayed_twice(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        began = datetime.now(UTC)
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=3.5))
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            assert worker.context.statistics.hops == 1
            assert (
                timedelta(seconds=3.5) <= datetime.now(UTC) - began < timedelta(seconds=12)
            )  # far from the next level's 30 s
            await first.retry(after=timedelta(seconds=1))
            second = await next_of(deliveries)
            assert second.item == item
            await second.complete()
            assert await nothing_within(deliveries, 1.5)


async def test_copies_go_through_levels_where_no_more_may_wait_in_the_worker(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue, tuning=Tuning(waiting_bytes=1)) as worker:
        for number in range(2):
            await worker.enqueue(mail(f"m-{number}"), CONTENT, delay=timedelta(seconds=3.5))
        async with aclosing(worker.deliveries(4)) as deliveries:
            for _ in range(2):
                await (await next_of(deliveries)).complete()
    # One waits for its last 2.5 s; the other meets it waiting, and takes a level a second.
    assert worker.context.statistics.hops == 1 + 3


async def test_a_mail_is_never_early_although_its_handler_delays_it_at_once_again_and_again(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=0.2))
        async with aclosing(worker.deliveries(4)) as deliveries:
            for _ in range(8):
                await (await next_of(deliveries)).retry(after=timedelta(seconds=0.05))
            last = await next_of(deliveries)
            assert last.item == item
            await last.complete()
            assert await nothing_within(deliveries, 2.5)


async def test_a_delayed_mail_that_was_deleted_is_dropped_when_it_surfaces_and_its_blobs_go(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=1))
        spool.stores.tables.deleted.mark_many(spool.queue, [item.enqueue_id])
        async with aclosing(worker.deliveries(4)) as deliveries:
            assert await nothing_within(deliveries, 2.5)
            await until(lambda: row(spool, item).published and not spool.blob_keys())
    assert spool.ready(spool.names.hop_queue) == 0


async def test_flush_delivers_every_delayed_mail_now_and_drops_the_late_copies(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        items = [
            await worker.enqueue(
                mail(f"m-{number}"), CONTENT, delay=timedelta(seconds=3 + number % 3)
            )
            for number in range(12)
        ]
        gone = await worker.enqueue(mail("gone"), CONTENT, delay=timedelta(hours=3))
        spool.stores.tables.deleted.mark_many(spool.queue, [gone.enqueue_id])
        assert await worker.flush() == 12
        assert await worker.flush() == 0
        async with aclosing(worker.deliveries(20)) as deliveries:
            found = [await next_of(deliveries) for _ in items]
            assert {delivery.item.enqueue_id for delivery in found} == {
                item.enqueue_id for item in items
            }
            await asyncio.sleep(
                6
            )  # the copies surface while the mails are still in hand: only their rows can tell
            assert await nothing_within(deliveries, 0.5)
            for delivery in found:
                await delivery.complete()


async def test_two_flushes_at_once_deliver_each_mail_once(spool: Any) -> None:
    async with (
        open_worker(spool.settings, spool.queue) as one,
        open_worker(spool.settings, spool.queue) as other,
    ):
        mails, hour = [mail(f"m-{number}") for number in range(300)], timedelta(hours=1)
        await asyncio.gather(*(one.enqueue(each, CONTENT, delay=hour) for each in mails))
        answers = await asyncio.gather(one.flush(), other.flush(), return_exceptions=True)
    assert sorted(answers, key=str) == [0, 300]
    assert spool.wait_for_ready(spool.names.work_queue, 300) == 300


async def test_a_flush_waits_for_one_that_was_killed_and_is_refused_beside_one_that_goes_on(
    spool: Any,
) -> None:
    locks, lock = spool.stores.own.locks, f"retry/{spool.queue}"
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT, delay=timedelta(hours=1))
        locks.acquire(lock, "somebody", timedelta(seconds=20))
        with pytest.raises(Refused, match="somebody else retries or flushes mails"):
            await worker.state.delays.flush(timedelta(seconds=1))
        assert spool.ready(spool.names.work_queue) == 0
        locks.acquire(lock, "somebody", timedelta(seconds=3))
        assert await worker.flush() == 1
        assert locks.holder(lock) is None


async def test_a_flush_that_lost_its_lock_publishes_nothing_more(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = DelayedRows.load

    async def slow(self: DelayedRows, *given: Any) -> Any:
        await asyncio.sleep(1.5)
        return await load(self, *given)

    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT, delay=timedelta(hours=1))
        with monkeypatch.context() as patch:
            patch.setattr(DelayedRows, "load", slow)
            with pytest.raises(StoreUnavailable, match="took too long: ask again"):
                await worker.state.delays.flush(timedelta(seconds=1))
        assert spool.ready(spool.names.work_queue) == 0
        assert await worker.flush() == 1


async def test_a_flush_that_is_cancelled_gives_its_lock_up_when_what_it_began_has_ended(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, begun = DelayedRows.close, asyncio.Event()

    async def slow(self: DelayedRows, *given: Any) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        await close(self, *given)

    monkeypatch.setattr(DelayedRows, "close", slow)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        open_worker(spool.settings, spool.queue) as other,
    ):
        await worker.enqueue(mail(), CONTENT, delay=timedelta(hours=1))
        flush = asyncio.create_task(worker.flush())
        await asyncio.wait_for(begun.wait(), 20)
        flush.cancel()
        async with asyncio.timeout(10):  # sooner than the lock expires
            assert await other.flush() == 0
    assert spool.wait_for_ready(spool.names.work_queue, 1) == 1


async def test_a_flush_goes_by_the_row_as_it_is_and_not_as_it_was_listed(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mail came due and was delayed anew meanwhile, for fewer recipients: the older row's
    message would reach the others twice.
    """
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(hours=1))
        listed = row(spool, item)
        spool.stores.own.delayed_mails.write_future(
            spool.queue, replace(listed, token=uuid4())
        ).result()
        with monkeypatch.context() as patch:
            patch.setattr(DelayedMails, "rows", lambda *_: iter([listed]))
            assert await worker.flush() == 0
        assert spool.ready(spool.names.work_queue) == 0
        assert await worker.flush() == 1


async def test_a_copy_without_its_row_is_delivered_rather_than_lost(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=1))
        spool.stores.cassandra.execute(f"TRUNCATE {spool.settings.own.keyspace}.delayed_mails")
        async with aclosing(worker.deliveries(4)) as deliveries:
            assert (await next_of(deliveries)).item == item


async def test_a_copy_with_another_token_than_the_rows_is_dropped(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(hours=2))
        spool.publish(
            "",
            message.encode(item),
            {"x-mailslice-token": str(uuid4())},
            routing_key=spool.names.hop_queue,
        )
        async with aclosing(worker.deliveries(4)) as deliveries:
            assert await nothing_within(deliveries, 1.5)
        assert spool.wait_for_ready(spool.names.hop_queue, 0) == 0
        assert not row(spool, item).published
        assert await worker.flush() == 1


async def test_a_doubled_copy_is_delivered_once(spool: Any) -> None:
    """As at-least-once dead-lettering, or a kill between the confirm of a round and its ack, leaves
    it.
    """
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=1))
        token = str(row(spool, item).token)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            await asyncio.sleep(0.3)
            spool.publish(
                "",
                message.encode(item),
                {"x-mailslice-token": token},
                routing_key=spool.names.hop_queue,
            )
            assert await nothing_within(deliveries, 1)
            await first.complete()


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_mail_whose_row_cannot_be_closed_is_published_once(
    spool: Any, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    close, refused = DelayedRows.close, []

    async def failing(self: DelayedRows, *given: Any) -> None:
        if len(refused) < 3:
            refused.append(given)
            raise StoreUnavailable("no write is taken")
        await close(self, *given)

    monkeypatch.setattr(DelayedRows, "close", failing)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(
            mail(), CONTENT, delay=timedelta(hours=1) if flushed else timedelta(seconds=0.2)
        )
        for _ in range(3 * flushed):
            with pytest.raises(StoreUnavailable):
                await worker.flush()
        if flushed:
            assert await worker.flush() == 1
            assert spool.wait_for_ready(spool.names.work_queue, 1) == 1
        async with aclosing(worker.deliveries(4)) as deliveries:
            assert (await next_of(deliveries)).item == item
            while not row(spool, item).published:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
    assert len(refused) == 3
    assert (
        spool.wait_for_ready(spool.names.work_queue, 1) == 1
    )  # given back, and no double behind it


async def test_a_worker_that_ends_closes_the_rows_of_what_it_published(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, begun = DelayedRows.close, asyncio.Event()

    async def slow(self: DelayedRows, *given: Any) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        await close(self, *given)

    monkeypatch.setattr(DelayedRows, "close", slow)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=0.2))
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = asyncio.create_task(anext(deliveries))
            await asyncio.wait_for(begun.wait(), 20)
            first.cancel()
    assert row(spool, item).published
    assert spool.wait_for_ready(spool.names.work_queue, 1) == 1
    assert spool.ready(spool.names.hop_queue) <= 1  # its copy, which finds a closed row


async def test_what_is_no_mail_in_the_hop_queue_goes_to_the_dead_letters(spool: Any) -> None:
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        assert await nothing_within(deliveries, 0.5)
        spool.publish("", b"{nonsense", routing_key=spool.names.hop_queue)
        assert await nothing_within(deliveries, 0.7)
        await until(lambda: spool.ready(spool.names.dead_letter_queue))
    properties, body = spool.take(spool.names.dead_letter_queue)
    assert body == b"{nonsense"
    assert properties.headers["x-mailslice-reason"].startswith("not a mail, in the hop queue")


async def test_a_dead_letter_that_a_crash_had_also_delayed_leaves_no_delay(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            copy, due = (
                MessageCopy(message.encode(item), {}, None),
                datetime.now(UTC) + timedelta(hours=1),
            )
            await Delays(worker.context).schedule(item.enqueue_id, copy, due, leased=True)
            spool.stores.blobs.delete_many([item.header_blob_id])
            await first.retry()
            assert await nothing_within(deliveries, 1)
            assert spool.wait_for_ready(spool.names.dead_letter_queue, 1) == 1
            assert row(spool, item).published


async def test_a_rejected_mail_that_a_crash_had_also_delayed_is_not_delivered_again(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            # A kill after the lease's copy was confirmed and before the ack leaves this: the mail
            # on the work queue, and a copy in a level.
            await Delays(worker.context).schedule(
                item.enqueue_id,
                MessageCopy(message.encode(item), {}, None),
                datetime.now(UTC) + timedelta(seconds=1.5),
                leased=True,
            )
            await first.retry()
            again = await next_of(deliveries)
            assert again.redelivered
            await again.reject("no such user")
            assert await nothing_within(deliveries, 2.5)
    assert spool.wait_for_ready(spool.names.dead_letter_queue, 1) == 1


def hours_ago(hours: int) -> Any:
    """A clock that is behind: what is enqueued by it is in a slice that is over, and delayed by a
    second it is due a second later all the same.
    """
    return lambda: datetime.now(UTC) - timedelta(hours=hours)


def cleaned(spool: Any, world: Any) -> None:
    """As a cleanup leaves the place of a mail that was deleted: no row, and no mark either."""
    spool.stores.tables.written.delete_partition_future(
        spool.queue, world, time.time_ns() // 1000
    ).result()


@pytest.mark.usefixtures("any_clock")
async def test_a_delayed_mail_that_was_deleted_and_cleaned_away_does_not_come_back(
    spool: Any,
) -> None:
    """Shared with James, whose cleanup drops row and mark whatever waits in our levels.

    A live one is delivered, also before a browseStart.
    """
    async with open_worker(spool.settings, spool.queue, clock=hours_ago(3)) as worker:
        gone = await worker.enqueue(mail("gone"), CONTENT, delay=timedelta(seconds=1))
        cleaned(spool, row(spool, gone).partition)
    async with open_worker(spool.settings, spool.queue, clock=hours_ago(2)) as worker:
        live = await worker.enqueue(mail("live"), CONTENT, delay=timedelta(seconds=1))
    spool.stores.tables.browse_starts.write(spool.queue, datetime.now(UTC), time.time_ns() // 1000)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        first = await next_of(deliveries)
        await until(lambda: row(spool, gone).published)
        assert first.item == live
        assert await nothing_within(deliveries, 0.5)
        await first.complete()
    assert spool.ready(spool.names.hop_queue) == 0
    assert spool.ready(spool.names.dead_letter_queue) == 0


@pytest.mark.usefixtures("any_clock")
async def test_a_flush_leaves_out_what_was_deleted_and_cleaned_away_also_when_its_copy_is_gone(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue, clock=hours_ago(3)) as worker:
        gone = await worker.enqueue(mail("gone"), CONTENT, delay=timedelta(hours=9))
        cleaned(spool, row(spool, gone).partition)
    async with open_worker(spool.settings, spool.queue) as worker:
        assert await worker.flush() == 0
        assert row(spool, gone).published
    assert spool.ready(spool.names.work_queue) == 0


async def test_a_mail_of_james_that_was_put_off_knows_its_place_and_does_not_come_back_either(
    spool: Any,
) -> None:
    item = QueuedMail(
        EnqueueId(uuid4()), mail("of James"), BlobId(str(uuid4())), BlobId(str(uuid4()))
    )
    world = Partition(slice_start(hours_ago(3)(), timedelta(hours=1)), 0)
    spool.put_as_james(item, b"A: b\r\n\r\n", b"later", world)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        await (await next_of(deliveries)).retry(after=timedelta(seconds=1))
        assert (row(spool, item).partition, row(spool, item).failures) == (world, 1)
        again = await next_of(deliveries)  # its row is there
        await again.retry(after=timedelta(seconds=1))
        cleaned(spool, world)
        await until(lambda: row(spool, item).published)
        assert await nothing_within(deliveries, 0.5)


@pytest.mark.usefixtures("any_clock")
async def test_a_mail_that_had_no_row_when_it_was_put_off_is_delivered_when_it_is_due(
    spool: Any,
) -> None:
    """One that somebody forced back, or whose view was lost: that it has no row then says nothing
    of what happened since.
    """
    async with open_worker(spool.settings, spool.queue, clock=hours_ago(3)) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        cleaned(spool, Partition(slice_start(hours_ago(3)(), timedelta(hours=1)), 0))
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        await (await next_of(deliveries)).retry(after=timedelta(seconds=1))
        assert row(spool, item).partition is None
        again = await next_of(deliveries)
        assert again.item == item
        await again.complete()


@pytest.mark.usefixtures("any_clock")
async def test_on_an_own_queue_a_mail_without_a_row_that_is_put_off_is_delivered_when_due(
    fresh: Any,
) -> None:
    """Nobody can have cleaned it, for its slice is open: it gets its row back, by which it is live
    when the slice is over.
    """
    for spool in at(fresh.but(MAILSLICE_QUEUE_SHARED="false").settings):
        into = datetime.now(UTC) - slice_start(datetime.now(UTC), timedelta(hours=1))
        async with open_worker(
            spool.settings,
            spool.queue,
            clock=lambda: datetime.now(UTC) - into + timedelta(minutes=1),  # noqa: B023 - one turn
        ) as worker:
            item = await worker.enqueue(mail(), CONTENT)
            (before,) = spool.rows()
            cleaned(spool, before.partition)
            assert spool.rows() == []
            async with aclosing(worker.deliveries(4)) as deliveries:
                await (await next_of(deliveries)).retry(after=timedelta(seconds=1))
        assert [(found.item, found.partition) for found in spool.live()] == [
            (item, before.partition)
        ]
        async with (
            open_worker(spool.settings, spool.queue, clock=hours_ago(-3)) as worker,
            aclosing(worker.deliveries(4)) as deliveries,
        ):
            again = await next_of(deliveries)
            assert again.item == item
            await again.complete()
        assert spool.ready(spool.names.dead_letter_queue) == 0


async def test_in_doubt_a_delayed_mail_is_delivered(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is not absent because a store did not answer, because it is written late, because it is
    in a table that was made since, or nobody knows where.
    """
    old, now = (
        Partition(slice_start(at, timedelta(hours=1)), 0)
        for at in (hours_ago(3)(), datetime.now(UTC) + timedelta(hours=1))
    )
    late, other, none = (EnqueueId(uuid4()) for _ in range(3))
    item = QueuedMail(late, mail("late"), BlobId(""), BlobId(""))

    existing_ids = EnqueuedMails.existing_ids

    def then_written(*given: Any) -> Any:
        pages = list(existing_ids(*given))
        spool.stores.tables.written.insert_many(
            [ViewRow(spool.queue, old, datetime.now(UTC), item)]
        )
        return iter(pages)

    def unanswered(*_: Any) -> Any:
        raise StoreUnavailable("no answer")

    async with open_worker(spool.settings, spool.queue) as worker:
        assert not await was_cleaned(worker.context, none)
        assert not await was_cleaned(worker.context, none, None, now)
        with monkeypatch.context() as patch:
            patch.setattr(EnqueuedMails, "existing_ids", unanswered)
            with pytest.raises(StoreUnavailable):
                await was_cleaned(worker.context, none, old)
            patch.setattr(EnqueuedMails, "existing_ids", then_written)
            assert not await was_cleaned(worker.context, late, old)
        spool.stores.tables.written.insert_many(
            [ViewRow(spool.queue, old, datetime.now(UTC), replace(item, enqueue_id=other))]
        )
        worker.context.tables.__dict__["existing"] = ()
        assert not await was_cleaned(worker.context, other, None, old)
        assert await was_cleaned(worker.context, none, old)


def administer(management: Management, *requests: tuple[str, str, object]) -> None:
    for method, path, body in requests:
        answer = management._pool.request(method, f"{management._base}/api/{path}", json=body)
        assert answer.status < 300


def made_anew(settings: Any, default_queue_type: str) -> None:
    """The vhost, with another default: RabbitMQ 3.10 takes it when a vhost is made."""
    management = Management(settings.rabbitmq)
    vhost = management.vhost
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    administer(
        management,
        ("DELETE", f"vhosts/{vhost}", None),
        ("PUT", f"vhosts/{vhost}", {"defaultqueuetype": default_queue_type}),
        ("PUT", f"permissions/{vhost}/{management._user}", everything),
    )
    assert management.default_queue_type() == default_queue_type


async def test_a_worker_with_the_rights_of_the_page_delays_and_retries(spool: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    [cell] = re.findall(r"^\| workers, `smtp-in` (?:\| [^|]+){2}\| (.+?) \| ", page, re.MULTILINE)
    patterns = [one.replace("\\|", "|") for one in re.findall("`([^`]+)`", cell)]
    rights = {"configure": patterns[0], "write": patterns[-1], "read": patterns[0]}
    management, user = Management(spool.settings.rabbitmq), f"worker-{uuid4().hex[:8]}"
    administer(
        management,
        ("PUT", f"users/{user}", {"password": "p", "tags": ""}),
        ("PUT", f"permissions/{management.vhost}/{user}", rights),
    )
    url = urlsplit(spool.settings.rabbitmq.url.get_secret_value())
    login = url._replace(netloc=f"{user}:p@{url.hostname}:{url.port}")
    rabbitmq = spool.settings.rabbitmq.model_copy(update={"url": SecretStr(urlunsplit(login))})
    settings = spool.settings.model_copy(update={"rabbitmq": rabbitmq})
    try:
        async with open_worker(settings, spool.queue) as worker:
            item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=1.1))
            async with aclosing(worker.deliveries(4)) as deliveries:
                await (await next_of(deliveries)).retry(after=timedelta(seconds=0.1))
                again = await next_of(deliveries)
                assert again.item == item
                await again.complete()
    finally:
        administer(management, ("DELETE", f"users/{user}", None))


@pytest.mark.parametrize(
    ("quorum", "default"), [("false", None), ("true", None), ("false", "quorum")]
)
async def test_levels_work_on_classic_and_quorum_queues_whatever_the_vhost_s_default_is(
    fresh: Any, quorum: str, default: str | None
) -> None:
    """A quorum queue that dead-letters at most once loses what is on its way when its broker dies:
    a level that says no type would be one there.
    """
    settings = fresh.but(MAILSLICE_QUEUE_QUORUM=quorum).settings
    if default is not None:
        made_anew(settings, default)
    for spool in at(settings):
        async with open_worker(spool.settings, spool.queue) as worker:
            item = await worker.enqueue(mail(), CONTENT, delay=timedelta(seconds=1.1))
            async with aclosing(worker.deliveries(4)) as deliveries:
                delivery = await next_of(deliveries)
                assert delivery.item == item
                await delivery.complete()
        arguments = spool.stores.management.arguments(spool.names.delay_queue(1))
        assert arguments["x-message-ttl"] == 1000
        assert "x-expires" not in arguments
        assert arguments.get("x-dead-letter-strategy") == (
            "at-least-once" if quorum == "true" else None
        )
        kind = "quorum" if quorum == "true" else "classic"
        assert arguments["x-queue-type"] == kind
        assert spool.stores.management.arguments(spool.names.hop_queue)["x-queue-type"] == kind
        if default is not None:
            work = spool.stores.management.arguments(spool.names.work_queue)
            assert work["x-queue-type"] == default, "James' own queues are of the vhost's default"


async def test_failed_attempts_are_counted_through_delays_flushes_restarts_and_by_every_worker(
    spool: Any,
) -> None:
    counts: list[tuple[int, int]] = []
    item = None
    for number in range(3):
        async with open_worker(spool.settings, spool.queue) as worker:
            item = item or await worker.enqueue(mail(), CONTENT)
            if number:
                assert await worker.flush() == 1
            async with aclosing(worker.deliveries(4)) as deliveries:
                delivery = await next_of(deliveries)
                counts.append((delivery.failures, delivery.attempt))
                await delivery.retry(after=timedelta(hours=1))
    assert counts == [(0, 1), (1, 2), (2, 3)]
    assert (row(spool, item).failures, row(spool, item).throttled) == (3, False)


async def test_a_flushed_mail_keeps_its_age(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT, delay=timedelta(hours=1))
        await worker.flush()
        async with aclosing(worker.deliveries(4)) as deliveries:
            age = (await next_of(deliveries)).age
            assert age is not None
            assert timedelta(seconds=-1) <= age < timedelta(seconds=60)


async def test_what_does_not_count_is_not_counted(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(recipients=("a@x.example", "b@y.example")), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            await (await next_of(deliveries)).retry()
            await (await next_of(deliveries)).retry(["b@y.example"])
            again = await next_of(deliveries)
            await again.retry(after=timedelta(hours=1), throttled=True)
            assert (again.failures, row(spool, item).failures, row(spool, item).throttled) == (
                0,
                0,
                True,
            )
            await worker.flush()
            back = await next_of(deliveries)
            assert (back.failures, back.throttled, back.item.mail.recipients) == (
                0,
                True,
                ("b@y.example",),
            )
            await back.retry(after=timedelta(hours=1), counted=False)
            assert (row(spool, item).failures, row(spool, item).throttled) == (0, False)


async def test_a_delay_of_more_than_thirty_days_is_refused_and_nothing_is_enqueued(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        with pytest.raises(BadInput, match="at most 30d"):
            await worker.enqueue(mail(), CONTENT, delay=timedelta(days=30, seconds=1))
        assert (spool.rows(), spool.blob_keys()) == ([], set())
        item = await worker.enqueue(mail(), CONTENT, delay=timedelta(days=30))
        assert abs(row(spool, item).due - datetime.now(UTC) - timedelta(days=30)) < timedelta(
            minutes=1
        )


async def test_the_table_of_an_earlier_version_gets_the_columns_that_it_lacks(spool: Any) -> None:
    own = spool.settings.own.keyspace
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT, delay=timedelta(hours=1))
    for column in ("failures", "redrives", "enqueued", "throttled"):
        spool.stores.cassandra.execute(f"ALTER TABLE {own}.delayed_mails DROP {column}")
    async with open_worker(spool.settings, spool.queue) as worker:
        assert await worker.flush() == 1
        async with aclosing(worker.deliveries(4)) as deliveries:
            assert (await next_of(deliveries)).failures == 0
