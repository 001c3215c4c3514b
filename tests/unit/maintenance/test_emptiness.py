"""Two looks at the broker: what is a proof, who waits."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from mailslice.maintenance import drained
from mailslice.maintenance.drained import sample_once, second_pass
from mailslice.model.errors import StoreUnavailable

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def broker(monkeypatch):
    """`looks`: what each look shows, True for empty; an error is raised.

    The clock moves by what is slept.
    """
    kept = []
    own = SimpleNamespace(
        queue_samples=SimpleNamespace(get=lambda _queue: kept[-1] if kept else None)
    )
    found = SimpleNamespace(
        looks=[], now=START, slept=[], kept=kept, stores=SimpleNamespace(own=own, management=None)
    )
    found.clock = lambda: found.now

    def look(_stores, _queue):
        shown = found.looks.pop(0)
        if isinstance(shown, Exception):
            raise shown
        return shown

    def sleep(seconds):
        found.slept.append(seconds)
        found.now += timedelta(seconds=seconds)

    found.sleep = sleep
    monkeypatch.setattr(drained, "shows_no_messages", look)
    return found


def again(broker, first):
    return second_pass(broker.stores, "q", first, broker.clock, sleep=broker.sleep)


def test_a_broker_that_cannot_be_asked_is_not_empty(broker):
    broker.looks = [StoreUnavailable("no answer"), False, True]
    assert [sample_once(broker.stores, "q", broker.clock) for _ in range(3)] == [None, None, START]


def test_two_empty_looks_15_s_apart_are_a_sample_of_the_first(broker):
    broker.looks = [True]
    sample = again(broker, START)
    assert (sample.first_pass, sample.second_pass, broker.slept) == (
        START,
        START + timedelta(seconds=15),
        [15.0],
    )


def test_nobody_waits_when_the_first_look_is_not_empty(broker):
    assert again(broker, None) is None
    assert not any(broker.slept)


def test_a_second_look_that_is_not_empty_is_no_sample(broker):
    broker.looks = [False]
    assert again(broker, START) is None
    assert broker.slept == [15.0]


def test_who_comes_late_waits_no_more(broker):
    broker.now, broker.looks = START + timedelta(minutes=9), [True]
    assert again(broker, START).first_pass == START
    assert not any(broker.slept)
