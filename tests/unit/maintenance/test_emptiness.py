"""Two looks at the broker: what is a proof, who waits."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from mailslice.maintenance import drained
from mailslice.maintenance.drained import take_sample
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
    found.after_look = lambda: None
    found.clock = lambda: found.now

    def look(_stores, _queue):
        shown = found.looks.pop(0)
        found.after_look()
        if isinstance(shown, Exception):
            raise shown
        return shown

    def sleep(seconds):
        found.slept.append(seconds)
        found.now += timedelta(seconds=seconds)

    found.sleep = sleep
    monkeypatch.setattr(drained, "shows_no_messages", look)
    return found


def sampled(broker):
    return take_sample(broker.stores, "q", broker.clock, sleep=broker.sleep)


def test_a_broker_that_cannot_be_asked_is_not_empty(broker):
    broker.looks = [StoreUnavailable("no answer"), True, StoreUnavailable("no answer")]
    assert [sampled(broker) for _ in range(2)] == [None, None]
    assert broker.slept == [15.0]


def test_two_empty_looks_15_s_apart_are_a_sample_of_the_first(broker):
    broker.looks = [True, True]
    sample = sampled(broker)
    assert (sample.first_pass, sample.second_pass, broker.slept) == (
        START,
        START + timedelta(seconds=15),
        [15.0],
    )


def test_nobody_waits_when_the_first_look_is_not_empty(broker):
    broker.looks = [False]
    assert sampled(broker) is None
    assert not broker.slept


def test_a_second_look_that_is_not_empty_is_no_sample(broker):
    broker.looks = [True, False]
    assert sampled(broker) is None
    assert broker.slept == [15.0]


@pytest.mark.parametrize(("hours", "is_sample"), [(1, True), (-1, False)])
def test_a_clock_that_is_set_meanwhile_neither_shortens_nor_lengthens_the_wait(
    broker, hours, is_sample
):
    """One that was ahead at the first look would have proved marks that came after it."""
    broker.looks = [True, True]
    broker.after_look = lambda: setattr(broker, "now", broker.now + timedelta(hours=hours))
    sample = sampled(broker)
    assert broker.slept == [15.0]
    assert (sample is not None) is is_sample
    assert sample is None or sample.first_pass == START
