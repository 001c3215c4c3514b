"""worker_records on a real Cassandra: written whole, aged by Cassandra's clock.

A record is discarded only if its worker has not written since.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import sleep
from uuid import uuid4

import pytest

from mailslice.model.mail import Partition
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import tables_of
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord, WorkerRecords
from tests.contracts.tables import some_queue

pytestmark = pytest.mark.new_keyspaces

NOW = datetime(2026, 11, 20, 12, 30, 1, 234000, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        yield stores


@pytest.fixture(scope="module")
def table(stores, fresh_module):
    return WorkerRecords.created(stores.cassandra, fresh_module.settings)


@pytest.fixture
def queue():
    return some_queue()


def in_flight(**changes):
    mail = InFlightMail(
        uuid4(),
        'name "é" \u202e,[',
        75 * SECOND,
        "loaded",
        1,
        begun=True,
        partition=Partition(NOW.replace(microsecond=0), 3),
        message=b'\x00{"\xff',
    )
    return replace(mail, **changes)


def record(worker="host:1:abc", **changes):
    return replace(WorkerRecord(worker, "host", 1, NOW, SECOND, 1), **changes)


def test_opening_makes_this_table_and_no_other(table, stores, fresh_module):
    assert tables_of(stores.cassandra, fresh_module.settings.own.keyspace) == {"worker_records"}


def test_a_record_is_read_as_it_was_saved(table, queue):
    mails = (
        in_flight(),
        in_flight(
            partition=None,
            message=None,
            begun=False,
            stage="received",
            attempt=7,
            returned=True,
            name="",
        ),
    )
    times = ProcessingTimes({-1: 2, 40: 1})
    table.save_future(
        queue,
        record(
            in_flight=mails,
            done=(uuid4(), uuid4()),
            times=times,
            beat=2**40,
            every=300 * SECOND,
            stage_marks=True,
            settled=9,
            completed=7,
            hops=5,
            undoing=3,
            left_behind=2,
        ),
    ).result()
    (found,) = table.list(queue)
    assert found.in_flight == mails
    assert found.times.counts == times.counts
    assert (found.worker, found.host, found.pid, found.started, found.beat, found.every) == (
        "host:1:abc",
        "host",
        1,
        NOW,
        2**40,
        300 * SECOND,
    )
    assert len(found.done) == 2
    assert found.stage_marks
    assert (found.settled, found.completed, found.hops) == (9, 7, 5)
    assert (found.undoing, found.left_behind) == (3, 2)
    assert found == replace(
        table.get(queue, "host:1:abc"), times=found.times, read_at=found.read_at
    )
    assert table.get(queue, "another") is None
    assert table.list(some_queue()) == []


def test_a_record_is_the_last_one_whole(table, queue):
    table.save_future(
        queue, record(in_flight=(in_flight(),), done=(uuid4(),), times=ProcessingTimes({1: 1}))
    ).result()
    table.save_future(queue, record(beat=2)).result()
    (found,) = table.list(queue)
    assert (found.in_flight, found.done, found.times.total, found.beat) == ((), (), 0, 2)


def test_ages_are_by_cassandras_clock_and_life_by_the_missed_beats(table, queue):
    mail = in_flight(held=10 * SECOND)
    table.save_future(
        queue, record(in_flight=(mail,), every=0.1 * SECOND, started=NOW - timedelta(days=999))
    ).result()
    fresh = table.get(queue, "host:1:abc")
    assert fresh.is_alive
    assert table.alive(queue, "host:1:abc")
    sleep(2.6)
    later = table.get(queue, "host:1:abc")
    assert later.age(mail) - fresh.age(mail) > 2.4 * SECOND
    assert later.since(mail) == fresh.since(mail)
    assert not later.is_alive
    assert not table.alive(queue, "host:1:abc")
    assert not table.alive(queue, "nobody")


def test_marks_of_a_worker_that_has_just_ended_may_still_come(table, queue):
    table.save_future(queue, record(ended=True)).result()
    assert not table.get(queue, "host:1:abc").is_alive
    assert table.alive(queue, "host:1:abc")


def test_a_discarded_record_holds_nothing_and_keeps_what_was_done(table, queue):
    done = (uuid4(),)
    table.save_future(
        queue, record(in_flight=(in_flight(),), done=done, times=ProcessingTimes({4: 4}))
    ).result()
    (dead,) = table.list(queue)
    table.discard(queue, dead)
    (found,) = table.list(queue)
    assert (found.in_flight, found.done, found.times.total, found.heartbeat) == (
        (),
        done,
        4,
        dead.heartbeat,
    )


def test_a_worker_that_spoke_since_is_not_discarded(table, queue):
    """Stopped and continued (SIGSTOP, SIGCONT): what it says now is true again."""
    table.save_future(queue, record(in_flight=(in_flight(),))).result()
    (stopped,) = table.list(queue)
    again = in_flight()
    table.save_future(queue, record(in_flight=(again,), beat=2)).result()
    table.discard(queue, stopped)
    assert table.get(queue, "host:1:abc").in_flight == (again,)


def test_workers_of_a_queue_have_a_row_each(table, queue):
    for worker in ("a", "b", "a"):
        table.save_future(queue, record(worker)).result()
    assert [each.worker for each in table.list(queue)] == ["a", "b"]
    assert queue in set(table.queues())


def test_the_records_of_many_queues_come_by_queue(table):
    queues = [some_queue() for _ in range(45)]
    for queue in queues[::2]:
        for worker in ("b", "a"):
            table.save_future(queue, record(worker, in_flight=(in_flight(),))).result()
    by_queue = table.by_queue(queues)
    assert by_queue.keys() == set(queues[::2])
    (first, second) = by_queue[queues[2]]
    assert [first.worker, second.worker] == ["a", "b"]
    assert first.in_flight == table.get(queues[2], "a").in_flight
    assert table.by_queue([]) == {}
