from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from mailslice.worker.health import Answer, Liveness, ProcessHealth

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


def wrong(answer: Answer) -> list[Any]:
    status, _, body = answer
    told = [process["wrong"] for process in json.loads(body)["processes"]]
    assert status == (503 if any(told) else 200)
    return told


def test_a_connected_process_is_alive_and_shows_what_it_said() -> None:
    made, _ = liveness()
    made.beat(0, FINE)
    process = {"process": 0, "pid": 100, "connected": True, "inFlight": 3, "wrong": None}
    assert json.loads(made.livez()[2]) == {"live": True, "processes": [process]}
    assert json.loads(made.readyz()[2]) == {"ready": True, "processes": [process]}


def test_a_process_that_says_nothing_for_more_than_fifteen_seconds_hangs() -> None:
    made, time = liveness()
    made.beat(0, FINE)
    time.now += 15
    assert wrong(made.livez()) == [None]
    time.now += 1
    assert wrong(made.livez()) == ["hangs: no turn of its event loop for 16 s"]


def test_a_process_whose_loop_does_not_turn_hangs_although_it_speaks() -> None:
    made, _ = liveness()
    made.beat(0, ProcessHealth(connected=True, loop_lag=20, in_flight=1))
    assert wrong(made.livez()) == ["hangs: no turn of its event loop for 20 s"]
    assert wrong(made.readyz()) == ["hangs: no turn of its event loop for 20 s"]


def test_a_store_that_is_away_for_hours_leaves_a_process_alive_and_not_ready() -> None:
    made, time = liveness()
    made.beat(0, FINE)
    for _ in range(1000):
        time.now += 10
        made.beat(0, LOST)
    assert wrong(made.livez()) == [None]
    assert wrong(made.readyz()) == ["does not reach RabbitMQ"]
    made.beat(0, FINE)
    assert wrong(made.readyz()) == [None]


def test_without_holds_that_could_be_read_the_broker_is_not_blamed() -> None:
    """A worker connects to RabbitMQ when it has read them."""
    made, _ = liveness()
    made.beat(0, replace(LOST, holds_known=False))
    assert wrong(made.readyz()) == ["does not reach Cassandra (its holds could not be read)"]
    made.beat(0, replace(LOST, holds_known=False, reaches_cassandra=False))
    assert wrong(made.readyz()) == ["does not reach Cassandra (its holds could not be read)"]


def test_a_process_that_beats_without_health_is_alive_and_not_ready() -> None:
    made, time = liveness()
    for _ in range(20):
        time.now += 10
        made.beat(0, None)
    assert (wrong(made.livez()), wrong(made.readyz())) == ([None], ["not running yet"])


def test_a_process_is_not_ready_before_it_has_spoken() -> None:
    made, _ = liveness()
    assert (wrong(made.livez()), wrong(made.readyz())) == ([None], ["not running yet"])


def test_one_bad_process_among_good_ones_is_enough() -> None:
    made, time = liveness(2)
    made.beat(0, FINE)
    made.beat(1, FINE)
    time.now += 20
    made.beat(0, FINE)
    first, second = wrong(made.livez())
    assert (first, second is None) == (None, False)


def test_a_died_process_has_two_minutes_to_come_back() -> None:
    made, time = liveness()
    made.beat(0, FINE)
    made.died(0)
    time.now += 120
    assert wrong(made.livez()) == [None]
    time.now += 1
    assert wrong(made.livez()) == ["not running for 121 s"]
    made.started(0, 101)
    assert wrong(made.livez()) == [None]
