"""Rows of the view against the rows that a real James wrote."""

import base64
import json
from collections import namedtuple
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from mailslice.codec import message, row
from mailslice.model.mail import Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.slices import bucket_of, slice_start

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(
    path.stem for path in GOLDEN.glob("*.json") if "cassandra" in json.loads(path.read_text())
)
NOW = datetime(2026, 11, 20, 12, 30, 1, 234000, tzinfo=UTC)


def driver_row(case: str) -> dict[str, object]:
    """The golden row as the driver gives it."""
    columns = json.loads((GOLDEN / f"{case}.json").read_text())["cassandra"]["row"]
    return {name: driver_value(column["type"], column["value"]) for name, column in columns.items()}


def driver_value(kind: str, value: object) -> object:
    if value is None:
        return None
    if kind == "timestamp":
        # Naive, as the driver gives it.
        return datetime(1970, 1, 1) + timedelta(milliseconds=value)  # noqa: DTZ001
    if kind == "uuid":
        return UUID(value)
    if kind.startswith("map"):
        return {name: bytes.fromhex(text) for name, text in value.items()}
    if "tuple" in kind:
        return [tuple(header) for header in value]
    return value


def test_golden_rows_are_there():
    assert {"full", "minimal", "v3-minimal"} <= set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_james_row_says_what_the_james_message_says(case):
    golden = json.loads((GOLDEN / f"{case}.json").read_text())
    assert row.from_row(driver_row(case)).item == message.decode(
        base64.b64decode(golden["amqp"]["body_base64"])
    )


@pytest.mark.parametrize("case", CASES)
def test_a_james_row_is_written_as_james_wrote_it(case):
    given = driver_row(case)
    written = row.to_row(row.from_row(given))
    assert tuple(written) == row.COLUMNS
    expected = {
        name: row.epoch_ms(row.instant(value)) if isinstance(value, datetime) else value
        for name, value in given.items()
    }
    assert written == expected


@pytest.mark.parametrize("case", CASES)
def test_a_james_row_lies_where_the_rules_say(case):
    golden = json.loads((GOLDEN / f"{case}.json").read_text())
    found = row.from_row(driver_row(case))
    assert found.partition == Partition(
        slice_start(found.enqueued_time, timedelta(hours=1)),
        bucket_of(found.item.mail.name, golden["bucket_count"]),
    )


def test_rows_are_read_as_mappings_tuples_and_named_tuples():
    given = driver_row("full")
    values = [given[name] for name in row.COLUMNS]
    assert (
        row.from_row(tuple(values))
        == row.from_row(given)
        == row.from_row(namedtuple("Row", row.COLUMNS)(*values))  # noqa: PYI024
    )


def test_null_collections_are_empty():
    given = driver_row("full") | {
        "attributes": None,
        "recipients": None,
        "perrecipientspecificheaders": None,
    }
    mail = row.from_row(given).item.mail
    assert (dict(mail.attributes), mail.recipients, mail.per_recipient_headers) == ({}, (), ())


def test_a_row_of_nothing_but_its_key_is_read():
    partition = Partition(datetime(2026, 11, 20, 12, tzinfo=UTC), 0)
    key = {
        "queuename": "q",
        "timerangestart": datetime(2026, 11, 20, 12),  # noqa: DTZ001
        "bucketid": 0,
        "enqueueid": UUID(int=1),
    }
    found = row.from_row(dict.fromkeys(row.COLUMNS) | key)
    assert found == ViewRow(
        QueueName("q"),
        partition,
        partition.slice_start,
        QueuedMail(
            UUID(int=1), Mail("", None, (), None, remote_addr=None, remote_host=None), "", ""
        ),
    )


@pytest.mark.parametrize("instant", [NOW, NOW.replace(year=1903), datetime(1970, 1, 1, tzinfo=UTC)])
def test_milliseconds_there_and_back(instant):
    assert row.instant(row.epoch_ms(instant)) == instant


def test_milliseconds_are_floored_before_1970_too():
    assert row.epoch_ms(datetime(1969, 12, 31, 23, 59, 59, 999_900, tzinfo=UTC)) == -1
