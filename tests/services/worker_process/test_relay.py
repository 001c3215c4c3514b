"""The relay handler against a real SMTP server on loopback."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mailslice.model.mail import Mail, RecipientHeader
from mailslice.model.settings import Settings
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.outcome import Complete, Outcome, Reject, Retry
from tests.services.worker_process.sink import Sink, certificate, running

A, B = "a@next.example", "b@next.example"
CONTENT = b"Subject: x\r\n\r\nbody\r\n"


@pytest.fixture
def sink() -> Iterator[Sink]:
    with running(Sink()) as made:
        yield made


def relay(port: int, **given: Any) -> Relay:
    return Relay(Settings.model_validate({"relay": {"host": "127.0.0.1", "port": port, "timeout": "5s", **given}}))


def send(sink: Sink, content: bytes = CONTENT, *, sender: str | None = "s@home.example", to: tuple[str, ...] = (A, B), **mail: Any) -> Outcome:
    return relay(sink.port)(Mail("m", sender, to, **mail), content)


def test_a_mail_goes_to_all_recipients_in_one_transaction(sink: Sink) -> None:
    assert send(sink) == Complete()
    assert sink.got == [("s@home.example", (A, B), CONTENT, (f"SIZE={len(CONTENT)}",))]


def test_the_null_sender_is_sent_as_such(sink: Sink) -> None:
    assert send(sink, sender=None) == Complete()
    assert sink.got[0][0] == "<>"


@pytest.mark.parametrize(
    ("content", "wire"),
    [
        (b"Subject: x\n\nbare\nlines\n", b"Subject: x\r\n\r\nbare\r\nlines\r\n"),
        (b".first\r\n..second\r\n.\r\n.\r\nlast\r\n", b".first\r\n..second\r\n.\r\n.\r\nlast\r\n"),
        (b"S: x\r\n\r\n\xe9\xff\x00 8-bit\r\n", b"S: x\r\n\r\n\xe9\xff\x00 8-bit\r\n"),
        (b"S: x\r\n\r\nno line end", b"S: x\r\n\r\nno line end\r\n"),
        (b"", b"\r\n"),
        (b"smuggle\n.\nMAIL FROM:<x@y>\r\n", b"smuggle\r\n.\r\nMAIL FROM:<x@y>\r\n"),
    ],
)
def test_the_bytes_arrive_and_only_line_ends_are_made_as_smtp_wants_them(sink: Sink, content: bytes, wire: bytes) -> None:
    assert send(sink, content) == Complete()
    assert [got[2] for got in sink.got] == [wire]


def test_eight_bit_content_is_announced(sink: Sink) -> None:
    send(sink, b"S: x\r\n\r\n\xe9\r\n")
    assert "BODY=8BITMIME" in sink.got[0][3]


def test_unicode_addresses_go_with_smtputf8(sink: Sink) -> None:
    assert send(sink, sender="jürgen@bücher.example", to=("用户@例子.example",)) == Complete()
    sender, recipients, _, options = sink.got[0]
    assert (sender, recipients, "SMTPUTF8" in options) == ("jürgen@bücher.example", ("用户@例子.example",), True)


def test_a_server_without_smtputf8_refuses_only_the_recipients_that_need_it() -> None:
    with running(Sink(), utf8=False) as sink:
        assert send(sink, to=(A, "ü@next.example")) == Retry(recipients=("ü@next.example",))
        assert send(sink, to=("ü@next.example",)) == Reject("the next hop refused all recipients for good: 553 for 1")
        assert [got[1] for got in sink.got] == [(A,)]


def test_a_recipient_refused_for_now_is_tried_later_and_alone(sink: Sink) -> None:
    sink.refuse[B] = "450 4.2.0 greylisted"
    assert send(sink) == Retry(recipients=(B,), back_off=True)
    assert [got[1] for got in sink.got] == [(A,)]


def test_a_recipient_refused_for_good_ends_alone_in_the_dead_letters(sink: Sink) -> None:
    sink.refuse[B] = "550 5.1.1 no such user"
    first = send(sink)
    assert first == Retry(recipients=(B,))
    assert send(sink, to=(B,)) == Reject("the next hop refused all recipients for good: 550 for 1")
    assert [got[1] for got in sink.got] == [(A,)]


@pytest.mark.parametrize(
    ("where", "answer", "outcome"),
    [
        ("MAIL", "451 4.3.0 later", Retry(recipients=(A, B), back_off=True)),
        ("MAIL", "550 5.7.1 never", Reject("the next hop refused all recipients for good: 550 for 2")),
        ("MAIL", "530 5.7.0 AUTH first", Retry(recipients=(A, B), back_off=True)),
        ("DATA", "452 4.3.1 full", Retry(recipients=(A, B), back_off=True)),
        ("DATA", "554 5.6.0 spam", Reject("the next hop refused all recipients for good: 554 for 2")),
        ("MAIL", "421 4.3.2 closing", Retry(recipients=(A, B), back_off=True)),
    ],
)
def test_a_refusal_of_the_whole_mail_counts_for_every_recipient(sink: Sink, where: str, answer: str, outcome: Outcome) -> None:
    sink.refuse[where] = answer
    assert send(sink) == outcome


def test_too_many_recipients_is_for_later_not_for_good(sink: Sink) -> None:
    sink.refuse[B] = "552 5.5.3 too many recipients"
    assert send(sink) == Retry(recipients=(B,), back_off=True)


def test_a_connection_that_breaks_before_the_data_serves_nobody(sink: Sink) -> None:
    sink.drop_after_rcpt = True
    assert send(sink) == Retry(recipients=(A, B), back_off=True)
    assert sink.got == []


def test_a_next_hop_that_is_down_is_for_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert relay(port)(Mail("m", None, (A,)), CONTENT) == Retry(recipients=(A,), back_off=True)


def test_headers_for_one_recipient_are_seen_by_that_one_alone(sink: Sink) -> None:
    assert send(sink, per_recipient_headers=(RecipientHeader(B, "X-For", "only b"),)) == Complete()
    assert sink.got == [
        ("s@home.example", (A,), CONTENT, (f"SIZE={len(CONTENT)}",)),
        ("s@home.example", (B,), b"X-For: only b\r\n" + CONTENT, (f"SIZE={len(CONTENT) + 15}",)),
    ]


def test_of_two_transactions_the_one_that_went_through_is_not_repeated(sink: Sink) -> None:
    sink.refuse[B] = "450 later"
    assert send(sink, per_recipient_headers=(RecipientHeader(B, "X-For", "b"),)) == Retry(recipients=(B,), back_off=True)
    assert [got[1] for got in sink.got] == [(A,)]


def test_required_starttls_that_is_not_offered_sends_nothing(sink: Sink) -> None:
    outcome = relay(sink.port, starttls=True)(Mail("m", None, (A,)), CONTENT)
    assert (outcome, sink.got) == (Retry(recipients=(A,), back_off=True), [])


def test_mail_goes_through_starttls_to_a_server_that_can_be_verified_and_only_to_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with running(Sink(), tls=context, require_starttls=True) as sink:
        send_by = relay(sink.port, starttls=True)
        assert send_by(Mail("m", None, (A,)), CONTENT) == Retry(recipients=(A,), back_off=True)
        assert sink.got == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert send_by(Mail("m", None, (A,)), CONTENT) == Complete()
        assert [got[2] for got in sink.got] == [CONTENT]


def test_no_address_is_logged_above_debug(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mailslice")
    sink.drop_after_rcpt = True
    send(sink)
    text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("mailslice"))
    assert f"next hop 127.0.0.1:{sink.port} failed" in text
    assert "@" not in text
