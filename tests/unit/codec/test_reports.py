"""The failure report, read by a parser that is not ours."""

from __future__ import annotations

import email
import email.policy
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

import pytest

from mailslice.codec.reports import Failure, failure_report, in_doubt, report_of
from mailslice.model.errors import BadInput
from mailslice.model.mail import Mail

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
CONTENT = b"From: alice@example.org\r\nSubject: hi\r\nX: \xe9\r\n\r\nsecret body\r\n"
REFUSED = Failure(
    "bob@example.net", "5.1.1", "the next server refused it for good", "550 5.1.1 no such user"
)
UNKNOWN = Failure("carol@example.net", "4.4.2", "nobody knows whether it arrived")


def report(
    *failures: Failure, content: bytes | None = CONTENT, **given: Any
) -> tuple[EmailMessage, bytes]:
    words = {
        "to": "alice@example.org",
        "reporter": "mx.example.org",
        "report_id": "r1",
        "now": NOW,
        **given,
    }
    made = failure_report(content, failures or (REFUSED, UNKNOWN), **words)
    parsed = email.message_from_bytes(made, policy=email.policy.default)
    return parsed, made  # type: ignore[return-value]


def test_it_is_a_report_of_three_parts_that_no_machine_answers() -> None:
    parsed, _ = report()
    assert (parsed.get_content_type(), parsed.get_param("report-type")) == (
        "multipart/report",
        "delivery-status",
    )
    assert [part.get_content_type() for part in parsed.iter_parts()] == [
        "text/plain",
        "message/delivery-status",
        "text/rfc822-headers",
    ]
    assert parsed["Auto-Submitted"] == "auto-replied"
    assert (parsed["To"].addresses[0].addr_spec, parsed["From"].addresses[0].addr_spec) == (
        "alice@example.org",
        "MAILER-DAEMON@mx.example.org",
    )
    assert parsed["Message-ID"] == "<r1@mx.example.org>"
    assert parsed["Date"].datetime == NOW


def test_each_recipient_has_its_block() -> None:
    parsed, _ = report()
    blocks = [dict(block.items()) for block in list(parsed.iter_parts())[1].get_payload()]
    assert blocks == [
        {"Reporting-MTA": "dns; mx.example.org"},
        {
            "Final-Recipient": "rfc822; bob@example.net",
            "Action": "failed",
            "Status": "5.1.1",
            "Diagnostic-Code": "smtp; 550 5.1.1 no such user",
        },
        {"Final-Recipient": "rfc822; carol@example.net", "Action": "failed", "Status": "4.4.2"},
    ]


def test_the_header_of_the_mail_is_in_it_byte_for_byte_and_the_body_is_not() -> None:
    _, made = report()
    assert b"Subject: hi\r\nX: \xe9\r\n" in made
    assert b"secret body" not in made


def test_all_line_ends_are_crlf_whatever_the_mail_has() -> None:
    _, made = report(content=b"A: b\nC: d\r\n\nbody")
    assert made.replace(b"\r\n", b"").count(b"\n") == made.replace(b"\r\n", b"").count(b"\r") == 0
    assert b"A: b\r\nC: d\r\n" in made


def test_a_mail_whose_content_is_lost_is_reported_too() -> None:
    parsed, _ = report(content=None)
    assert list(parsed.iter_parts())[2].get_content() == "The content of the mail is lost.\r\n"


@pytest.mark.parametrize(
    "evil", ["x@y\r\nBcc: all@example.org", "x@y\n\nbody", "x\x00\x1b[2J@y", "a" * 5000 + "@y"]
)
def test_no_address_and_no_answer_of_a_server_adds_a_line(evil: str) -> None:
    parsed, made = report(Failure(evil, "5.0.0", evil, evil), to=evil, reporter="mx")
    assert parsed["Bcc"] is None
    assert not [
        line
        for line in made.split(b"\r\n")
        if line.startswith(b"Bcc:") or b"\x1b" in line or b"\x00" in line
    ]
    assert [part.get_content_type() for part in parsed.iter_parts()] == [
        "text/plain",
        "message/delivery-status",
        "text/rfc822-headers",
    ]
    assert len(list(parsed.iter_parts())[1].get_payload()) == 2


def test_addresses_beyond_ascii_are_sent_as_they_are() -> None:
    parsed, made = report(Failure("用户@例子.example", "5.1.1", "no"), to="jürgen@bücher.example")
    assert "To: <jürgen@bücher.example>\r\n".encode() in made
    assert "Final-Recipient: utf-8; 用户@例子.example\r\n".encode() in made
    assert "<用户@例子.example>: no\r\n".encode() in made
    assert [part.get_content_type() for part in parsed.iter_parts()] == [
        "text/plain",
        "message/delivery-status",
        "text/rfc822-headers",
    ]


def test_words_of_a_server_beyond_ascii_are_for_senders_who_can_read_them() -> None:
    failure = Failure("bob@example.net", "5.1.1", "no", "550 5.1.1 unbekannt: für")
    parsed, made = report(failure)
    assert b"\r\nDiagnostic-Code: smtp; 550 5.1.1 unbekannt: f?r\r\n" in made
    assert "für" in next(iter(parsed.iter_parts())).get_content(), (
        "the part for people says its charset"
    )
    assert (
        "Diagnostic-Code: smtp; 550 5.1.1 unbekannt: für\r\n".encode()
        in report(failure, to="jürgen@bücher.example")[1]
    )


@pytest.mark.parametrize(
    "status", ["5.1", "", "550", "5.1.1\r\nX: y", "9.1.1", "5.1.1111", "٥.1.1"]
)
def test_a_status_that_is_none_is_told_as_the_general_one(status: str) -> None:
    parsed, _ = report(Failure("bob@example.net", status, "no"))
    (_, block) = list(parsed.iter_parts())[1].get_payload()
    assert dict(block.items()) == {
        "Final-Recipient": "rfc822; bob@example.net",
        "Action": "failed",
        "Status": "5.0.0",
    }


def test_a_sender_that_cannot_stand_in_a_header_is_bad_input() -> None:
    with pytest.raises(
        BadInput,
        match=r"mail 'm': no report can be made for it \(\w+Error\); allowed: local@domain",
    ):
        report_of(
            Mail("m", "a@[", ("bob@example.net",)), [REFUSED], CONTENT, reporter="mx", now=NOW
        )


def test_no_line_is_longer_than_a_server_must_take() -> None:
    """998 bytes (RFC 5322 2.1.1)."""
    many = b"To: " + b", ".join(b"recipient%d@example.org" % number for number in range(160))
    long = "\u96ea" * 900
    failures = Failure("bob@example.net", "5.1.1", long, long), Failure("a" * 900, "5.1.1", long)
    for to in ("alice@example.org", "j\u00fcrgen@example.org"):
        parsed, made = report(*failures, content=many + b"\r\n\r\n", to=to, reporter=long)
        assert max(map(len, made.split(b"\r\n"))) <= 998
        assert b"To: recipient0@example.org, recipient1@" in made
        text = next(iter(parsed.iter_parts())).get_content()
        assert "\N{REPLACEMENT CHARACTER}" not in text, "no character is cut in two"


def test_a_boundary_in_the_mail_does_not_end_a_part() -> None:
    parsed, _ = report(content=b"X: 1\r\n--===============1==\r\nY: 2\r\n\r\n")
    assert len(list(parsed.iter_parts())) == 3


def test_a_report_goes_to_the_sender_from_nobody() -> None:
    made = report_of(
        Mail("m", "alice@example.org", ("bob@example.net",)),
        [in_doubt("bob@example.net")],
        CONTENT,
        reporter="mx",
        now=NOW,
    )
    assert made is not None
    envelope, content = made
    assert (envelope.sender, envelope.recipients) == (None, ("alice@example.org",))
    assert (
        b"Final-Recipient: rfc822; bob@example.net\r\nAction: failed\r\nStatus: 4.4.2\r\n"
        in content
    )
    assert b"it is not known whether the mail arrived" in content


@pytest.mark.parametrize("sender", [None, ""])
def test_the_null_sender_gets_no_report(sender: str | None) -> None:
    assert (
        report_of(
            Mail("m", sender, ("bob@example.net",)), [REFUSED], CONTENT, reporter="mx", now=NOW
        )
        is None
    )
