"""A message that the broker hands out again after its slice was cleaned is never handled (I2)."""

import asyncio
import time
from contextlib import aclosing
from datetime import timedelta

import pytest

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import system_clock
from mailslice.model.mail import Mail, Partition
from mailslice.model.names import RabbitNames
from mailslice.stores import open_stores
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import open_worker
from mailslice.worker.io.deleted_check import DeliveryStatus, delivery_status
from tests.services.duties.queue_cleanup.conftest import WINDOW
from tests.services.duties.world import as_set, run_all_in_process


@pytest.fixture
def quick(make_fresh):
    """Slices of a second, on a queue that is mailslice's alone."""
    settings = (
        make_fresh().but(MAILSLICE_QUEUE_SLICE_WINDOW="1s", MAILSLICE_QUEUE_SHARED="false").settings
    )
    with open_stores(settings) as stores:
        yield settings, stores, queues.create(stores, "spool")


def clean(settings, queue, run, grace="1s"):
    request = RunRequest("queue_cleanup", queue, run, params={"grace": grace})
    return run_all_in_process(request, settings, agree=as_set)


def wait_for_dead_letter(settings, queue):
    deadline = time.monotonic() + 40
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        while not channel.queue_declare(
            RabbitNames(queue).dead_letter_queue, passive=True
        ).method.message_count:
            assert time.monotonic() < deadline
            time.sleep(0.2)


async def test_a_redelivery_without_row_and_mark_is_dead_lettered_as_cleaned(
    quick,
):
    settings, stores, queue = quick
    async with open_worker(settings, queue) as worker:
        item = await worker.enqueue(
            Mail("m-1", "a@b.example", ("c@d.example",)), b"Subject: x\r\n\r\nbody"
        )
        async with aclosing(worker.deliveries(1)) as deliveries:
            held = await asyncio.wait_for(anext(deliveries), 15)
            assert held.item.enqueue_id == item.enqueue_id
            stores.tables.deleted.mark_many(
                queue, [item.enqueue_id]
            )  # an administrator deletes it while it is in flight
            await asyncio.sleep(4)
            report = await asyncio.to_thread(clean, settings, queue, "r1")
            assert (report["applied"], report["marks"]["dropped"]) == (1, 1)
            assert not stores.tables.deleted.is_marked(queue, item.enqueue_id)
    # The worker is gone without an ack: the broker gives the message to the next one.
    async with open_worker(settings, queue) as worker, aclosing(worker.deliveries(1)) as deliveries:
        handed_over = asyncio.ensure_future(anext(deliveries))
        await asyncio.to_thread(wait_for_dead_letter, settings, queue)
        assert not handed_over.done()
        handed_over.cancel()
    assert dead_letter_ids(settings, queue) == {item.enqueue_id}


async def test_on_a_shared_queue_the_mark_of_an_unacknowledged_message_drops_its_redelivery(
    quick,
):
    settings, stores, queue = quick
    shared = settings.model_copy(
        update={"queue": settings.queue.model_copy(update={"shared": True})}
    )
    async with open_worker(shared, queue) as worker:
        item = await worker.enqueue(
            Mail("m-2", "a@b.example", ("c@d.example",)), b"Subject: x\r\n\r\nbody"
        )
        async with aclosing(worker.deliveries(1)) as deliveries:
            await asyncio.wait_for(anext(deliveries), 15)
            stores.tables.deleted.mark_many(queue, [item.enqueue_id])
            await asyncio.sleep(
                6
            )  # the management figures come late, and know of the message by then
            report = await asyncio.to_thread(clean, shared, queue, "r2")
            assert (report["applied"], report["marks"]["waiting"]) == (1, 1)
            assert stores.tables.deleted.is_marked(queue, item.enqueue_id)
    async with open_worker(shared, queue) as worker, aclosing(worker.deliveries(1)) as deliveries:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(deliveries), 5)
        assert stores.rabbitmq.management is not None
    assert dead_letter_ids(shared, queue) == set()  # dropped as deleted, not dead-lettered
    assert RabbitNames(queue).work_queue in {
        RabbitNames(name).work_queue for name in stores.rabbitmq.names()
    }


async def test_a_mail_enqueued_while_the_queue_is_cleaned_is_delivered_and_stays_in_view(quick):
    settings, stores, queue = quick
    async with open_worker(settings, queue) as worker:
        first = await worker.enqueue(Mail("m-3", None, ("c@d.example",)), b"Subject: old\r\n\r\n")
        async with aclosing(worker.deliveries(4)) as deliveries:
            await (await asyncio.wait_for(anext(deliveries), 15)).complete()
        await asyncio.sleep(6)
        cleaning = asyncio.create_task(
            asyncio.to_thread(clean, settings, queue, "r3", "3s")
        )  # longer than an insert may take
        later = []
        while not cleaning.done():
            later.append(
                (
                    await worker.enqueue(
                        Mail(f"m-{len(later)}", None, ("c@d.example",)), b"Subject: new\r\n\r\n"
                    )
                ).enqueue_id
            )
            await asyncio.sleep(0.1)
        report = await cleaning
        assert report["applied"] == 1
        there = {
            row.enqueue_id
            for table in stores.tables.existing
            for world in table.partitions(queue)
            for row in table.ids(queue, world)
        }
        assert there == set(later)
        assert first.enqueue_id not in there
        browse = stores.tables.browse_starts.get(queue).value
        assert all(
            world.slice_start >= browse
            for table in stores.tables.existing
            for world in table.partitions(queue)
        )


@pytest.fixture
def shared_queue(quick):
    settings, stores, queue = quick
    shared = settings.queue.model_copy(update={"shared": True})
    return settings.model_copy(update={"queue": shared}), stores, queue


def take_all(settings, queue):
    """The queue's messages with their properties, gone from the broker."""
    taken = []
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        while (found := channel.basic_get(RabbitNames(queue).work_queue, auto_ack=True))[0]:
            taken.append(found[1:])
    return taken


def put_back(settings, queue, messages):
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for properties, body in messages:
            channel.basic_publish(RabbitNames(queue).exchange, "", body, properties)


async def test_a_mail_that_was_cleared_after_the_queue_was_seen_empty_is_not_delivered(
    shared_queue,
):
    settings, stores, queue = shared_queue
    async with open_worker(settings, queue) as worker:
        await worker.enqueue(Mail("m-4", None, ("c@d.example",)), b"Subject: back\r\n\r\n")
    messages = await asyncio.to_thread(take_all, settings, queue)
    assert len(messages) == 1
    deadline = time.monotonic() + 60
    while stores.own.queue_samples.get(queue) is None:
        assert time.monotonic() < deadline
        await asyncio.to_thread(
            run_all_in_process,
            RunRequest("queue_size", queue, f"size-{time.monotonic()}"),
            settings,
        )
    put_back(settings, queue, messages)
    view = MailQueue(stores, queue, system_clock)
    assert view.clear() == 1
    await asyncio.sleep(6)  # the management figures come late, and know of the message by then
    report = await asyncio.to_thread(clean, settings, queue, "r5")
    assert (report["applied"], report["marks"]["dropped"]) == (1, 0)
    async with open_worker(settings, queue) as worker, aclosing(worker.deliveries(1)) as deliveries:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(deliveries), 5)


async def test_a_worker_behind_takes_no_slice_for_open_that_a_cleanup_with_a_short_grace_closed(
    own_view,
):
    """A worker starts with a clock that is behind by less than a quarter of the usual grace."""
    own_view.start_at(0)
    dead, partition = own_view.insert(15, dead=True), Partition(own_view.at(15), 0)
    (row,) = own_view.stores.tables.v4.by_ids(own_view.queue, [(partition, [dead])])
    report = await asyncio.to_thread(own_view.clean, grace="60s")
    assert (report["applied"], report["marks"]["dropped"]) == (1, 1)

    def behind():
        return system_clock() - timedelta(seconds=200)

    async with open_worker(own_view.settings, own_view.queue, clock=behind) as worker:
        assert behind() < partition.slice_start + WINDOW
        status = await delivery_status(worker.context, row.item, partition)
    assert status is DeliveryStatus.CLEANED
