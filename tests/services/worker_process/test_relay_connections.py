"""How the relay connects: one connection for many mails, TLS, AUTH. Real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from mailslice.bench.relay import server_process
from mailslice.model.errors import BadSetting
from mailslice.model.mail import Mail, RecipientHeader
from mailslice.worker.handlers.next_hop import Connection
from mailslice.worker.outcome import Complete, Reject, Retry
from mailslice.worker.stages.handler_stage import BlockingStage
from tests.services.worker_process.sink import Sink, Watching, certificate, running
from tests.services.worker_process.test_relay import CONTENT, A, B, relay

MAIL = Mail("m", "s@home.example", (A,))
LATER = Retry(recipients=(A,), back_off=True)


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_tls(cert: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*cert)
    return context


@pytest.fixture(params=[False, True], ids=["one by one", "pipelined"])
def pipelining(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@dataclass
class Closing(Sink):
    """Ends the connection after each mail, with or without a word."""

    word: bytes = b""

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        answer = await super().handle_DATA(server, session, envelope)
        server.loop.call_later(0.1, self._close, server)
        return answer

    def _close(self, server: SMTP) -> None:
        if server.transport is not None:
            server.transport.write(self.word)
            server.transport.close()


@dataclass
class Limited(Sink):
    """Answers 421 to the second MAIL of a connection."""

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if getattr(session, "mails", 0):
            server.loop.call_later(0.05, server.transport.close)
            return "421 4.7.0 one mail a connection"
        session.mails = 1
        return await super().handle_MAIL(server, session, envelope, address, options)


@dataclass
class Last(Sink):
    """Gives `answer` to a whole mail, and closes."""

    answer: str = ""

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        await super().handle_DATA(server, session, envelope)
        server.loop.call_soon(server.transport.close)
        return self.answer


BAD = tuple(f"bad{number}@next.example" for number in range(40))
GOOD = tuple(f"good{number}@next.example" for number in range(5))


@dataclass
class HardLimit(Sink):
    """Ends a connection with `word` after 20 refused recipients (smtpd_hard_error_limit)."""

    word: str = "421 4.7.0 sink Error: too many errors\r\n"
    code: str = "550 5.1.1 no such user"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if not address.startswith("bad"):
            return await super().handle_RCPT(server, session, envelope, address, options)
        session.errors = getattr(session, "errors", 0) + 1
        if session.errors == 20:
            server.transport.write(f"{self.code}\r\n{self.word}".encode())
            server.transport.close()
            await asyncio.Event().wait()  # what else is in the flight is not read
        return self.code


@pytest.mark.parametrize("word", [HardLimit.word, ""])
@pytest.mark.parametrize(
    ("code", "back_off"), [("550 5.1.1 no such user", False), ("450 4.1.2 no domain", True)]
)
def test_refusals_after_which_the_server_closes_do_not_starve_the_others(
    word: str, code: str, *, back_off: bool, pipelining: bool
) -> None:
    bad = BAD[:20]
    with running(HardLimit(pipelining=pipelining, word=word, code=code)) as sink:
        send = relay(sink.port)
        outcome = send(Mail("m", None, (*bad, *GOOD)), CONTENT)
        assert outcome == Retry(recipients=bad, back_off=back_off)
        assert ([got[1] for got in sink.got], sink.connections) == ([GOOD], 2)


def test_refusals_alone_end_although_the_server_closes_after_each_twenty(
    *, pipelining: bool
) -> None:
    with running(HardLimit(pipelining=pipelining)) as sink:
        assert relay(sink.port)(Mail("m", None, BAD), CONTENT) == Reject(
            "the next hop refused all recipients for good: 550 for 40"
        )
        late = relay(sink.port)(Mail("m", None, (*BAD[:5], *GOOD, *BAD[5:])), CONTENT)
        assert late == Retry(recipients=BAD)
    assert [got[1] for got in sink.got] == [GOOD]


@pytest.mark.parametrize("answer", ["421 4.3.2 closing", ""])
def test_a_server_that_closes_after_the_last_byte_does_not_get_the_mail_twice(
    answer: str, *, pipelining: bool
) -> None:
    with running(Last(pipelining=pipelining, answer=answer)) as sink:
        sink.refuse[A] = "550 5.1.1 no such user"
        outcome = relay(sink.port)(Mail("m", None, (A, B)), CONTENT)
        assert outcome == Retry(recipients=(A, B), back_off=True)
        assert ([got[1] for got in sink.got], sink.connections) == ([(B,)], 1)


def test_many_mails_go_on_one_connection_and_a_refused_one_does_not_end_it(
    *, pipelining: bool
) -> None:
    with running(Sink(pipelining=pipelining)) as sink:
        send = relay(sink.port)
        sink.refuse[B] = "550 no such user"
        outcomes = [send(MAIL, CONTENT), send(Mail("m", None, (B,)), CONTENT), send(MAIL, CONTENT)]
    assert [type(outcome) for outcome in outcomes] == [Complete, Reject, Complete]
    assert (sink.connections, len(sink.got)) == (1, 2)


@pytest.mark.parametrize(
    ("machine", "greets_as"), [("mx.home.example", "mx.home.example"), ("c0ffee", "[127.0.0.9]")]
)
def test_a_machine_without_a_domain_greets_with_its_address(
    machine: str, greets_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: machine)
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.0.9")
    with running(Sink()) as sink:
        assert relay(sink.port)(MAIL, CONTENT) == Complete()
    assert sink.greeted == [greets_as]


def test_a_connection_ends_after_its_mails() -> None:
    with running(Sink()) as sink:
        send = relay(sink.port, mails_per_connection=2)
        for _ in range(5):
            assert send(MAIL, CONTENT) == Complete()
    assert (sink.connections, len(sink.got)) == (3, 5)


def test_also_within_one_mail(*, pipelining: bool) -> None:
    to = tuple(f"r{number}@next.example" for number in range(250))
    with running(Sink(pipelining=pipelining)) as sink:
        send = relay(sink.port, mails_per_connection=2)
        assert send(Mail("m", None, to), CONTENT) == Complete()
        assert (sink.connections, [len(got[1]) for got in sink.got]) == (3, [50] * 5)
        assert send(MAIL, CONTENT) == Complete()
    assert sink.connections == 3, "the fifth left room for one more"


def test_an_idle_connection_is_closed() -> None:
    with running(Sink()) as sink:
        send = relay(sink.port, idle_seconds=0.2)
        send(MAIL, CONTENT)
        ((server,),) = [send._hop._idle]
        deadline = time.monotonic() + 5
        while server.is_open:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert send(MAIL, CONTENT) == Complete()
    assert sink.connections == 2


def test_a_mail_that_was_sent_is_not_sent_again_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with running(Sink()) as sink:
        send = relay(sink.port, idle_seconds=0.2)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Timer, "start", full)
            assert [send(MAIL, CONTENT) for _ in range(3)] == [Complete()] * 3
            two = Mail("m", None, (A, B), per_recipient_headers=(RecipientHeader(B, "X", "y"),))
            assert send(two, CONTENT) == Retry(recipients=(B,)), "at once, for A was served"
        assert send(MAIL, CONTENT) == Complete()
        deadline = time.monotonic() + 5
        while send._hop._idle:
            assert time.monotonic() < deadline, "it is closed as soon as a thread can be started"
            time.sleep(0.05)
    assert len(sink.got) == 5


@dataclass
class Leaving(Closing):
    """Takes one mail; then it is away."""

    async def handle_EHLO(
        self,
        server: SMTP,
        session: Session,
        envelope: Envelope,
        hostname: str,
        responses: list[str],
    ) -> list[str]:
        if self.got:
            self._close(server)
        return await super().handle_EHLO(server, session, envelope, hostname, responses)


def test_a_server_that_leaves_within_a_mail_is_a_failed_attempt_for_the_rest() -> None:
    two = Mail("m", None, (A, B), per_recipient_headers=(RecipientHeader(B, "X", "y"),))
    with running(Leaving()) as sink:
        outcome = relay(sink.port, mails_per_connection=1)(two, CONTENT)
    assert outcome == Retry(recipients=(B,), back_off=True)
    assert [got[1] for got in sink.got] == [(A,)]


@pytest.mark.parametrize("word", [b"", b"421 4.4.2 idle for too long\r\n"])
def test_a_connection_that_the_server_ended_between_two_mails_costs_no_attempt(
    word: bytes, *, pipelining: bool
) -> None:
    with running(Closing(pipelining=pipelining, word=word)) as sink:
        send = relay(sink.port)
        for _ in range(3):
            assert send(MAIL, CONTENT) == Complete()
            time.sleep(0.3)
    assert (sink.connections, len(sink.got)) == (3, 3)


@dataclass
class Brief(Closing):
    """Ends its first connection soon after EHLO."""

    async def handle_EHLO(
        self,
        server: SMTP,
        session: Session,
        envelope: Envelope,
        hostname: str,
        responses: list[str],
    ) -> list[str]:
        if not self.greeted:
            server.loop.call_later(0.1, self._close, server)
        return await super().handle_EHLO(server, session, envelope, hostname, responses)


def test_nor_does_one_that_carried_no_mail_before(*, pipelining: bool) -> None:
    with running(Brief(pipelining=pipelining)) as sink:
        send = relay(sink.port)
        assert isinstance(send(replace(MAIL, recipients=("<a@x",)), CONTENT), Reject)
        time.sleep(0.3)
        assert send(MAIL, CONTENT) == Complete()


def test_421_to_the_next_mail_of_a_connection_costs_no_attempt(*, pipelining: bool) -> None:
    with running(Limited(pipelining=pipelining)) as sink:
        send = relay(sink.port)
        two = Mail("m", None, (A, B), per_recipient_headers=(RecipientHeader(B, "X", "y"),))
        assert [send(MAIL, CONTENT), send(two, CONTENT)] == [Complete(), Complete()]
    assert (sink.connections, len(sink.got)) == (3, 3)


def test_replies_that_nobody_read_are_no_answers_to_the_next_mail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(Sink(pipelining=True)) as sink:
        send = relay(sink.port)
        sink.refuse[B] = "550 no such user"
        monkeypatch.setattr(Connection, "reply", _no_memory)
        lost = Mail("m", None, (B,))
        assert send(lost, CONTENT) == Retry(recipients=(B,), back_off=True)
        monkeypatch.undo()
        assert send(MAIL, CONTENT) == Complete()
    assert (sink.connections, len(sink.got)) == (2, 1)


def _no_memory(*_given: object) -> None:
    raise MemoryError


def test_a_server_that_is_gone_for_good_is_one_failure() -> None:
    with running(Sink()) as sink:
        send = relay(sink.port)
        assert send(MAIL, CONTENT) == Complete()
    assert send(MAIL, CONTENT) == LATER


@pytest.mark.parametrize("headers", [(), (RecipientHeader(A, "X-For", "a"),)])
def test_a_mail_of_25_mb_with_bare_line_feeds_adds_less_than_8_mb(
    headers: tuple[RecipientHeader, ...],
) -> None:
    """Over a real socket, with a time-out on it; the server is another process."""
    content = b"a line of a mail as a Unix disk has it, seventy bytes long or nearly so\n" * 350_000
    assert len(content) > 25_000_000
    with server_process(0) as (_, (port, _with_pipelining)):
        send = relay(port)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            outcome = send(Mail("m", None, (A,), per_recipient_headers=headers), content)
            added = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert outcome == Complete()
    assert added < 8 << 20


def test_goodbye_is_not_waited_for() -> None:
    class Slow(Sink):
        async def handle_QUIT(self, _server: SMTP, _session: Session, _envelope: Envelope) -> str:
            await asyncio.sleep(10)
            return "221 at last"

    with running(Slow()) as sink:
        began = time.monotonic()
        assert relay(sink.port, mails_per_connection=1)(MAIL, CONTENT) == Complete()
        assert time.monotonic() - began < 9


def test_threads_share_no_connection() -> None:
    with running(Sink()) as sink:
        send = relay(sink.port)
        outcomes = []
        threads = [
            threading.Thread(target=lambda: outcomes.append(send(MAIL, CONTENT))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert (outcomes, len(sink.got)) == ([Complete()] * 8, 8)
        assert sink.connections <= 8


def test_when_the_worker_ends_an_answer_is_waited_for_and_nothing_else_is_begun() -> None:
    stopping, outcomes = threading.Event(), []
    mail = Mail("m", None, (A, B), per_recipient_headers=(RecipientHeader(B, "X", "y"),))
    with running(Watching()) as sink:
        send = relay(sink.port)
        thread = threading.Thread(
            target=lambda: outcomes.append(send(mail, CONTENT, stopping=stopping))
        )
        thread.start()
        assert sink.begun.wait(5)
        stopping.set()
        sink.may_go_on.set()
        thread.join(10)
        assert outcomes == [Retry(recipients=(B,))]
        assert send(mail, CONTENT, stopping=stopping) == Retry()
        assert ([got[1] for got in sink.got], sink.mails) == ([(A,)], 1)


CASES = [
    # starttls, what the server has, whether it is trusted, sent, by TLS
    ("none", "starttls", True, True, False),
    ("may", "nothing", True, True, False),
    ("may", "starttls", False, True, True),
    ("must", "nothing", True, False, False),
    ("must", "starttls", False, True, True),
    ("verified", "nothing", True, False, False),
    ("verified", "starttls", False, False, False),
    ("verified", "starttls", True, True, True),
    ("true", "starttls", False, False, False),
    ("false", "nothing", True, True, False),
]


@dataclass
class Secured(Sink):
    """Remembers whether each mail came by TLS, and who logged in."""

    secured: list[bool] = field(default_factory=list)
    logins: list[tuple[bytes, bytes]] = field(default_factory=list)
    password: bytes = b"right"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.secured.append(server.transport.get_extra_info("ssl_object") is not None)
        return await super().handle_DATA(server, session, envelope)

    def authenticate(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, given: Any
    ) -> AuthResult:
        assert isinstance(given, LoginPassword)
        self.logins.append((given.login, given.password))
        return AuthResult(success=given.password == self.password, handled=False)


@pytest.mark.parametrize(("starttls", "offers", "trusted", "sent", "by_tls"), CASES)
def test_starttls_policies(
    starttls: str,
    offers: str,
    cert: tuple[Path, Path],
    server_tls: ssl.SSLContext,
    *,
    trusted: bool,
    sent: bool,
    by_tls: bool,
) -> None:
    ca = {"tls_ca": cert[0]} if trusted and starttls == "verified" else {}
    with running(Secured(), tls=server_tls if offers == "starttls" else None) as sink:
        send = relay(sink.port, starttls=starttls, **ca)
        assert send(MAIL, CONTENT) == (Complete() if sent else LATER)
    assert sink.secured == ([by_tls] if sent else [])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_may_sends_in_the_clear_where_no_tls_can_be_agreed_on(
    version: ssl.TLSVersion, cert: tuple[Path, Path]
) -> None:
    wants_certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    wants_certificate.load_cert_chain(*cert)
    wants_certificate.minimum_version = wants_certificate.maximum_version = version
    wants_certificate.verify_mode = ssl.CERT_REQUIRED
    with running(Secured(), tls=wants_certificate) as sink:
        assert relay(sink.port, starttls="must")(MAIL, CONTENT) == LATER
        assert relay(sink.port, starttls="may")(MAIL, CONTENT) == Complete()
    assert sink.secured == [False]


def test_a_client_certificate_is_shown_to_a_server_that_asks(cert: tuple[Path, Path]) -> None:
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cert[0]))
    asking.load_cert_chain(*cert)
    asking.verify_mode = ssl.CERT_REQUIRED
    tls = {"starttls": "verified", "tls_ca": cert[0]}
    with running(Secured(), tls=asking) as sink:
        assert relay(sink.port, **tls)(MAIL, CONTENT) == LATER
        shown = relay(sink.port, **tls, tls_certificate=cert[0], tls_key=cert[1])
        assert shown(MAIL, CONTENT) == Complete()
    assert sink.secured == [True]


@pytest.mark.parametrize(
    ("given", "sent"),
    [({}, False), ({"starttls": "must"}, True), ({"tls_ca": True}, True)],
)
def test_tls_from_the_first_byte_is_verified_unless_that_is_waived(
    given: dict[str, Any], cert: tuple[Path, Path], server_tls: ssl.SSLContext, *, sent: bool
) -> None:
    given = {name: cert[0] if value is True else value for name, value in given.items()}
    with running(Secured(), implicit=server_tls) as sink:
        send = relay(sink.port, implicit_tls=True, **given)
        assert send(MAIL, CONTENT) == (Complete() if sent else LATER)
        assert send(MAIL, CONTENT) == (Complete() if sent else LATER)
    assert sink.secured == [True] * 2 * sent
    assert sink.connections == (1 if sent else 2), "reused by TLS, too"


@pytest.fixture(params=["PLAIN", "LOGIN"])
def mechanism(request: pytest.FixtureRequest) -> Iterator[Secured]:
    sink = Secured()
    others = {"PLAIN", "LOGIN"} - {request.param}
    options = {"auth_require_tls": False, "auth_exclude_mechanism": others}
    with running(sink, authenticator=sink.authenticate, **options) as made:
        yield made


def test_auth_by_either_mechanism_once_a_connection(mechanism: Secured) -> None:
    mechanism.password = "rïght".encode()
    send = relay(mechanism.port, username="ursula", password="rïght")
    assert [send(MAIL, CONTENT), send(MAIL, CONTENT)] == [Complete(), Complete()]
    assert mechanism.logins == [(b"ursula", "rïght".encode())]


def test_a_login_that_is_refused_is_no_refusal_of_the_mail(
    mechanism: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mailslice")
    assert relay(mechanism.port, username="ursula", password="wrong")(MAIL, CONTENT) == LATER
    assert "failed: LoginRefused: 535 to AUTH (MAILSLICE_RELAY_USERNAME)" in caplog.text
    assert "wrong" not in caplog.text
    assert mechanism.got == []


@pytest.mark.parametrize("answer", ["535 5.7.8 wrong", "454 4.7.0 the directory is away"])
def test_nor_does_it_end_a_mail_that_is_too_old(answer: str) -> None:
    def refused(server: SMTP, *_: object) -> AuthResult:
        return AuthResult(success=False, handled=False, message=answer)

    with running(Sink(), authenticator=refused, auth_require_tls=False) as sink:
        send = relay(sink.port, username="ursula", password="wrong")
        outcome = send(MAIL, CONTENT, stage=BlockingStage(age=timedelta(days=6)))
    assert outcome == LATER
    assert isinstance(outcome, Retry)
    said = f"LoginRefused: {answer[:3]} to AUTH (MAILSLICE_RELAY_USERNAME): {answer[4:]}"
    assert outcome.why == f"no answer {said} (for 1)"


def test_a_server_without_auth_gets_no_mail_of_who_has_a_password() -> None:
    with running(Sink()) as sink:
        assert relay(sink.port, username="u", password="p")(MAIL, CONTENT) == LATER
    assert sink.got == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"username": "u"}, "one is set without the other"),
        ({"password": "p", "host": "mx.example"}, "one is set without the other"),
        ({"username": "u", "password": "p", "host": "mx.example"}, "in the clear"),
        (
            {"username": "u", "password": "p", "host": "mx.example", "starttls": "may"},
            "MAILSLICE_RELAY_STARTTLS=may: the password would cross the network in the clear",
        ),
        ({"tls_ca": "/no/ca", "starttls": "must"}, "nothing is verified"),
        ({"tls_ca": "/no/ca", "starttls": "verified"}, "MAILSLICE_RELAY_TLS_CA='/no/ca' cannot be"),
        ({"tls_key": "/no/key"}, "one is set without the other"),
        (
            {"tls_certificate": "/no/cert", "tls_key": "/no/key", "starttls": "must"},
            "MAILSLICE_RELAY_TLS_CERTIFICATE='/no/cert' .* cannot be loaded",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_at_the_start(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        relay(25, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"starttls": "verified"},
        {"starttls": "must"},
        {"implicit_tls": True},
        {"auth_without_tls": True},
        {"host": "localhost"},
        {"host": "::1"},
    ],
)
def test_a_password_is_allowed_where_it_cannot_be_read_or_that_is_wanted(
    given: dict[str, Any],
) -> None:
    assert relay(25, **{"host": "mx.example", "username": "u", "password": "p", **given})
