from __future__ import annotations

import time
from typing import Any

import pytest

from mailslice.model.errors import BadInput
from mailslice.worker import mail_of, new_mail


def test_a_new_mail_has_a_name_of_its_own_and_the_time() -> None:
    before = time.time_ns() // 1_000_000
    first, second = (new_mail("a@b.example", ["c@d.example", "<e@f.example>"]) for _ in range(2))
    assert first.name != second.name
    assert (first.sender, first.recipients, first.state) == (
        "a@b.example",
        ("c@d.example", "e@f.example"),
        "root",
    )
    assert first.last_updated_ns is not None
    assert first.last_updated_ns % 1_000_000 == 0
    assert before <= first.last_updated_ns // 1_000_000 <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("sender", [None, "<>", ""])
def test_a_report_has_the_null_sender(sender: str | None) -> None:
    assert new_mail(sender, ["c@d.example"]).sender is None


@pytest.mark.parametrize(
    ("sender", "recipients", "words"),
    [
        ("a@b@c", ["c@d.example"], "sender: 'a@b@c'"),
        ("a@b.example", ["c@"], "recipient: 'c@'"),
        ("a@b.example", [], "at least one recipient"),
        ("a@b.example", "c@d.example", "one text; a list"),
        ("a@b.example", [None], "recipient: None is not allowed; a text is"),
        (5, ["c@d.example"], "sender: 5 is not allowed; a text is"),
    ],
)
def test_what_is_no_envelope_is_refused(sender: Any, recipients: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        new_mail(sender, recipients)


@pytest.mark.parametrize("option", ["name", "state"])
def test_a_name_that_is_no_text_is_refused(option: str) -> None:
    """It would be an error of the codec, or a number in James' row."""
    wrong: Any = {option: 5}
    with pytest.raises(BadInput, match=f"{option}: 5 is not allowed; a text is"):
        new_mail("a@b.example", ["c@d.example"], **wrong)


def test_an_envelope_of_headers() -> None:
    mail = mail_of(
        b"From: A <a@b.example>\r\nTo: c@d.example, E <e@f.example>\r\n"
        b"Cc: C@D.example\r\n\r\nhello",
        name="mine",
    )
    assert (mail.name, mail.sender, mail.recipients) == (
        "mine",
        "a@b.example",
        ("c@d.example", "e@f.example"),
    )


def test_headers_that_name_nobody_are_refused() -> None:
    with pytest.raises(BadInput, match="name no recipient"):
        mail_of(b"From: a@b.example\r\n\r\nhello")
