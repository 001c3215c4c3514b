from __future__ import annotations

from mailslice.worker.health import Liveness, ProcessHealth

FINE = ProcessHealth(connected=True, loop_lag=0.1, in_flight=3)
LOST = ProcessHealth(connected=False, loop_lag=0.1, in_flight=0)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def liveness(processes: int = 1) -> tuple[Liveness, Time]:
    time = Time()
    made = Liveness(processes, time)
    for number in range(processes):
        made.started(number, 100 + number)
    return made, time


def test_a_connected_process_is_alive_and_shows_what_it_said() -> None:
    made, _ = liveness()
    made.beat(0, FINE)
    assert made.verdict() == (
        True,
        [{"process": 0, "pid": 100, "connected": True, "inFlight": 3, "wrong": None}],
    )


def test_a_process_that_says_nothing_for_more_than_fifteen_seconds_hangs() -> None:
    made, time = liveness()
    made.beat(0, FINE)
    time.now += 15
    assert made.verdict()[0]
    time.now += 1
    alive, entries = made.verdict()
    assert (alive, entries[0]["wrong"]) == (False, "hangs: no turn of its event loop for 16 s")


def test_a_process_whose_loop_does_not_turn_hangs_although_it_speaks() -> None:
    made, _ = liveness()
    made.beat(0, ProcessHealth(connected=True, loop_lag=20, in_flight=1))
    assert made.verdict()[1][0]["wrong"] == "hangs: no turn of its event loop for 20 s"


def test_reconnecting_is_alive_for_two_minutes_and_not_longer() -> None:
    made, time = liveness()
    made.beat(0, FINE)
    for _ in range(12):
        time.now += 10
        made.beat(0, LOST)
    assert made.verdict()[0]
    time.now += 10
    made.beat(0, LOST)
    assert made.verdict()[1][0]["wrong"] == "not connected for 130 s"
    made.beat(0, FINE)
    assert made.verdict()[0]


def test_one_bad_process_among_good_ones_is_enough() -> None:
    made, time = liveness(2)
    made.beat(0, FINE)
    made.beat(1, FINE)
    time.now += 20
    made.beat(0, FINE)
    alive, entries = made.verdict()
    assert (alive, [entry["wrong"] is None for entry in entries]) == (False, [True, False])


def test_a_died_process_has_two_minutes_to_come_back() -> None:
    made, time = liveness()
    made.beat(0, FINE)
    made.died(0, 100)
    time.now += 60
    assert made.verdict()[0]
    time.now += 61
    assert not made.verdict()[0]
    assert made.dead_pids == [100]
