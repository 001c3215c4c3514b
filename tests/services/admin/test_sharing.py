"""MAILSLICE_QUEUE_SHARED is agreed on: in the own keyspace and in worker records.

A process that differs is refused.
"""

import asyncio
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr

from mailslice.admin import queues
from mailslice.maintenance.lock import PATIENCE
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_step
from mailslice.model.errors import ConfigurationDiffers, Refused, StoreUnavailable
from mailslice.model.names import RabbitNames
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import tables_of
from mailslice.stores.cassandra.own import WorkerRecord
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.traffic import traffic
from mailslice.view import sharing
from mailslice.worker import open_worker

pytestmark = pytest.mark.new_keyspaces

QUEUE = "agreed"
RECORD = WorkerRecord("w1", "host", 1, datetime(2026, 11, 22, tzinfo=UTC), timedelta(seconds=3), 1)


@pytest.fixture
def world(make_fresh):
    """A deployment of its own; gives its settings with MAILSLICE_QUEUE_SHARED as said, or unset."""
    fresh = make_fresh(new_keyspaces=True)
    with open_stores(fresh.settings) as stores:
        queues.create(stores, QUEUE)

    def settings(shared=None):
        return fresh.but(MAILSLICE_QUEUE_SHARED=shared).settings if shared else fresh.settings

    return settings


def agreed(settings):
    with open_stores(settings) as stores:
        return sharing.agree(stores, QUEUE).queue.shared


def work(settings):
    async def once():
        async with open_worker(settings, QUEUE) as worker:
            return worker.context.settings.queue.shared

    return asyncio.run(once())


def test_where_all_say_shared_nothing_is_stored_and_no_keyspace_is_made(world):
    assert agreed(world())
    assert agreed(world("true"))
    assert work(world())
    with open_stores(world()) as stores:
        assert sharing.stored(stores) is None
        assert not tables_of(stores.cassandra, stores.settings.own.keyspace)


def test_the_first_false_is_stored_and_followed_and_what_differs_refuses(world):
    assert not work(world("false"))
    assert not work(world())
    with pytest.raises(ConfigurationDiffers) as refused:
        work(world("true"))
    assert refused.value.exit_code == 3
    for part in (
        "MAILSLICE_QUEUE_SHARED=true",
        "in the environment",
        "false is stored",
        "mailslice config shared true",
    ):
        assert part in str(refused.value)
    with pytest.raises(ConfigurationDiffers):
        run_step("plan", RunRequest("queue_cleanup", QUEUE, "r1", params={}), world("true"))


def test_a_namesake_in_another_keyspace_of_james_may_not_use_the_own_keyspace(world, make_fresh):
    """Rows there name a queue alone: the other's sample would drop marks, its flush end delays."""
    with open_stores(world()) as stores:
        assert stores.own
    assert work(world())
    other = make_fresh(new_keyspaces=True).but(MAILSLICE_OWN_KEYSPACE=world().own.keyspace).settings
    with open_stores(other) as stores:
        for queue in (QUEUE, "other-name"):
            queues.create(stores, queue)
        assert sharing.agree(stores, "other-name")
    with pytest.raises(ConfigurationDiffers, match=f"not {other.cassandra.keyspace}: give each"):
        work(other)
    with pytest.raises(ConfigurationDiffers):
        run_step("plan", RunRequest("queue_cleanup", QUEUE, "r1", params={}), other)
    assert work(world())


def test_it_is_changed_by_command_while_no_worker_runs_by_the_other_value(world):
    assert not agreed(world("false"))
    with open_stores(world()) as stores:
        stores.own.worker_records.save_future(QUEUE, replace(RECORD, shared=False)).result()
        with pytest.raises(
            ConfigurationDiffers,
            match=r"^MAILSLICE_QUEUE_SHARED=true, but workers that use false were alive within "
            r"the last 150 s, 1 in all: w1 \(queue 'agreed'\)\. Stop them",
        ):
            sharing.change(stores, shared=True)
        assert sharing.stored(stores) is False
        stores.own.worker_records.save_future(QUEUE, replace(RECORD, shared=True)).result()
        assert changed_once_figures_are_known(stores)
        assert not sharing.change(stores, shared=True)
    assert agreed(world("true"))
    with pytest.raises(ConfigurationDiffers):
        agreed(world("false"))


def polls():
    """For 40 s: RabbitMQ has no figures of a new queue at first, and they are 10 s late."""
    end = time.monotonic() + 40
    while time.monotonic() < end:
        yield
        time.sleep(0.5)


def changed_once_figures_are_known(stores):
    for _ in polls():
        with suppress(Refused):
            return sharing.change(stores, shared=True, sleep=lambda _: None)
    return sharing.change(stores, shared=True, sleep=lambda _: None)


def refusal(stores, known, sleep=lambda _: None):
    """The text of the first refusal of `shared true` for which `known(text)` is true."""
    for _ in polls():
        with pytest.raises((Refused, ConfigurationDiffers)) as refused:
            sharing.change(stores, shared=True, sleep=sleep)
        assert refused.value.exit_code == 3
        assert sharing.stored(stores) is False
        if known(str(refused.value)):
            return str(refused.value)
    raise AssertionError(str(refused.value))


def figures_say(stores, name, count):
    depth = traffic(stores.management)[name].depth
    return depth is not None and depth.total == count


@pytest.mark.parametrize("waits_in", ["work_queue", "hop_queue", "park_queue", "delay_queue"])
def test_it_becomes_true_only_once_no_message_waits_anywhere(world, waits_in):
    assert not agreed(world("false"))
    with open_stores(world()) as stores, blocking_connection(stores.settings.rabbitmq) as link:
        stores.rabbitmq.declare_delays(QUEUE, [3600])
        name = getattr(RabbitNames(QUEUE), waits_in)
        name = name(3600) if waits_in == "delay_queue" else name
        channel = link.channel()
        channel.confirm_delivery()
        channel.basic_publish("", name, b"{}")
        channel.basic_publish("", RabbitNames(QUEUE).dead_letter_queue, b"{}")
        assert next((True for _ in polls() if figures_say(stores, name, 1)), False)
        refusal(stores, lambda text: f"{name}: 1; 1 in all" in text)
        channel.queue_purge(name)
        assert changed_once_figures_are_known(stores), "the dead letter may stay"


def test_a_message_that_only_the_second_sample_shows_refuses(world):
    """It was between two queues: 15 s apart, one of the samples shows it."""
    assert not agreed(world("false"))
    with open_stores(world()) as stores, blocking_connection(stores.settings.rabbitmq) as link:
        work_queue, slept = RabbitNames(QUEUE).work_queue, []

        def arrives(seconds):
            slept.append(seconds)
            link.channel().basic_publish("", work_queue, b"{}")
            assert next((True for _ in polls() if stores.management.messages(work_queue)), False)

        assert f"{work_queue}: 1;" in refusal(stores, lambda _: slept, arrives)
        assert slept == [15.0]


def test_an_unreachable_broker_is_not_an_empty_one(world):
    assert not agreed(world("false"))
    rabbitmq = world().rabbitmq.model_copy(
        update={"management_url": SecretStr("http://127.0.0.1:9")}
    )
    with (
        open_stores(world().model_copy(update={"rabbitmq": rabbitmq})) as stores,
        pytest.raises(StoreUnavailable, match="does not answer"),
    ):
        sharing.change(stores, shared=True)
    with open_stores(world()) as stores:
        assert sharing.stored(stores) is False


def test_it_stays_false_while_a_cleanup_runs_and_the_locks_of_others_are_given_back(world):
    assert not agreed(world("false"))
    with open_stores(world()) as stores:
        queues.create(stores, "another")
        locks = stores.own.locks
        locks.acquire(f"queue_cleanup/{QUEUE}", "run-1/process", timedelta(minutes=1))
        text = refusal(stores, lambda text: "is locked" in text)
        assert f"queue_cleanup/{QUEUE} is locked by run run-1," in text
        assert locks.holder(f"queue_cleanup/{QUEUE}") == "run-1/process"
        assert locks.holder("queue_cleanup/another") is None
        locks.release(f"queue_cleanup/{QUEUE}", "run-1/process")
        assert changed_once_figures_are_known(stores)
        assert locks.holder(f"queue_cleanup/{QUEUE}") is None


def test_a_worker_that_begins_between_the_samples_refuses(world):
    assert not agreed(world("false"))
    with open_stores(world()) as stores:
        record, slept = replace(RECORD, shared=False), []

        def begins(seconds):
            slept.append(seconds)
            stores.own.worker_records.save_future(QUEUE, record).result()

        text = refusal(stores, lambda _: slept, begins)
        assert "workers that use false were alive" in text
        assert stores.own.locks.holder(f"queue_cleanup/{QUEUE}") is None


def test_locks_that_cannot_be_given_back_hide_no_result_and_end_before_a_cleanup_gives_up(world):
    assert not agreed(world("false"))
    with open_stores(world()) as stores:
        locks, leases = stores.own.locks, []

        class Unreleased:
            def __getattr__(self, name):
                return getattr(locks, name)

            def acquire(self, name, owner, ttl):
                leases.append(ttl)
                return locks.acquire(name, owner, ttl)

            def release(self, name, owner):
                raise StoreUnavailable("no answer")

        stores.own.locks = Unreleased()
        assert changed_once_figures_are_known(stores)
        assert sharing.stored(stores) is True
        assert leases
        assert max(leases) < PATIENCE


def test_the_first_false_waits_for_workers_that_run_by_the_default(world):
    with open_stores(world()) as stores:
        stores.own.worker_records.save_future(QUEUE, replace(RECORD, shared=True)).result()
        with pytest.raises(
            ConfigurationDiffers,
            match=r"=false \(in the environment\), but .* use true were .* w1 ",
        ):
            agreed(world("false"))
        assert sharing.stored(stores) is None
        stores.own.worker_records.save_future(QUEUE, replace(RECORD, shared=None)).result()
        assert not agreed(world("false"))


async def test_the_first_false_is_refused_beside_an_idle_worker_of_the_default(world):
    """It has had no mail yet: nothing but its first record tells of it."""
    async with open_worker(world("true"), QUEUE) as worker, aclosing(worker.deliveries(1)) as mails:
        waiting = asyncio.ensure_future(anext(mails))
        await asyncio.sleep(5)
        with pytest.raises(ConfigurationDiffers, match=worker.context.worker):
            await asyncio.to_thread(agreed, world("false"))
        waiting.cancel()
        await asyncio.wait({waiting})
    assert not await asyncio.to_thread(agreed, world("false")), "it ended in order"


def test_a_record_of_the_last_day_that_says_otherwise_or_nothing_is_told(world):
    with open_stores(world()) as stores:
        assert not sharing.workers_that_differ(stores, shared=False)
        for name, said in (("right", False), ("other", True), ("earlier", None)):
            stores.own.worker_records.save_future(
                QUEUE, replace(RECORD, worker=name, shared=said)
            ).result()
        found = sharing.workers_that_differ(stores, shared=False, queue=QUEUE)
        assert {record.worker for _, record in found} == {"other", "earlier"}
        assert len(sharing.workers_that_differ(stores, shared=False)) == len(found)


def test_a_worker_writes_into_its_record_what_it_goes_by(world):
    async def once():
        async with open_worker(world("false"), QUEUE) as worker:
            recorder = worker._recorder
            await recorder._write(())

    asyncio.run(once())
    with open_stores(world()) as stores:
        assert [record.shared for record in stores.worker_records(QUEUE)] == [False]
