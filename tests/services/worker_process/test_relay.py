"""The relay handler against a real SMTP server on loopback."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from mailslice.model.errors import BadSetting, TakenOver
from mailslice.model.mail import Mail, RecipientHeader
from mailslice.model.settings import Settings
from mailslice.worker.handlers.next_hop import Connection, NextHop
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.io.destination_throttle import BlockingThrottle
from mailslice.worker.outcome import Bounce, Complete, Outcome, Reject, Retry
from mailslice.worker.stages.handler_stage import BlockingStage
from tests.services.worker_process.sink import Sink, certificate, running

A, B = "a@next.example", "b@next.example"
CONTENT = b"Subject: x\r\n\r\nbody\r\n"


@pytest.fixture(params=[False, True], ids=["one by one", "pipelined"])
def sink(request: pytest.FixtureRequest) -> Iterator[Sink]:
    with running(Sink(pipelining=request.param)) as made:
        yield made


def relay(port: int, *, idle_seconds: float = 30.0, **given: Any) -> Relay:
    settings = Settings.model_validate(
        {"relay": {"host": "127.0.0.1", "port": port, "timeout": "5s", **given}}
    )
    return Relay(settings, hop=NextHop(settings.relay, idle_seconds=idle_seconds))


def send(
    sink: Sink,
    content: bytes = CONTENT,
    *,
    sender: str | None = "s@home.example",
    to: tuple[str, ...] = (A, B),
    **mail: Any,
) -> Outcome:
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
def test_the_bytes_arrive_and_only_line_ends_are_made_as_smtp_wants_them(
    sink: Sink, content: bytes, wire: bytes
) -> None:
    assert send(sink, content) == Complete()
    assert [got[2] for got in sink.got] == [wire]


def test_eight_bit_content_is_announced(sink: Sink) -> None:
    send(sink, b"S: x\r\n\r\n\xe9\r\n")
    assert "BODY=8BITMIME" in sink.got[0][3]


def test_unicode_addresses_go_with_smtputf8(sink: Sink) -> None:
    assert send(sink, sender="jürgen@bücher.example", to=("用户@例子.example",)) == Complete()
    sender, recipients, _, options = sink.got[0]
    assert (sender, recipients, "SMTPUTF8" in options) == (
        "jürgen@bücher.example",
        ("用户@例子.example",),
        True,
    )


def test_a_server_without_smtputf8_refuses_only_the_recipients_that_need_it() -> None:
    with running(Sink(), utf8=False) as sink:
        assert send(sink, to=(A, "ü@next.example")) == Retry(recipients=("ü@next.example",))
        assert send(sink, to=("ü@next.example",)) == Reject(
            "the next hop refused all recipients for good: no SMTPUTF8 for 1"
        )
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
        (
            "MAIL",
            "550 5.7.1 never",
            Reject("the next hop refused all recipients for good: 550 for 2"),
        ),
        ("MAIL", "530 5.7.0 AUTH first", Retry(recipients=(A, B), back_off=True)),
        ("DATA", "452 4.3.1 full", Retry(recipients=(A, B), back_off=True)),
        (
            "DATA",
            "554 5.6.0 spam",
            Reject("the next hop refused all recipients for good: 554 for 2"),
        ),
        ("MAIL", "421 4.3.2 closing", Retry(recipients=(A, B), back_off=True)),
    ],
)
def test_a_refusal_of_the_whole_mail_counts_for_every_recipient(
    sink: Sink, where: str, answer: str, outcome: Outcome
) -> None:
    sink.refuse[where] = answer
    assert send(sink) == outcome


def test_too_many_recipients_is_for_later_not_for_good(sink: Sink) -> None:
    sink.refuse[B] = "552 5.5.3 too many recipients"
    assert send(sink) == Retry(recipients=(B,), back_off=True)


def test_more_recipients_than_every_server_takes_are_sent_in_several_transactions(
    sink: Sink,
) -> None:
    all_of_them = tuple(f"r{number}@next.example" for number in range(250))
    assert send(sink, to=all_of_them) == Complete()
    assert [len(got[1]) for got in sink.got] == [50] * 5
    assert tuple(recipient for got in sink.got for recipient in got[1]) == all_of_them
    assert sink.connections == 1


class FiftyAtMost(Sink):
    """Refuses a mail to more than 50 recipients only after its DATA, as Amazon SES does."""

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if len(envelope.rcpt_tos) > 50:
            return "554 Transaction failed: Recipient count exceeds 50."
        return await super().handle_DATA(server, session, envelope)


def test_a_server_that_takes_a_mail_to_fifty_recipients_at_most_gets_it_so() -> None:
    recipients = tuple(f"r{number}@next.example" for number in range(120))
    with running(FiftyAtMost()) as sink:
        assert send(sink, to=recipients) == Complete()
    assert [len(got[1]) for got in sink.got] == [50, 50, 20]


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
    assert send(sink, per_recipient_headers=(RecipientHeader(B, "X-For", "b"),)) == Retry(
        recipients=(B,), back_off=True
    )
    assert [got[1] for got in sink.got] == [(A,)]


def test_what_was_refused_before_the_server_closed_keeps_its_answer(sink: Sink) -> None:
    sink.refuse.update({A: "450 4.2.0 greylisted", B: "421 4.3.2 closing"})
    last = marked(sink, age=OLD, headers=False)[0]
    assert isinstance(last, Reject)
    assert last.reason.endswith("the next hop's last answers: 421 for 1, 450 for 1")


def test_required_starttls_that_is_not_offered_sends_nothing(sink: Sink) -> None:
    outcome = relay(sink.port, starttls=True)(Mail("m", None, (A,)), CONTENT)
    assert (outcome, sink.got) == (Retry(recipients=(A,), back_off=True), [])


def test_mail_goes_through_starttls_to_a_server_that_can_be_verified_and_only_to_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with running(Sink(), tls=context, require_starttls=True) as sink:
        mail = Mail("m", None, (A,))
        refused = relay(sink.port, starttls=True)(mail, CONTENT)
        assert (refused, sink.got) == (Retry(recipients=(A,), back_off=True), [])
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert relay(sink.port, starttls=True)(mail, CONTENT) == Complete()
        assert [got[2] for got in sink.got] == [CONTENT]


def test_no_address_is_logged_above_debug(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mailslice")
    sink.drop_after_rcpt = True
    send(sink)
    text = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("mailslice")
    )
    assert f"next hop 127.0.0.1:{sink.port} failed" in text
    assert "@" not in text


def test_why_the_next_hop_takes_nothing_is_in_the_outcome_and_the_log_without_addresses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="mailslice")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            with listening.accept()[0] as one:
                one.sendall(b"554 5.7.1 192.0.2.7 is listed, write to postmaster@next.example\r\n")
                one.recv(100)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        outcome = relay(listening.getsockname()[1])(Mail("m", None, (A,)), CONTENT)
        thread.join(10)
    assert isinstance(outcome, Retry)
    for text in (outcome.why, caplog.text):
        assert "SMTPConnectError: (554, b'5.7.1 192.0.2.7 is listed, write to ***" in text
        assert "@" not in text


def test_that_starttls_is_not_offered_is_in_the_outcome(sink: Sink) -> None:
    outcome = relay(sink.port, starttls="must")(Mail("m", None, (A,)), CONTENT)
    assert isinstance(outcome, Retry)
    assert "STARTTLS extension not supported by server" in outcome.why


@dataclass
class Marked(BlockingStage):
    """Remembers its marks, and how many mails the server had at each."""

    sink: Sink
    age: timedelta | None = None
    attempt: int = 1
    told: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)

    def sending(self, recipients: Iterable[str] | None = None) -> None:
        self.told.append(("sending", tuple(recipients or ()), len(self.sink.got)))

    def sent(self, recipients: Iterable[str] | None = None) -> None:
        self.told.append(("sent", tuple(recipients or ()), len(self.sink.got)))

    def not_sent(self, recipients: Iterable[str] | None = None) -> None:
        self.told.append(("not sent", tuple(recipients or ()), len(self.sink.got)))


def marked(
    sink: Sink,
    *,
    age: timedelta | None = None,
    sender: str | None = "s@home.example",
    headers: bool = True,
    **given: Any,
) -> tuple[Outcome, Marked]:
    stage = Marked(sink, age)
    own = (RecipientHeader(B, "X", "y"),) if headers else ()
    return relay(sink.port, **given)(
        Mail("m", sender, (A, B), per_recipient_headers=own), CONTENT, stage=stage
    ), stage


def test_each_transaction_is_marked_before_its_data_and_after_its_250(sink: Sink) -> None:
    outcome, stage = marked(sink)
    assert outcome == Complete()
    assert stage.told == [
        ("sending", (A,), 0),
        ("sent", (A,), 1),
        ("sending", (B,), 1),
        ("sent", (B,), 2),
    ]


def test_who_is_refused_at_rcpt_was_never_begun(sink: Sink) -> None:
    sink.refuse[A] = "450 later"
    assert marked(sink)[1].told == [("sending", (B,), 0), ("sent", (B,), 1)]


def test_a_refusal_of_the_data_is_certain(sink: Sink) -> None:
    sink.refuse["DATA"] = "452 full"
    outcome, stage = marked(sink)
    assert (outcome, stage.told) == (
        Retry(recipients=(A, B), back_off=True),
        [("sending", (A,), 0), ("not sent", (A,), 0), ("sending", (B,), 0), ("not sent", (B,), 0)],
    )


def test_only_a_mail_that_was_sent_whole_and_not_answered_is_in_doubt(sink: Sink) -> None:
    sink.drop_at = "answer"
    outcome, stage = marked(sink)
    assert stage.told == [("sending", (A,), 0)]
    assert (outcome, len(sink.got)) == (Retry(recipients=(A, B), back_off=True), 1)


def test_a_transaction_that_ends_each_connection_keeps_no_other_from_its_turn(sink: Sink) -> None:
    sink.refuse[A] = "421 4.3.2 closing"
    mail = Mail("m", None, (A, B), per_recipient_headers=(RecipientHeader(B, "X", "y"),))
    outcomes = [
        relay(sink.port)(mail, CONTENT, stage=Marked(sink, attempt=attempt)) for attempt in (1, 2)
    ]
    assert outcomes == [
        Retry(recipients=(A, B), back_off=True),
        Retry(recipients=(A,), back_off=True),
    ]
    assert [got[1] for got in sink.got] == [(B,)]


def test_a_refused_mark_sends_nothing_and_is_the_workers_business(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(Marked):
        def sending(self, recipients: Iterable[str] | None = None) -> None:
            raise TakenOver("another one has it")

    send, close, closed = relay(sink.port), Connection.close, []
    monkeypatch.setattr(Connection, "close", lambda one: closed.append(close(one)))
    with pytest.raises(TakenOver):
        send(Mail("m", None, (A,)), CONTENT, stage=Refused(sink))
    assert (sink.got, len(closed)) == ([], 1), "the server waits for the mail"
    assert send(Mail("m", None, (A,)), CONTENT) == Complete()


OLD = timedelta(days=5, seconds=1)


def test_a_mail_that_is_too_old_is_given_up_but_not_before_it_was_tried(sink: Sink) -> None:
    assert marked(sink, age=OLD)[0] == Complete()
    sink.refuse.update({A: "450 4.2.0 later", B: "550 5.1.1 never"})
    assert marked(sink, age=timedelta(days=5))[0] == Retry(recipients=(A, B), back_off=True)
    expected = (
        "given up after 5d (MAILSLICE_RELAY_MAX_AGE); "
        "the next hop's last answers: 450 for 1, 550 for 1"
    )
    assert marked(sink, age=OLD)[0] == Reject(expected)
    assert marked(sink, age=timedelta(hours=2), max_age="1h")[0] == Reject(
        expected.replace("5d", "1h")
    )


class Full(BlockingThrottle):
    """Destinations of which some take no more now."""

    def __init__(self, *full: str) -> None:
        super().__init__()
        self._full = full

    @contextmanager
    def entering(self, domains: Collection[str]) -> Iterator[Mapping[str, timedelta]]:
        yield {domain: WAIT for domain in domains if domain in self._full}


WAIT, C = timedelta(seconds=9), "c@full.example"


@pytest.mark.parametrize("served", [(), (A,)])
def test_a_mail_that_is_too_old_and_has_to_wait_for_its_destination_is_not_given_up_unasked(
    sink: Sink, served: tuple[str, ...]
) -> None:
    throttle, outcome = Full("full.example"), Retry(WAIT, recipients=(C,), throttled=True)
    mail = Mail("m", None, (*served, C))
    assert relay(sink.port)(mail, CONTENT, stage=Marked(sink, OLD), throttle=throttle) == outcome
    assert [got[1] for got in sink.got] == ([served] if served else [])


def test_a_mail_that_is_too_old_and_refused_ends_when_no_other_recipient_has_to_wait(
    sink: Sink,
) -> None:
    sink.refuse[A] = "450 later"
    mail, old = Mail("m", None, (A, C)), Marked(sink, OLD)
    waiting = Retry(WAIT, recipients=(A, C), back_off=True, throttled=True)
    assert relay(sink.port)(mail, CONTENT, stage=old, throttle=Full("full.example")) == waiting
    sink.refuse[C] = "451 later"
    assert relay(sink.port)(mail, CONTENT, stage=old, throttle=Full()) == Reject(
        "given up after 5d (MAILSLICE_RELAY_MAX_AGE); "
        "the next hop's last answers: 450 for 1, 451 for 1"
    )


def test_who_was_served_is_not_given_up_with_the_rest(sink: Sink) -> None:
    sink.refuse[B] = "450 later"
    assert marked(sink, age=OLD)[0] == Retry(recipients=(B,))
    assert relay(sink.port)(Mail("m", None, (B,)), CONTENT, stage=Marked(sink, OLD)) == Reject(
        "given up after 5d (MAILSLICE_RELAY_MAX_AGE); the next hop's last answers: 450 for 1"
    )


@pytest.mark.parametrize("give_up", ["dead-letter", "bounce"])
def test_a_mail_that_is_too_old_is_not_given_up_while_the_next_hop_is_not_reached(
    give_up: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        hop = {"host": "127.0.0.1", "port": taken.getsockname()[1], "give_up": give_up}
    settings = {"relay": hop, "worker": {"bounce_queue": "out"}}
    send = Relay(Settings.model_validate(settings))
    old = Marked(Sink(), OLD)
    outcome = send(Mail("m", "s@home.example", (A, B)), CONTENT, stage=old)
    assert outcome == Retry(recipients=(A, B), back_off=True)


@pytest.mark.parametrize(
    ("refuse", "drop_at"), [({"MAIL": "530 5.7.0 AUTH first"}, ""), ({A: "450 later"}, "answer")]
)
def test_nor_while_a_recipient_has_no_answer_or_the_settings_are_wrong(
    refuse: dict[str, str], drop_at: str, sink: Sink
) -> None:
    sink.refuse, sink.drop_at = refuse, drop_at
    assert marked(sink, age=OLD)[0] == Retry(recipients=(A, B), back_off=True)


def test_a_mail_of_unknown_age_is_tried_again(sink: Sink) -> None:
    sink.refuse.update({A: "450 later", B: "450 later"})
    assert marked(sink, age=None)[0] == Retry(recipients=(A, B), back_off=True)


def test_what_is_given_up_is_bounced_where_that_is_set(sink: Sink) -> None:
    sink.refuse.update({A: "550 5.1.1 no such user", B: "554 5.7.1 spam"})
    settings = Settings.model_validate(
        {
            "relay": {"host": "127.0.0.1", "port": sink.port, "timeout": "5s", "give_up": "bounce"},
            "worker": {"bounce_queue": "out"},
        }
    )
    outcome = Relay(settings)(Mail("m", "s@home.example", (A, B)), CONTENT)
    assert isinstance(outcome, Bounce)
    assert [
        (failure.recipient, failure.status, failure.diagnostic) for failure in outcome.failures
    ] == [
        (A, "5.1.1", "550 5.1.1 no such user"),
        (B, "5.7.1", "554 5.7.1 spam"),
    ]


def test_bouncing_without_a_queue_for_reports_is_refused_at_the_start() -> None:
    with pytest.raises(BadSetting, match="MAILSLICE_WORKER_BOUNCE_QUEUE"):
        relay(25, give_up="bounce")
