"""Parameters and answers as James has them."""

import json
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.webadmin import query_params
from mailslice.webadmin.answers import Halt, task_date
from mailslice.webadmin.tasks import Status, Task, TaskType

NOW = datetime(2026, 11, 23, 12, 30, 1, 805_999, UTC)


@pytest.mark.parametrize(
    ("text", "unit", "seconds"),
    [
        ("5", "s", 5),
        ("5", "d", 5 * 86400),
        (" 30 s ", "d", 30),
        ("2msecs", "s", 0.002),
        ("5MIN", "s", 300),
        ("7days", "s", 7 * 86400),
        ("2week", "s", 14 * 86400),
        ("1year", "s", 365.2425 * 86400),
        ("0s", "s", 0),
    ],
)
def test_durations_have_james_units(text, unit, seconds):
    assert query_params.duration(text, unit) == timedelta(seconds=seconds)


@given(st.text(max_size=200))
def test_no_text_breaks_a_parser(text):
    """Whatever comes, it is a value or a 400 with a body of JSON, and it does not hang."""
    began = time.monotonic()
    for parse in (
        query_params.older_than,
        query_params.await_timeout,
        query_params.limit,
        query_params.moment,
        query_params.task_id,
        lambda value: query_params.address(value, "sender"),
        lambda value: query_params.whole_filter(value, "offset"),
        lambda value: query_params.positive(value, "n", 1),
        lambda value: query_params.probability(value, "p", 0.5),
        lambda value: query_params.require_flush("true", value.encode("utf-8", "replace")),
    ):
        refused = None
        try:
            parse(text)
        except Halt as halt:
            refused = halt
        if refused is not None:
            assert refused.status == 400
            assert json.loads(json.dumps(refused.as_json()))["type"] == "InvalidArgument"
    assert time.monotonic() - began < 2


def test_a_task_waits_begins_and_ends_in_james_words():
    task = Task(uuid4(), TaskType.CLEAR, Status.WAITING, NOW, "here")
    assert task.as_json() == {
        "additionalInformation": None,
        "status": "waiting",
        "submittedFrom": "here",
        "executedOn": None,
        "cancelledFrom": None,
        "taskId": str(task.id),
        "submitDate": "2026-11-23T12:30:01.805+0000",
        "type": "clear-mail-queue",
    }
    ended = Task(uuid4(), TaskType.CLEAR, Status.CANCELED, NOW, "here", ended=NOW)
    assert ended.as_json()["canceledDate"] == ended.as_json()["cancelledDate"] == task_date(NOW)
    assert "completedDate" not in ended.as_json()
