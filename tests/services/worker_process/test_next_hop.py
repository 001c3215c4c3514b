"""How long a reply of the next hop may take, and what a broken handshake ends in: real sockets."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mailslice.model.mail import Mail
from mailslice.model.settings import Settings
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.outcome import Complete, Retry
from tests.services.worker_process.sink import certificate

MAIL = Mail("m", "s@x", ("a@x",))
LATER = Retry(recipients=("a@x",), back_off=True)
CONTENT = b"Subject: x\r\n\r\nbody\r\n"
NO_TLS, TLS = b"250 sink\r\n", b"250-sink\r\n250 STARTTLS\r\n"


@contextmanager
def serving(*turns: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of loopback. Each of `turns` has a connection, and ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for turn in turns:
                with listening.accept()[0] as one, suppress(OSError):
                    turn(one)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(10)


def relay(port: int, **given: Any) -> Relay:
    hop = {"host": "127.0.0.1", "port": port, "timeout": "1s", **given}
    return Relay(Settings.model_validate({"relay": hop}))


def dripping(one: socket.socket, piece: bytes, pause: float) -> None:
    while True:
        one.sendall(piece)
        time.sleep(pause)


SLOW_LINES, SLOW_BYTES, ENDLESS = (b"220-x\r\n", 0.1), (b"2", 0.1), (b"220-x\r\n" * 1000, 0)


@pytest.mark.parametrize("drip", [SLOW_LINES, SLOW_BYTES, ENDLESS])
@pytest.mark.parametrize("where", ["greeting", "EHLO", "MAIL"])
def test_a_reply_that_does_not_end_is_none(where: str, drip: tuple[bytes, float]) -> None:
    def turn(one: socket.socket) -> None:
        for reached, answer in (("greeting", b"220 sink\r\n"), ("EHLO", NO_TLS), ("MAIL", b"")):
            if reached != "greeting":
                one.recv(1000)
            if reached == where:
                dripping(one, *drip)
            one.sendall(answer)

    began = time.monotonic()
    with serving(turn) as port:
        assert relay(port)(MAIL, CONTENT) == LATER
    assert time.monotonic() - began < 5


def reset(one: socket.socket) -> None:
    """Closes it so that the other side is told of a connection that was reset."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def close(_: socket.socket) -> None:
    """Closes it in order."""


def taking(got: list[bytes]) -> Callable[[socket.socket], None]:
    """Takes a mail in the clear; `got` has what came after each answer."""

    def take(one: socket.socket) -> None:
        for word in (b"220 sink\r\n", TLS, *[b"250 ok\r\n"] * 2, b"354 go on\r\n", b"250 ok\r\n"):
            one.sendall(word)
            got.append(one.recv(1000))

    return take


@pytest.mark.parametrize("end", [reset, close])
@pytest.mark.parametrize("starttls", ["may", "must"])
def test_a_server_that_hangs_up_in_the_handshake_gets_mail_in_the_clear_where_that_is_allowed(
    starttls: str, end: Callable[[socket.socket], None]
) -> None:
    def hang_up(one: socket.socket) -> None:
        for answer in (b"220 sink\r\n", TLS, b"220 go on\r\n"):
            one.sendall(answer)
            one.recv(1000)
        end(one)

    got: list[bytes] = []
    with serving(hang_up, *[taking(got)] * (starttls == "may")) as port:
        outcome = relay(port, starttls=starttls, mails_per_connection=1)(MAIL, CONTENT)
    assert outcome == (Complete() if starttls == "may" else LATER)
    assert (CONTENT + b".\r\n" in got) is (starttls == "may")


def test_a_server_that_closes_at_starttls_gets_nothing_in_the_clear() -> None:
    got: list[bytes] = []

    def closing(one: socket.socket) -> None:
        for word in (b"220 sink\r\n", TLS, b"421 4.3.2 shutting down\r\n"):
            one.sendall(word)
            got.append(one.recv(1000))

    with serving(closing) as port:
        outcome = relay(port, starttls="may")(MAIL, CONTENT)
    assert (outcome, got[1:]) == (LATER, [b"STARTTLS\r\n", b""])


@pytest.fixture(scope="module")
def server_tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path_factory.mktemp("tls")))
    return context


OLD, NEW = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("version", "answer", "in_the_clear"),
    [
        (NEW, b"", True),
        (OLD, b"", False),
        (NEW, None, False),
        (NEW, b"550 no EHLO\r\n", False),
        (NEW, b"421 closing\r\n", False),
    ],
    ids=["closed, 1.3", "closed, 1.2", "silent", "refused", "421"],
)
def test_an_ehlo_that_fails_after_tls_was_agreed_on_leads_to_nothing_in_the_clear(
    version: ssl.TLSVersion,
    answer: bytes | None,
    server_tls: ssl.SSLContext,
    *,
    in_the_clear: bool,
) -> None:
    """With TLS 1.3 the server may refuse the handshake after the client's end of it."""

    def encrypt(one: socket.socket) -> None:
        for word in (b"220 sink\r\n", TLS):
            one.sendall(word)
            one.recv(1000)
        one.sendall(b"220 go on\r\n")
        with server_tls.wrap_socket(one, server_side=True) as secure:
            while answer != b"" and secure.recv(1000):
                secure.sendall(answer or b"")

    server_tls.minimum_version, server_tls.maximum_version = OLD, NEW
    server_tls.minimum_version = server_tls.maximum_version = version
    got: list[bytes] = []
    with serving(encrypt, taking(got)) as port:
        outcome = relay(port, starttls="may", mails_per_connection=1)(MAIL, CONTENT)
        if not in_the_clear:
            socket.create_connection(("127.0.0.1", port)).close()  # ends its turn
    assert outcome == (Complete() if in_the_clear else LATER)
    assert (CONTENT + b".\r\n" in got) is in_the_clear
