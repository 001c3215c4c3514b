"""The log for people: text or JSON, with the same ids as the mail events."""

from __future__ import annotations

import json
import logging

from mailslice.model.settings import LogFormat
from mailslice.worker.logs import formatter


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("mailslice.x", logging.INFO, "f", 1, "gave %s up", ("one",), None)
    made.__dict__.update(extra)
    return made


def test_text_is_for_people() -> None:
    line = formatter(LogFormat.TEXT).format(record(enqueue_id="7"))
    assert line.endswith(f"INFO mailslice.x [{record().process}] gave one up")


def test_a_stranger_draws_on_no_terminal_and_writes_no_line_of_the_log() -> None:
    made = record()
    made.args = ("550 \x1b[2J\u202e\n2026 INFO forged",)
    made.exc_info = (RuntimeError, RuntimeError("\x1b]0;title\x07"), None)
    text = formatter(LogFormat.TEXT).format(made)
    first, *trace = text.split("\n")
    assert first.endswith(r"gave 550 \x1b[2J\u202e\n2026 INFO forged up")
    assert trace[-1] == r"RuntimeError: \x1b]0;title\x07"
    assert "\x1b" not in text


def test_a_message_of_a_megabyte_is_cut() -> None:
    made = record()
    made.args = ("A" * 1_000_000,)
    assert len(formatter(LogFormat.TEXT).format(made)) < 10_100


def test_json_has_the_fields_that_were_logged() -> None:
    line = json.loads(formatter(LogFormat.JSON).format(record(enqueue_id="7", action="given_up")))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "mailslice.x",
        "message": "gave one up",
        "enqueueId": "7",
        "action": "given_up",
    }


def test_json_has_the_traceback_in_one_line() -> None:
    made = record()
    try:
        int("no")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    text = formatter(LogFormat.JSON).format(made)
    assert "\n" not in text
    assert "ValueError: invalid" in json.loads(text)["exception"]
