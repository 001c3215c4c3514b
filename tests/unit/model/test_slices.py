"""Slices and buckets: pure arithmetic, against what James computed."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.model.slices import (
    bucket_of,
    java_hash,
    slice_start,
    slices_between,
    whole_seconds,
)

VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "bucket-vectors.json").read_text())[
    "vectors"
]
HOUR = timedelta(hours=1)
_FIRST, _LAST = datetime(1901, 1, 1), datetime(2300, 1, 1)  # noqa: DTZ001 - as Hypothesis asks
instants = st.datetimes(_FIRST, _LAST, timezones=st.just(UTC))
windows = st.integers(1, 10**6).map(lambda seconds: timedelta(seconds=seconds))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: ascii(vector["name"][:20]))
def test_hash_and_buckets_are_javas(vector):
    assert java_hash(vector["name"]) == vector["javaHash"]
    assert {count: bucket_of(vector["name"], int(count)) for count in vector["bucketId"]} == vector[
        "bucketId"
    ]


@given(st.text())
def test_of_one_bucket_every_name_has_the_first(name):
    assert bucket_of(name, 1) == abs(java_hash(name)) % 1 == 0


@pytest.mark.parametrize(
    ("instant", "window", "start"),
    [
        (
            datetime(2026, 11, 20, 20, 59, 9, 47000, tzinfo=UTC),
            HOUR,
            datetime(2026, 11, 20, 20, tzinfo=UTC),
        ),
        (datetime(2026, 11, 20, 20, tzinfo=UTC), HOUR, datetime(2026, 11, 20, 20, tzinfo=UTC)),
        (datetime(1969, 12, 31, 23, 30, tzinfo=UTC), HOUR, datetime(1969, 12, 31, 23, tzinfo=UTC)),
        (
            datetime(1970, 1, 1, 0, 0, 13, tzinfo=UTC),
            timedelta(seconds=5),
            datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC),
        ),
    ],
)
def test_a_slice_starts_at_a_multiple_of_the_window(instant, window, start):
    assert slice_start(instant, window) == start


@given(instants, windows)
def test_an_instant_lies_in_its_slice(instant, window):
    start = slice_start(instant, window)
    assert start <= instant < start + window
    assert slice_start(start, window) == start


@given(instants, st.integers(1, 1000), st.integers(1, 50))
def test_starts_of_a_window_are_starts_of_any_window_that_divides_it(instant, seconds, times):
    small, large = timedelta(seconds=seconds), timedelta(seconds=seconds * times)
    assert slice_start(slice_start(instant, large), small) == slice_start(instant, large)


def test_slices_between_two_instants_are_all_of_them_and_both_ends():
    first = datetime(2026, 11, 20, 10, 59, tzinfo=UTC)
    assert [start.hour for start in slices_between(first, first + timedelta(minutes=62), HOUR)] == [
        10,
        11,
        12,
    ]
    assert list(slices_between(first, first - HOUR, HOUR)) == []


@pytest.mark.parametrize("window", [timedelta(0), timedelta(seconds=-1), timedelta(seconds=1.5)])
def test_a_window_is_a_positive_whole_number_of_seconds(window):
    with pytest.raises(ValueError, match="not a positive whole number of seconds"):
        whole_seconds(window)
