"""Durations as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.model.durations import format_duration, parse_duration
from mailslice.model.errors import BadInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("1h", 3600),
        ("30d", 2_592_000),
        ("2w", 1_209_600),
        ("250ms", 0.25),
        ("1.5h", 5400),
        (" 10 s ", 10),
        ("0s", 0),
        ("0", 0),
        ("PT1H", 3600),
        ("pt1h30m", 5400),
        ("P30D", 2_592_000),
        ("P1DT12H", 129_600),
        ("P2W", 1_209_600),
        ("PT0.5S", 0.5),
    ],
)
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "-0",
        "00",
        "s",
        "-5s",
        "1h30m",
        "PT",
        "P",
        "P1DT",
        "P1M",
        "1 hour",
        "٣s",
        "PT-1H",
        "1e3s",
        "nan",
    ],
)
def test_what_is_no_duration_is_refused_with_its_place_and_what_is_allowed(text):
    with pytest.raises(
        BadInput,
        match=r"--older-than: .*is not a duration; allowed: a number with ms, s, m, h.* or 0$",
    ) as raised:
        parse_duration(text, "--older-than")
    assert repr(text) in str(raised.value)


def test_a_duration_longer_than_any_clock_is_refused():
    with pytest.raises(BadInput, match="longer than any clock"):
        parse_duration("9999999999999w")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3600, "1h"),
        (5400, "90m"),
        (86400, "1d"),
        (61, "61s"),
        (0, "0s"),
        (0.25, "250ms"),
        (2_592_000, "30d"),
    ],
)
def test_durations_are_shown_in_one_unit(seconds, text):
    assert format_duration(timedelta(seconds=seconds)) == text


@given(st.integers(0, 10**12))
def test_what_is_shown_is_read(milliseconds):
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value
