"""How long a reply of the next hop may take: real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mailslice.model.mail import Mail
from mailslice.model.settings import Settings
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.outcome import Retry

MAIL = Mail("m", "s@x", ("a@x",))
LATER = Retry(recipients=("a@x",), back_off=True)
CONTENT = b"Subject: x\r\n\r\nbody\r\n"
NO_TLS = b"250 sink\r\n"


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
