"""How hard a run may lean on a store."""

import pickle

import pytest

from mailslice.maintenance.rate_limit import Throttle


class Time:
    def __init__(self):
        self.now, self.slept = 100.0, 0.0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def time():
    return Time()


def seconds_for(time, throttle, count, work=0.0):
    began = time.now
    for _ in range(count):
        throttle.take()
        time.now += work
    return time.now - began


@pytest.mark.parametrize(
    ("rate", "intensity", "expected"), [(100, 1.0, 10.0), (100, 0.5, 20.0), (1000, 0.1, 10.0)]
)
def test_so_many_operations_a_second_and_no_more(time, rate, intensity, expected):
    assert seconds_for(
        time, Throttle(rate, intensity, time.clock, time.sleep), 1000
    ) == pytest.approx(expected, rel=0.05)


def test_what_takes_longer_than_its_turn_never_waits(time):
    throttle = Throttle(100, 1.0, time.clock, time.sleep)
    seconds_for(time, throttle, 100, work=0.02)
    assert time.slept == 0


def test_a_pause_is_no_credit_for_a_burst(time):
    throttle = Throttle(100, 1.0, time.clock, time.sleep)
    throttle.take()
    time.now += 3600
    assert seconds_for(time, throttle, 1000) == pytest.approx(10, abs=0.3)


def test_a_batch_counts_as_what_is_in_it(time):
    throttle = Throttle(1000, 1.0, time.clock, time.sleep)
    began = time.now
    for _ in range(10):
        throttle.take(1000)
    assert time.now - began == pytest.approx(9, abs=0.3)


def test_without_a_rate_the_intensity_is_the_share_of_the_time(time):
    throttle = Throttle(None, 0.25, time.clock, time.sleep)
    assert seconds_for(time, throttle, 101, work=0.1) == pytest.approx(40, rel=0.05)


def test_no_limit_never_sleeps(time):
    throttle = Throttle(None, 1.0, time.clock, time.sleep)
    assert throttle.free
    seconds_for(time, throttle, 1000)
    assert time.slept == 0


def test_shares_let_through_together_what_one_does(time):
    assert Throttle(100).share(4).per_second == 25
    assert Throttle(None, 0.5).share(4) == Throttle(None, 0.5)


def test_a_task_of_spark_can_take_one_along():
    throttle = pickle.loads(pickle.dumps(Throttle(100, 0.5)))
    throttle.take()
    assert (throttle.per_second, throttle.intensity) == (100, 0.5)
