from __future__ import annotations

import os
import re
import smtplib
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec.reports import Failure
from mailslice.model.errors import BadSetting
from mailslice.model.mail import Mail, RecipientHeader
from mailslice.model.settings import RelaySettings, Settings, StartTls
from mailslice.worker.handlers import next_hop, relay
from mailslice.worker.handlers.next_hop import NextHop
from mailslice.worker.handlers.relay import outcome_of, transactions
from mailslice.worker.handlers.smtp_dialogue import BEGIN_WITHIN, Timeouts, Transaction
from mailslice.worker.handlers.smtp_refusals import Refusals
from mailslice.worker.handlers.smtp_wire import PIECE, Body, data, header_block, is_sendable
from mailslice.worker.outcome import Complete, Outcome, Reject, Retry

A, B, C = "a@x", "b@x", "c@x"
MAIL = Mail("m", "s@x", (A, B, C))


def refusals(**codes: int) -> Refusals:
    made = Refusals()
    for name, code in codes.items():
        made.add((f"{name}@x",), code)
    return made


@pytest.mark.parametrize(
    ("codes", "outcome"),
    [
        ({}, Complete()),
        ({"a": 450}, Retry(recipients=(A,), back_off=True)),
        ({"a": 0, "b": 0, "c": 0}, Retry(recipients=(A, B, C), back_off=True)),
        ({"b": 550}, Retry(recipients=(B,))),
        ({"a": 451, "b": 550}, Retry(recipients=(A, B), back_off=True)),
        ({"a": 451, "b": 550, "c": 550}, Retry(recipients=(A, B, C), back_off=True)),
        (
            {"a": 550, "b": 550, "c": 553},
            Reject("the next hop refused all recipients for good: 550 for 2, 553 for 1"),
        ),
        ({"a": 530, "b": 530, "c": 530}, Retry(recipients=(A, B, C), back_off=True)),
    ],
)
def test_those_who_remain_decide(codes: dict[str, int], outcome: object) -> None:
    assert outcome_of(MAIL, refusals(**codes)) == outcome


def test_why_is_what_the_server_said_without_addresses() -> None:
    refused = Refusals(accepted="250 2.0.0 queued as 4711")
    refused.add((A,), 451, "4.7.1 <a@x>: Greylisted,\n try later")
    refused.add((B,), 0, "ConnectionRefusedError")
    outcome = outcome_of(MAIL, refused)
    assert isinstance(outcome, Retry)
    assert set(outcome.why.split("; ")) == {
        "451 4.7.1 <***>: Greylisted, try later (for 1)",
        "no answer ConnectionRefusedError (for 1)",
    }
    assert outcome.answer == "250 2.0.0 queued as 4711"
    taken = outcome_of(MAIL, Refusals(accepted="250 yes"))
    assert isinstance(taken, Complete)
    assert taken.answer == "250 yes"


WAIT = timedelta(seconds=7)


@pytest.mark.parametrize(
    ("codes", "held", "outcome"),
    [
        ({}, {B}, Retry(after=WAIT, recipients=(B,), throttled=True)),
        ({"a": 550}, {B, C}, Retry(after=WAIT, recipients=(A, B, C), throttled=True)),
        ({"a": 450}, {C}, Retry(after=WAIT, recipients=(A, C), back_off=True, throttled=True)),
    ],
)
def test_who_waits_for_a_destination_remains_and_that_is_no_failed_attempt(
    codes: dict[str, int], held: set[str], outcome: object
) -> None:
    assert outcome_of(MAIL, refusals(**codes), held, WAIT) == outcome


def test_a_mail_without_recipients_is_rejected_not_lost_in_silence() -> None:
    assert outcome_of(Mail("m", "s@x", ()), Refusals()) == Reject("the mail has no recipient")


def test_a_refusal_for_good_is_not_forgotten_when_the_connection_breaks_afterwards() -> None:
    refused = refusals(a=550)
    refused.add((A, B), 0)
    assert (refused.for_good, refused.for_now) == ({A: 550}, {B: 0})


def test_recipients_with_own_headers_get_transactions_of_their_own() -> None:
    special = RecipientHeader(B, "X-For", "b")
    mail = Mail(
        "m", None, (A, B, C), per_recipient_headers=(special, RecipientHeader("nobody@x", "X", "y"))
    )
    assert list(transactions(mail)) == [Transaction((A, C)), Transaction((B,), (special,))]


def test_headers_find_their_recipient_as_james_compares_addresses() -> None:
    special = RecipientHeader("BOB@x", "X-For", "bob")
    assert list(transactions(Mail("m", None, (A, "Bob@X"), per_recipient_headers=(special,)))) == [
        Transaction((A,)),
        Transaction(("Bob@X",), (special,)),
    ]
    other = RecipientHeader("weiss@x", "X-For", "weiss")
    assert list(transactions(Mail("m", None, ("weiß@x",), per_recipient_headers=(other,)))) == [
        Transaction(("weiß@x",))
    ]


def test_a_recipient_named_twice_is_sent_to_once() -> None:
    assert list(transactions(Mail("m", None, (A, A)))) == [Transaction((A,))]


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (b"", b"\r\n.\r\n"),
        (b"a\nb", b"a\r\nb\r\n.\r\n"),
        (b"a\rb", b"a\r\nb\r\n.\r\n"),
        (b"a\r\nb\r\n", b"a\r\nb\r\n.\r\n"),
        (b"\n\r\n\r", b"\r\n\r\n\r\n.\r\n"),
        (b"\r\r\n", b"\r\n\r\n.\r\n"),
        (b"\xff\n", b"\xff\r\n.\r\n"),
        (b".\n", b"..\r\n.\r\n"),
        (b"a\r.b\n..\r\n", b"a\r\n..b\r\n...\r\n.\r\n"),
        (b"a.\r\nb", b"a.\r\nb\r\n.\r\n"),
    ],
)
def test_line_ends_become_crlf_and_the_end_is_one_dot_that_no_line_of_it_can_be(
    content: bytes, sent: bytes
) -> None:
    assert b"".join(data(b"", content)) == sent


_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_AROUND = st.binary(max_size=8) | st.text("\r\n.a", max_size=8).map(str.encode)


@given(
    head=st.sampled_from([b"", b".X: y\r\n"]),
    before=_AROUND,
    gap=st.integers(-9, 9),
    after=_AROUND,
)
def test_pieces_and_size_are_those_of_the_whole(
    head: bytes, before: bytes, gap: int, after: bytes
) -> None:
    """Around the borders of pieces (64 KiB) and of counting (1 MiB), as by expressions over all."""
    for border in (PIECE, 1 << 20):
        content = before.ljust(border + gap, b"x") + after + b"\n.end"
        wire = _BARE.sub(b"\r\n", head + content)
        assert Body.of(content).size == len(wire) - len(head)
        assert b"".join(data(head, content)) == re.sub(rb"(?m)^\.", b"..", wire) + b"\r\n.\r\n"


def test_a_mail_of_25_mb_with_bare_line_feeds_adds_less_than_a_megabyte() -> None:
    content = b"a line of a mail as a Unix disk has it, seventy bytes long or nearly so\n" * 350_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        size = Body.of(content).size
        sent = sum(len(piece) for piece in data(b"X-For: a\r\n", content))
        added = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert (len(content) > 25_000_000, sent) == (True, size + len(b"X-For: a\r\n.\r\n"))
    assert added < 1 << 20


def test_header_lines_cannot_be_broken_out_of() -> None:
    headers = [
        RecipientHeader(A, "X-A", "one\r\nBcc: evil@x"),
        RecipientHeader(A, "Bad Name", "x"),
        RecipientHeader(A, "X-Ü", "x"),
        RecipientHeader(A, "X-B", "é"),
    ]
    assert header_block(headers) == b"X-A: one Bcc: evil@x\r\nX-B: =?utf-8?b?w6k=?=\r\n"


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("a@b", True),
        ("a@b> SIZE=1", False),
        ("a@b\r\nDATA", False),
        ("dé@exämple", True),
        ('"a>b <c"@d', True),
        (r'"a\">b"@c', True),
        ('"a" >b@c', False),
        ('"a>b"@c> SIZE=1', False),
        ('"a>b', False),
        ("a\x00@b", False),
    ],
)
def test_an_address_cannot_end_its_command(address: str, *, good: bool) -> None:
    assert is_sendable(address) is good


def relaying(
    monkeypatch: pytest.MonkeyPatch,
    mail: Mail,
    *,
    begin_within: float = BEGIN_WITHIN,
    accepted: str = "",
    **given: Any,
) -> tuple[Outcome, list[tuple[float, float]]]:
    """What becomes of the mail at a server that accepts all, and each transaction's time-outs."""
    given_patience: list[tuple[float, float]] = []

    def sent(*_: Any, timeouts: Timeouts, refused: Refusals, **__: Any) -> None:
        refused.accepted = accepted
        given_patience.append((timeouts.step, timeouts.answer))

    monkeypatch.setattr(NextHop, "connection", lambda _, **__: smtplib.SMTP())
    monkeypatch.setattr(NextHop, "release", lambda *_: None)
    monkeypatch.setattr(relay, "send", sent)
    settings = Settings.model_validate({"relay": given})
    return relay.Relay(settings, begin_within=begin_within)(mail, b""), given_patience


@pytest.mark.parametrize(
    ("given_", "patience"),
    [
        ({}, (60, 480)),
        ({"timeout": "20m"}, (1200, 1200)),
        ({"answer_timeout": "20m"}, (60, 1200)),
        ({"timeout": "5s", "answer_timeout": "2s"}, (5, 5)),
    ],
)
def test_the_answer_to_a_mail_has_minutes_and_never_less_than_a_command(
    given_: dict[str, str], patience: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert relaying(monkeypatch, MAIL, **given_) == (Complete(), [patience])


@pytest.mark.parametrize("accepted", ["250 ok", ""])
def test_transactions_for_which_there_is_no_time_are_left_for_later(
    accepted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = replace(
        MAIL, per_recipient_headers=(RecipientHeader(B, "X", "b"), RecipientHeader(C, "X", "c"))
    )
    outcome, patience = relaying(monkeypatch, mail, begin_within=-1.0, accepted=accepted)
    assert (outcome, len(patience)) == (Retry(recipients=(B, C), back_off=not accepted), 1)


def test_a_report_has_the_servers_words_and_its_status() -> None:
    refused = Refusals()
    refused.add((A,), 550, "5.1.1 no such user\nhere")
    refused.add((B,), 554, "spam")
    refused.add((C,), 451, "4.7.1 greylisted")
    said = [
        (failure.recipient, failure.status, failure.diagnostic)
        for failure in map(refused.failure, (A, B, C))
    ]
    assert said == [
        (A, "5.1.1", "550 5.1.1 no such user here"),
        (B, "5.0.0", "554 spam"),
        (C, "4.4.7", "451 4.7.1 greylisted"),
    ]
    refused.add((C,), 0)
    assert refused.failure(C) == Failure(
        C, "4.4.7", "it could not be delivered for too long, and is given up", None
    )


def test_a_certificate_that_is_renewed_is_used_and_half_a_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text("first")
    made: list[object] = []

    def tls(_: RelaySettings) -> object:
        if authorities.read_text() == "half":
            raise BadSetting("MAILSLICE_RELAY_TLS_CA cannot be loaded")
        made.append(object())
        return made[-1]

    monkeypatch.setattr(next_hop, "tls_of", tls)
    hop = NextHop(RelaySettings(starttls=StartTls.VERIFIED, tls_ca=authorities))
    assert hop.tls.context() is hop.tls.context() is made[0]
    for number, (text, current) in enumerate((("half", 0), ("second", 1)), start=1):
        authorities.write_text(text)
        os.utime(authorities, ns=(number, number))
        assert hop.tls.context() is made[current]
    assert len(made) == 2
