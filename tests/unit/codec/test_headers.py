"""Headers that tell where a row is, and times of messages: whatever a client sends, reading them
raises nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mailslice.codec.headers import headers_of, moment, partition_in
from mailslice.model.mail import Partition


def test_a_place_goes_through_the_headers_and_back() -> None:
    partition = Partition(datetime(2026, 11, 21, 10, tzinfo=UTC), 3)
    assert partition_in(headers_of(partition)) == partition
    assert headers_of(None) == {}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-mailslice-slice": 1},
        {"x-mailslice-slice": "1", "x-mailslice-bucket": 0},
        {"x-dead-letter-routing-key": ""},
        {"x-mailslice-slice": 2**62, "x-mailslice-bucket": 0},
        {"x-mailslice-slice": 253_402_300_000_000, "x-mailslice-bucket": 0},
        {"x-mailslice-slice": 1, "x-mailslice-bucket": -1},
        {"x-mailslice-slice": 1, "x-mailslice-bucket": 2**31},
        {"x-mailslice-slice": [1], "x-mailslice-bucket": None},
    ],
)
def test_headers_that_no_row_can_have_name_no_place(headers: dict[str, Any]) -> None:
    assert partition_in(headers) is None


@pytest.mark.parametrize("stamp", [None, "1", 1_795_000_000_000, 2**64 - 1, -(2**62)])
def test_a_timestamp_that_is_no_time_is_none(stamp: object) -> None:
    """Milliseconds where AMQP means seconds, above all."""
    assert moment(stamp) is None


def test_a_timestamp_is_seconds() -> None:
    assert moment(1_795_000_000) == datetime(2026, 11, 18, 11, 6, 40, tzinfo=UTC)
