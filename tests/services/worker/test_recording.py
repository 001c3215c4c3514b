"""The worker's own record, as a worker writes it: what is in it and when, and that no store's
absence, nor the record itself, costs a mail.
"""

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import pytest

from mailslice.codec import message
from mailslice.model.errors import StoreUnavailable
from mailslice.stores.cassandra.ddl import tables_of
from mailslice.stores.cassandra.own import WorkerRecords
from mailslice.worker import open_worker
from tests.contracts.tables import some_queue
from tests.services.worker.conftest import at, mail

CONTENT = b"A: b\r\n\r\nbody"


@pytest.fixture
def recorded(fresh_module):
    for world in at(fresh_module.but(MAILSLICE_WORKER_RECORD_EVERY="200ms").settings, some_queue()):
        WorkerRecords.created(world.stores.cassandra, world.settings)
        yield world


async def until(what, seconds=30):
    deadline = time.monotonic() + seconds
    while not (found := await asyncio.to_thread(what)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    return found


def record(world, worker):
    """The worker's record, None before it has written one."""
    return WorkerRecords(world.stores.cassandra, world.settings.own.keyspace).get(
        world.queue, worker
    )


def listed(worker):
    """What its next record will say is in flight."""
    return worker._recorder._listed()


async def test_what_is_in_hand_what_waits_and_what_is_done_is_in_the_record(recorded):
    async with open_worker(recorded.settings, recorded.queue) as worker:
        for number in range(4):
            await worker.enqueue(mail(f"m-{number}"), CONTENT)
        name = worker.context.worker
        async with aclosing(worker.deliveries(8)) as deliveries:
            first, second = await anext(deliveries), await anext(deliveries)
            await first.complete()
            found = await until(
                lambda: (
                    (seen := record(recorded, name))
                    and len(seen.in_flight) == 3
                    and seen.in_flight[0].message
                    and seen
                )
            )
            begun, *waiting = found.in_flight
            listed = (begun, *sorted(waiting, key=lambda each: each.name))
            names = {f"m-{number}" for number in range(4)}
            names -= {delivery.item.mail.name for delivery in (first, second)}
            assert [(each.name, each.begun, each.stage, each.returned) for each in listed] == [
                (second.item.mail.name, True, "loaded", False),
                *((name, False, "received", False) for name in sorted(names)),
            ]
            assert message.decode(found.in_flight[0].message) == second.item
            assert found.in_flight[0].partition == recorded.rows()[0].partition
            assert found.in_flight[0].held >= timedelta(seconds=1)
            assert found.done == (first.item.enqueue_id,)
            assert (found.times.total, found.is_alive) == (1, True)
            await second.retry()
        await until(lambda: not record(recorded, name).in_flight)
    last = record(recorded, name)
    assert (last.in_flight, last.times.total) == ((), 2)


async def test_a_mail_whose_connection_is_gone_is_the_brokers_until_it_is_adopted_here(recorded):
    async with open_worker(recorded.settings, recorded.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(8)) as deliveries:
            held = await anext(deliveries)
            coming = asyncio.ensure_future(anext(deliveries))
            held.message.link.connection.close()
            assert not held.message.link.is_open
            assert [each.returned for each in listed(worker)] == [True]
            await until(lambda: not held.lease.is_lost)
            assert [(each.enqueue_id, each.begun, each.returned) for each in listed(worker)] == [
                (held.item.enqueue_id, True, False)
            ]
            await held.complete()
            coming.cancel()
            await asyncio.wait({coming})
        assert recorded.live() == []


async def test_who_was_served_before_is_not_in_the_record_nor_set_aside_with_the_others(recorded):
    """A retry that was cut off has narrowed the row alone: the message names all of them."""
    async with open_worker(recorded.settings, recorded.queue) as worker:
        await worker.enqueue(mail(recipients=("a@b.example", "c@b.example")), CONTENT)
        async with aclosing(worker.deliveries(8)) as deliveries:
            first, (row,) = await anext(deliveries), recorded.rows()
            left = replace(row.item, mail=replace(row.item.mail, recipients=("c@b.example",)))
            recorded.stores.tables.v4.replace_future(replace(row, item=left)).result()
            await first.requeue()
            held = await asyncio.wait_for(anext(deliveries), 30)
            assert held.item == left
            await asyncio.sleep(1.1)
            (in_flight,) = listed(worker)
            assert message.decode(in_flight.message) == left
            await held.complete()


async def test_records_that_cannot_be_written_are_skipped_and_mails_go_on(recorded, monkeypatch):
    real, tried = WorkerRecords.save_future, []

    def away(self, queue, written):
        tried.append(written.beat)
        if len(tried) < 4:
            raise StoreUnavailable("Cassandra at 127.0.0.1:1 does not answer")
        return real(self, queue, written)

    monkeypatch.setattr(WorkerRecords, "save_future", away)
    async with open_worker(recorded.settings, recorded.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(8)) as deliveries:
            held = await anext(deliveries)
            await until(lambda: len(tried) >= 2)
            await held.complete()
            await worker.enqueue(mail("m-2"), CONTENT)
            await (await anext(deliveries)).complete()
            await worker.enqueue(mail("m-3"), CONTENT)
            held = await anext(deliveries)
            await until(
                lambda: (seen := record(recorded, worker.context.worker)) and seen.in_flight
            )
            await held.complete()
    assert recorded.live() == []


async def test_a_fault_of_the_record_is_no_fault_of_the_worker_and_told_once_a_minute(
    recorded, monkeypatch
):
    asked = []
    saving = WorkerRecords.save_future

    def failing(table, queue, record):
        if record.in_flight:
            asked.append(1)
            raise ZeroDivisionError
        return saving(table, queue, record)

    monkeypatch.setattr(WorkerRecords, "save_future", failing)
    async with open_worker(recorded.settings, recorded.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(8)) as deliveries:
            held = await anext(deliveries)
            await asyncio.sleep(2.5)
            await held.complete()
    assert recorded.live() == []
    assert len(asked) == 1


@pytest.mark.new_keyspaces
async def test_no_record_is_written_where_the_setting_says_so(fresh):
    for world in at(fresh.but(MAILSLICE_WORKER_RECORD_EVERY="0s").settings):
        async with open_worker(world.settings, world.queue) as worker:
            await worker.enqueue(mail(), CONTENT)
            async with aclosing(worker.deliveries(8)) as deliveries:
                held = await anext(deliveries)
                await asyncio.sleep(1.5)
                await held.complete()
        assert WorkerRecords.TABLE not in tables_of(
            world.stores.cassandra, world.settings.own.keyspace
        )


async def test_a_rejected_mail_that_was_closed_meanwhile_is_no_dead_letter(recorded):
    async with open_worker(recorded.settings, recorded.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(8)) as deliveries:
            held = await anext(deliveries)
            await asyncio.to_thread(
                recorded.stores.tables.deleted.mark_many, recorded.queue, [held.item.enqueue_id]
            )
            await held.reject("too late")
    assert [
        recorded.ready(name)
        for name in (recorded.names.work_queue, recorded.names.dead_letter_queue)
    ] == [0, 0]
