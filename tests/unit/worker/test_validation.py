"""Wrong arguments of the public API are named before anything is done."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mailslice.model.errors import BadInput
from mailslice.worker import mail_of
from mailslice.worker.enqueue.delayed_mails import checked_delay
from mailslice.worker.validation import MAX_PREFETCH, check_content, check_count, check_span


@pytest.mark.parametrize("content", ["text", None, 5, memoryview(b"x"), ["x"]])
def test_content_is_bytes_or_a_file(content: object) -> None:
    with pytest.raises(BadInput, match=f"content: {type(content).__name__} is not allowed"):
        check_content(content)


@pytest.mark.parametrize("content", [b"", bytearray(b"x"), Path("x.eml")])
def test_content_that_is_taken(content: object) -> None:
    check_content(content)


@pytest.mark.parametrize("value", [0, -1, MAX_PREFETCH + 1, 1.5, "16", True, None])
def test_a_prefetch_is_a_number_that_amqp_can_say(value: object) -> None:
    with pytest.raises(BadInput, match=r"prefetch=.*from 1 to 65535"):
        check_count("prefetch", value, MAX_PREFETCH)


def test_a_number_without_an_end() -> None:
    check_count("concurrency", 10**6)
    with pytest.raises(BadInput, match="concurrency=0 is not allowed; a whole number from 1 is"):
        check_count("concurrency", 0)


@pytest.mark.parametrize("value", [5, "5s", 1.0])
def test_seconds_are_no_timedelta(value: Any) -> None:
    with pytest.raises(BadInput, match=r"idle=.*a timedelta is"):
        check_span("idle", value)
    with pytest.raises(BadInput, match="delay="):
        checked_delay(value)


def test_spans_that_are_taken() -> None:
    check_span("idle", None)
    check_span("idle", timedelta(seconds=1))


def test_an_envelope_is_read_from_bytes() -> None:
    wrong: Any = "To: a@b.example\r\n\r\n"
    with pytest.raises(BadInput, match="content: str"):
        mail_of(wrong)
