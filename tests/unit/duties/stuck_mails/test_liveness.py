"""Who lives and what is stuck, by the workers' records.

Pure, with the interleavings of a scan beside workers that live, hang, die and stop.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from mailslice.maintenance.liveness import WorkerLiveness, lock_timeout, observe, stuck_mails
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores.cassandra.own.worker_records import InFlightMail, WorkerRecord

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
ID = UUID(int=7)


def held(seconds=0.0, **changes):
    return replace(InFlightMail(uuid4(), "m", seconds * SECOND, "loaded", 1, begun=True), **changes)


def worker(name="w", *mails, beat=5, silent=0.0, every=3.0, **changes):
    record = WorkerRecord(
        name,
        "h",
        1,
        NOW,
        every * SECOND,
        beat,
        tuple(mails),
        heartbeat=NOW - silent * SECOND,
        read_at=NOW,
    )
    return replace(record, **changes)


class Records:
    """The table over time: `later` gives the records after so many seconds."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.slept = 0.0

    def read(self):
        return self.looks[0] if len(self.looks) == 1 else self.looks.pop(0)

    def sleep(self, seconds):
        self.slept += seconds


def seen(*looks):
    records = Records(*looks)
    found = observe(records.read, records.sleep)
    return found, records.slept


def test_a_worker_that_speaks_again_is_alive():
    first, second = worker("w", held(5)), worker("w", held(6), beat=6)
    found, slept = seen([first], [first], [second])
    assert (found.alive, found.dead, found.silent) == ((second,), (), ())
    assert 0 < slept <= 3


def test_a_worker_that_was_killed_a_moment_ago_is_waited_for_until_it_is_dead():
    mail = held(500)
    looks = [[worker("w", mail, silent=seconds)] for seconds in (1, 5, 10, 13.9, 14.5)]
    found, _ = seen(*looks)
    assert (found.alive, [record.worker for record in found.dead]) == ((), ["w"])
    assert stuck_mails(found, SECOND) == []


def test_a_worker_that_is_long_silent_is_dead_at_once():
    found, slept = seen([worker("w", held(500), silent=60)])
    assert ([record.worker for record in found.dead], slept) == (["w"], 0)


def test_a_worker_that_neither_speaks_nor_dies_is_silent_and_nothing_is_done():
    """As when Cassandra refuses its records: the wait ends."""
    found, slept = seen([worker("w", held(500), silent=1)])
    assert ([record.worker for record in found.silent], found.alive, found.dead) == (["w"], (), ())
    assert slept < 25


def test_a_stopped_worker_that_goes_on_is_alive_again():
    mail = held(500)
    found, _ = seen([worker("w", mail, silent=13)], [worker("w", mail, beat=6)])
    assert [record.worker for record in found.alive] == ["w"]


def test_workers_that_hold_nothing_are_not_waited_for():
    found, slept = seen([worker("idle"), worker("long gone", silent=9999)])
    assert (found.alive, found.dead, slept) == ((), (), 0)


def test_a_worker_with_mails_is_dead_when_an_idle_one_is_not_and_is_alive_by_a_new_beat_alone():
    mail = held(500)
    found, slept = seen([worker("w", mail, silent=14.5), worker("idle", silent=62)])
    assert ([one.worker for one in found.dead], found.alive, slept) == (["w"], (), 0)
    assert [one.is_alive for one in found.all] == [False, True]


def test_one_that_ended_while_it_was_looked_at_holds_nothing():
    found, _ = seen([worker("w", held(5))], [worker("w", beat=6)])
    assert (found.alive, found.dead, found.silent) == ((), (), ())


def test_a_beat_before_this_look_proves_nothing_however_young_it_is():
    """The plan saw beat 5. The worker wrote beat 6, and was killed."""
    looks = [
        [worker("w", held(500), beat=6, silent=seconds)] for seconds in (0.1, 3, 6, 9, 12, 14.5)
    ]
    found, slept = seen(*looks)
    assert (found.alive, [record.worker for record in found.dead]) == ((), ["w"])
    assert slept > 0


def test_a_worker_that_speaks_once_and_dies_while_another_is_waited_for_is_dead():
    mail, other = held(500), held(5)
    looks = [
        [worker("w", mail, beat=beat, silent=silent), worker("slow", other, every=60, silent=10)]
        for beat, silent in ((5, 1), (6, 0), (6, 7), (6, 14.5))
    ]
    looks[-1][1] = worker("slow", other, every=60, beat=6)
    found, _ = seen(*looks)
    assert [record.worker for record in found.alive] == ["slow"]
    assert [record.worker for record in found.dead] == ["w"]


def test_only_what_a_handler_has_for_too_long_is_stuck():
    hung = held(601)
    mails = [hung, held(599), held(9999, begun=False, stage="received"), held(9999, returned=True)]
    found = WorkerLiveness((worker("w", *mails),), (), (), ())
    assert [each.mail for each in stuck_mails(found, 600 * SECOND)] == [hung]
    assert len(found.in_flight) == 3


def test_a_mail_whose_handler_has_ended_is_not_stuck_while_a_store_does_not_take_its_outcome():
    """A broker in alarm: the mail would be set aside, though its handler does not hang."""
    settling, hung = held(9999, stage="settling"), held(9999)
    found = WorkerLiveness((worker("w", settling, hung),), (), (), ())
    assert [each.mail for each in stuck_mails(found, MINUTE)] == [hung]
    older = held(9999, enqueue_id=ID)
    newer = replace(older, held=601 * SECOND, stage="settling")
    found = WorkerLiveness((worker("a", older), worker("b", newer)), (), (), ())
    assert stuck_mails(found, MINUTE) == [], "the newest holder settles it"
    dead = observe(lambda: [worker("w", settling, silent=99)], lambda _: None).dead
    assert [record.in_flight for record in dead] == [(settling,)], "but not when its worker is gone"


def test_the_silence_since_the_record_counts():
    mail = held(599)
    assert stuck_mails(WorkerLiveness((worker("w", mail, silent=2),), (), (), ()), 600 * SECOND)


def test_of_two_holders_the_newest_counts():
    """The first one's connection was cut without its knowing.

    Another has the mail, and is at it.
    """
    old, new = held(9999, enqueue_id=ID), held(5, enqueue_id=ID)
    found = WorkerLiveness((worker("a", old), worker("b", new)), (), (), ())
    assert stuck_mails(found, MINUTE) == []
    found = WorkerLiveness(
        (worker("a", old), worker("b", replace(new, held=90 * SECOND))), (), (), ()
    )
    assert [each.record.worker for each in stuck_mails(found, MINUTE)] == ["b"]


def test_a_mail_that_waits_elsewhere_again_is_not_stuck():
    old, waits = held(9999, enqueue_id=ID), held(5, enqueue_id=ID, begun=False)
    assert (
        stuck_mails(WorkerLiveness((worker("a", old), worker("b", waits)), (), (), ()), MINUTE)
        == []
    )


def test_the_oldest_comes_first():
    first, second, third = held(700), held(900), held(800)
    found = stuck_mails(
        WorkerLiveness((worker("a", first, second), worker("b", third)), (), (), ()), 600 * SECOND
    )
    assert [each.mail for each in found] == [second, third, first]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([], 10 * MINUTE), ([0.01] * 100, 10 * MINUTE), ([120.0] * 100, 20 * MINUTE)],
)
def test_the_lock_timeout_is_ten_times_the_p99_and_at_least_ten_minutes(seconds, expected):
    times = ProcessingTimes()
    for each in seconds:
        times.add(each)
    found = lock_timeout(times, factor=10, at_least=10 * MINUTE)
    assert expected <= found <= expected * 1.2
    assert found == expected or seconds


def test_times_of_all_workers_are_one():
    slow, quick = ProcessingTimes({10: 1}), ProcessingTimes({1: 99})
    found = WorkerLiveness(
        (), (), (), (worker("a", times=slow), worker("b", times=quick), worker("c", times=None))
    )
    assert (found.times.total, dict(found.times.counts)) == (100, {10: 1, 1: 99})
