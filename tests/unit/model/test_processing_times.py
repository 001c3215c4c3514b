"""The histogram of processing times: quantiles at most a fifth too long, sums, and no end of
counting.
"""

import random

import pytest

from mailslice.model.processing_times import ProcessingTimes


def counted(*seconds):
    times = ProcessingTimes()
    for each in seconds:
        times.add(each)
    return times


def test_nothing_counted_has_no_quantile():
    assert ProcessingTimes().quantile(0.99) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.001, 0.5, 1.0, 59.9, 86400.0, 1e9])
def test_a_quantile_is_never_too_short_and_at_most_a_fifth_too_long(seconds):
    assert (
        max(seconds, 0.001)
        <= counted(seconds).quantile(0.99) * (1 + 1e-9)
        <= max(seconds, 0.001) * 1.2
    )


def test_one_hung_mail_of_a_thousand_does_not_move_the_p99():
    times = counted(*([0.01] * 999), 3600.0)
    assert times.quantile(0.99) < 0.013
    assert times.quantile(1.0) >= 3600


def test_the_p99_of_random_times_is_that_of_their_sorted_list():
    drawn = [random.Random(7).lognormvariate(0, 2) for _ in range(5000)]
    found = counted(*drawn).quantile(0.99)
    exact = sorted(drawn)[4949]
    assert exact <= found <= exact * 1.2


def test_sums_are_as_if_counted_together():
    left, right = counted(0.1, 0.2), counted(0.2, 5.0)
    left.merge(right)
    assert left.counts == counted(0.1, 0.2, 0.2, 5.0).counts
    assert left.total == 4
    assert ProcessingTimes(dict(left.counts)).quantile(0.5) == left.quantile(0.5)


def test_old_counts_fade_when_there_are_very_many():
    times = counted(*([0.001] * 150_000))
    assert times.total < 100_001
    for _ in range(60_000):
        times.add(10.0)
    assert times.quantile(0.5) >= 10.0
