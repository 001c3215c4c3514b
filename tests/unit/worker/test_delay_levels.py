"""Levels of delays."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from typing import NamedTuple
from uuid import uuid4

import pytest

from mailslice.model.back_off import BackOff
from mailslice.model.delay_levels import DELAY_LEVELS, LONGEST_WAIT, level_for, snapped
from mailslice.worker.enqueue.delayed_mails import LONGEST_DELAY
from mailslice.worker.io.message_copy import own_headers


@pytest.mark.parametrize(
    ("seconds", "level"),
    [
        (-5, 1),
        (0.3, 1),
        (1, 1),
        (4.4, 1),
        (4.6, 5),
        (29.4, 5),
        (29.99, 30),
        (3599.9, 3600),
        (86399.9, 86400),
        (86399.4, 20 * 3600),
        (10**7, 30 * 86400),
    ],
)
def test_the_longest_level_that_remains_but_for_half_a_second_is_taken(
    seconds: float, level: int
) -> None:
    assert level_for(timedelta(seconds=seconds)) == level


class Journey(NamedTuple):
    """How often a mail went through a level, its time in a worker, and how late it was."""

    hops: int
    waited: float
    late: float


def journey(delay: float, chance: random.Random, longest_wait: timedelta) -> Journey:
    """With a moving clock: 5 ms before the first level is chosen, 20 to 40 ms at each expiry."""
    now, hops = 0.005, 0
    while True:
        now += level_for(timedelta(seconds=delay - now)) + chance.uniform(0.02, 0.04)
        hops += 1
        remaining = delay - now
        if remaining <= longest_wait.total_seconds():
            return Journey(hops, max(0.0, remaining), max(0.0, -remaining))


@pytest.mark.parametrize("level", DELAY_LEVELS)
def test_a_delay_that_is_a_level_takes_one_hop_and_no_wait(level: int) -> None:
    taken = journey(level, random.Random(level), LONGEST_WAIT)
    assert (taken.hops, taken.waited) == (1, 0)
    assert taken.late < 0.1


def test_any_delay_takes_at_most_three_hops_and_is_late_by_less_than_a_second() -> None:
    chance = random.Random(12)
    longest = LONGEST_DELAY.total_seconds()
    delays = [
        chance.uniform(0, 1) * 10 ** chance.uniform(0, math.log10(longest)) for _ in range(500)
    ]
    delays += [chance.uniform(1, longest) for _ in range(500)]
    taken = [journey(delay, chance, LONGEST_WAIT) for delay in delays]
    assert max(each.hops for each in taken) == 3
    assert max(each.late for each, delay in zip(taken, delays, strict=True) if delay >= 1) < 0.7


def test_a_worker_in_which_nothing_may_wait_is_late_by_less_than_a_second_too() -> None:
    chance = random.Random(12)
    delays = [chance.uniform(1, LONGEST_DELAY.total_seconds()) for _ in range(500)]
    taken = [journey(delay, chance, timedelta(seconds=1)) for delay in delays]
    assert max(each.hops for each in taken) <= 20
    assert max(each.late for each in taken) < 0.7


@pytest.mark.parametrize(
    ("seconds", "sums"),
    [
        (28.2, {30}),
        (32.9, {31, 35}),
        (63, {61, 65}),
        (3300, {3300}),
        (3890, {3840}),
        (3600.2, {3600}),
        (7.4, {7.4}),
        (0.3, {0.3}),
    ],
)
def test_a_pause_goes_to_the_nearest_sum_of_two_levels_within_an_eighth(
    seconds: float, sums: set[float]
) -> None:
    assert snapped(timedelta(seconds=seconds)).total_seconds() in sums


@pytest.mark.parametrize("failures", range(1, 12))
def test_the_pauses_of_the_default_back_off_never_wait_long_in_a_worker(failures: int) -> None:
    chance = random.Random(failures)
    for _ in range(50):
        pause = snapped(BackOff().pause(failures, chance.uniform(-1, 1)))
        taken = journey(pause.total_seconds(), chance, timedelta(seconds=1))
        assert (taken.waited < 1, taken.hops <= 2) == (True, True)


def test_a_message_that_is_published_again_keeps_its_place_and_rounds_and_no_death() -> None:
    token = str(uuid4())
    headers = {
        "x-mailslice-slice": 1,
        "x-mailslice-bucket": 2,
        "x-redrive-count": 3,
        "x-mailslice-token": token,
        "x-death": [{}],
        "x-first-death-queue": "q",
    }
    assert own_headers(headers) == {
        "x-mailslice-slice": 1,
        "x-mailslice-bucket": 2,
        "x-redrive-count": 3,
        "x-mailslice-token": token,
    }


def test_what_no_number_of_ours_can_be_is_not_published_again() -> None:
    """Clients may send anything under our header names.

    pika cannot write some of it, and reads a double as a whole number.
    """
    assert own_headers(
        {
            "x-redrive-count": 10**300,
            "x-mailslice-slice": "x" * 130_000,
            "x-mailslice-bucket": 1.5,
            "x-mailslice-failures": 2,
            "x-mailslice-token": "x" * 130_000,
        }
    ) == {"x-mailslice-failures": 2}
