"""Servers that reply twice, or before the mail has ended. Real servers on loopback."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from mailslice.model.mail import Mail
from mailslice.worker.outcome import Complete, Reject, Retry
from tests.services.worker_process.sink import Sink, certificate, running
from tests.services.worker_process.test_relay import CONTENT, A, B, relay

LARGE = b"a line of a mail that is too large\r\n" * 300_000
LATER = Retry(recipients=(A,), back_off=True)


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=[True, False], ids=["TLS", "clear"])
def tls(request: pytest.FixtureRequest, cert: tuple[Path, Path]) -> ssl.SSLContext | None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*cert)
    return context if request.param else None


@dataclass
class Twice(Sink):
    """Answers a mail twice, the second time `late` or at once."""

    late: bool = False

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        answer = await super().handle_DATA(server, session, envelope)
        if not self.late:
            return f"{answer}\r\n250 OK once more"
        server.loop.call_later(0.1, server.transport.write, b"250 OK once more\r\n")
        return answer


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_a_second_answer_to_a_mail_is_none_to_the_next_one(
    tls: ssl.SSLContext | None, *, late: bool, pipelining: bool
) -> None:
    with running(Twice(pipelining=pipelining, late=late), tls=tls) as sink:
        sink.refuse[A] = "550 no such user"
        send = relay(sink.port, starttls="must" if tls else "none")
        assert send(Mail("m", None, (B,)), CONTENT) == Complete()
        time.sleep(0.3)
        assert send(Mail("n", None, (A, B)), CONTENT) == Retry(recipients=(A,))
        assert [got[1] for got in sink.got] == [(B,), (B,)]


def test_a_server_that_answers_once_keeps_its_connection(tls: ssl.SSLContext | None) -> None:
    with running(Sink(), tls=tls) as sink:
        send = relay(sink.port, starttls="must" if tls else "none")
        for _ in range(3):
            assert send(Mail("m", None, (B,)), CONTENT) == Complete()
            time.sleep(0.1)
        assert sink.connections == 1


@dataclass
class Hasty:
    """Says `word` after 64 KiB of its first mail, or with 354: then it reads nothing. Else it
    leaves, or waits, or reads on: it takes lines of the mail for commands. It takes later mails.
    """

    word: bytes
    then: str
    features: bytes = b""
    port: int = 0
    mails: int = 0
    _open: list[socket.socket] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._open.append(client)
                with suppress(OSError):
                    self._converse(client)

    def _converse(self, client: socket.socket) -> None:
        client.sendall(b"220 hasty\r\n")
        lines = client.makefile("rb")
        for line in lines:
            verb = line[:4].upper()
            if verb == b"EHLO":
                client.sendall(b"250-hasty\r\n" + self.features + b"250 HELP\r\n")
            elif verb in {b"MAIL", b"RCPT", b"RSET"}:
                client.sendall(b"250 OK\r\n")
            elif verb != b"DATA":
                client.sendall(b"500 what?\r\n")
            else:
                if self.then == "reads nothing":
                    client.sendall(b"354 go on\r\n" + self.word)
                    return
                client.sendall(b"354 go on\r\n")
                self.mails += 1
                if self.mails > 1:
                    while lines.readline() not in {b".\r\n", b""}:
                        pass
                    client.sendall(b"250 OK\r\n")
                    continue
                lines.read(64 << 10)
                client.sendall(self.word)
                if self.then == "leaves":
                    lines.close()
                    client.close()
                if self.then != "reads on":
                    return


@contextmanager
def hasty(word: bytes, then: str, features: bytes = b"") -> Iterator[Hasty]:
    server = Hasty(word, then, features)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        threading.Thread(target=server.serve, args=(listener,), daemon=True).start()
        yield server
        for client in server._open:
            client.close()


NO = Reject("the next hop refused all recipients for good: 552 for 1")


@pytest.mark.parametrize("then", ["leaves", "waits"])
@pytest.mark.parametrize(
    ("word", "outcome", "why"),
    [
        (b"552 too large\r\n", NO, "552 too large (for 1)"),
        (b"452 full\r\n", LATER, "452 full (for 1)"),
        (b"250 OK\r\n", LATER, "no answer SMTPServerDisconnected: "),
        (b"354 go on\r\n", LATER, "no answer SMTPServerDisconnected: "),
        (b"", LATER, "no answer SMTPServerDisconnected: "),
    ],
)
def test_a_refusal_before_the_mail_has_ended_is_one_and_nothing_else_is(
    word: bytes, then: str, outcome: Reject | Retry, why: str
) -> None:
    with hasty(word, then) as server:
        got = relay(server.port, timeout="1s")(Mail("m", None, (A,)), LARGE)
    assert got == outcome
    assert why in (got.answer if isinstance(got, Reject) else got.why)  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"short", b"a line of a mail\r\n" * 8_000])
@pytest.mark.parametrize(
    ("word", "outcome"), [(b"250 OK\r\n", LATER), (b"552 too large\r\n", NO), (b"", LATER)]
)
def test_a_reply_that_came_before_a_mail_that_no_one_reads_does_not_complete_it(
    word: bytes, outcome: Reject | Retry, content: bytes
) -> None:
    with hasty(word, "reads nothing") as server:
        got = relay(server.port, timeout="1s", answer_timeout="1s")(Mail("m", None, (A,)), content)
    assert got == outcome


@pytest.mark.parametrize("pipelining", [b"", b"250-PIPELINING\r\n"])
def test_replies_to_lines_of_a_refused_mail_are_none_to_the_next_mail(pipelining: bytes) -> None:
    content = b"Subject: x\r\n\r\n" + b"a line of a mail\r\n" * 8_000
    with hasty(b"552 too large\r\n", "reads on", pipelining) as server:
        send = relay(server.port)
        assert send(Mail("m", None, (A,)), content) == NO
        assert send(Mail("n", None, (B,)), b"short") == Complete()
