"""Levels of delays, and the figures of the benchmark."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.stores.rabbitmq.topology import DELAY_LEVELS
from mailslice.worker.bench import Latency, percentiles
from mailslice.worker.delays import level_for, own_headers


@pytest.mark.parametrize(
    ("seconds", "level"),
    [
        (-5, 1),
        (0.3, 1),
        (1, 1),
        (4.9, 1),
        (5, 5),
        (29.9, 5),
        (30, 30),
        (3599, 600),
        (3600, 3600),
        (86399, 21600),
        (86400, 86400),
        (10**7, 86400),
    ],
)
def test_the_longest_level_that_does_not_overshoot_is_taken(seconds: float, level: int) -> None:
    assert level_for(timedelta(seconds=seconds)) == level


@given(st.floats(1, 40 * 86400))
def test_a_mail_is_never_late_by_a_level_and_goes_round_few_times(seconds: float) -> None:
    remaining, rounds = timedelta(seconds=seconds), 0
    while remaining >= timedelta(seconds=DELAY_LEVELS[0]):
        remaining -= timedelta(seconds=level_for(remaining))
        rounds += 1
    assert timedelta(0) <= remaining < timedelta(seconds=1)
    assert rounds <= 70


def test_a_message_that_is_published_again_keeps_its_place_and_rounds_and_no_death() -> None:
    headers = {
        "x-mailslice-slice": 1,
        "x-mailslice-bucket": 2,
        "x-redrive-count": 3,
        "x-mailslice-token": "t",
        "x-death": [{}],
        "x-first-death-queue": "q",
    }
    assert own_headers(headers) == {
        "x-mailslice-slice": 1,
        "x-mailslice-bucket": 2,
        "x-redrive-count": 3,
    }


def test_what_no_number_of_ours_can_be_is_not_published_again() -> None:
    """A client may have sent anything under our names; pika cannot write some of it, and reads a double as a whole number."""
    assert own_headers(
        {
            "x-redrive-count": 10**300,
            "x-mailslice-slice": "x" * 130_000,
            "x-mailslice-bucket": 1.5,
            "x-mailslice-failures": 2,
        }
    ) == {"x-mailslice-failures": 2}


@pytest.mark.parametrize(
    ("seconds", "latency"),
    [
        ([0.001], Latency(1.0, 1.0, 1.0)),
        ([n / 1000 for n in range(1, 101)], Latency(50.0, 95.0, 99.0)),
        ([0.002, 0.001], Latency(1.0, 2.0, 2.0)),
    ],
)
def test_percentiles_are_of_nearest_rank(seconds: list[float], latency: Latency) -> None:
    assert percentiles(seconds) == latency
