"""Events of James' event store, both spellings."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec import events
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.errors import Refused
from mailslice.model.settings import BlobStrategy

GOLDEN = Path(__file__).parents[2] / "golden"
DEFAULT = ViewConfiguration(timedelta(hours=1), 1, 1000)


def golden_event(name: str) -> str:
    return json.loads((GOLDEN / name).read_text())["eventStore"][0]["event"]["value"]


def event(window: str) -> str:
    return events.encode(DEFAULT, 0).replace("3600.000000000", window)


def test_james_38s_event_comes_back_byte_for_byte():
    assert events.encode(events.decode(golden_event("tables.json")), 0) == golden_event(
        "tables.json"
    )


@pytest.mark.parametrize("name", ["tables.json", "v3-tables.json"])
def test_both_james_wrote_the_default_configuration(name):
    assert events.decode(golden_event(name)) == DEFAULT


@pytest.mark.parametrize(
    ("window", "seconds"),
    [
        ("3600", 3600),
        ("3600.0", 3600),
        ("3.6E3", 3600),
        ('"PT1H"', 3600),
        ('"PT1H30M"', 5400),
        ('"PT10S"', 10),
        ('"P1D"', 86400),
    ],
)
def test_every_spelling_of_a_window_is_read(window, seconds):
    assert events.decode(event(window)).slice_window == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not JSON"),
        ("{}", "its type is None"),
        (events.encode(DEFAULT, 0).replace('"bucketCount":1,', ""), "bucketCount is missing"),
        (
            events.encode(DEFAULT, 0).replace('"bucketCount":1', '"bucketCount":true'),
            "not a whole number",
        ),
        (events.encode(DEFAULT, 0).replace('"bucketCount":1', '"bucketCount":0'), "at least 1"),
        (event("0"), "not a positive number"),
        (event("-5"), "not a positive number"),
        (event("1e300"), "not a positive number"),
        (event("1.5"), "whole number of seconds"),
        (event("1.0000000001"), "whole number of seconds"),
        (event('"one hour"'), "is not a duration"),
        (event("null"), "not a positive number"),
    ],
)
def test_an_event_that_cannot_be_read_is_refused_with_a_reason(text, why):
    with pytest.raises(Refused, match=why) as raised:
        events.decode(text)
    assert "CassandraMailQueueViewConfiguration" in str(raised.value)


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 1000))
def test_what_is_written_is_read(seconds, buckets, pace, event_id):
    configuration = ViewConfiguration(timedelta(seconds=seconds), buckets, pace)
    assert events.decode(events.encode(configuration, event_id)) == configuration
    assert json.loads(events.encode(configuration, event_id))["eventId"] == event_id


def test_the_storage_strategy_is_read():
    assert events.decode_strategy('{"storageStrategy":"PASSTHROUGH"}') is BlobStrategy.PASSTHROUGH
    with pytest.raises(Refused, match="storageStrategy is 'OTHER'"):
        events.decode_strategy('{"storageStrategy":"OTHER"}')
