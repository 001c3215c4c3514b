from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.model.back_off import JITTER, BackOff

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 30), (1, 30), (2, 60), (3, 120), (7, 1920), (8, 3600), (100_000, 3600)],
)
def test_pauses_double_from_thirty_seconds_to_an_hour(failures: int, seconds: int) -> None:
    assert BackOff().pause(failures) == seconds * SECOND


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        (BackOff(10 * SECOND, 1, 60 * SECOND), [10, 10, 10]),
        (BackOff(10 * SECOND, 1.5, 20 * SECOND), [10, 15, 20]),
        (BackOff(10 * SECOND, 100, 60 * SECOND), [10, 60, 60]),
        (BackOff(100 * SECOND, 2, 60 * SECOND), [60, 60, 60]),
    ],
)
def test_base_factor_and_cap_are_what_is_set(policy: BackOff, pauses: list[int]) -> None:
    assert [policy.pause(failures).total_seconds() for failures in (1, 2, 3)] == pauses


@given(st.integers(1, 10**9), st.floats(-1, 1), st.floats(1, 100))
def test_a_pause_is_moved_by_a_tenth_at_most(failures: int, chance: float, factor: float) -> None:
    policy = BackOff(factor=factor)
    plain, moved = policy.pause(failures), policy.pause(failures, chance)
    assert abs(moved - plain) <= plain * JITTER + timedelta(microseconds=1)
    assert timedelta(seconds=27) <= moved <= timedelta(minutes=66)


def test_attempts_are_used_up_by_the_last_one_and_never_when_there_is_no_number() -> None:
    assert [BackOff(attempts=3).used_up(failures) for failures in (0, 1, 2, 3, 4)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert not BackOff(attempts=0).used_up(10**9)
