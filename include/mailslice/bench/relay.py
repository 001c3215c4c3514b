"""How fast one process relays to a server that is a round trip away. No store takes part.

One mail a connection, one command at a time, against kept connections and PIPELINING.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, cast

from mailslice.bench.isolated import Process
from mailslice.model.mail import Mail
from mailslice.model.settings import Settings
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.outcome import Complete

_LINE = b"a line of mailslice bench relay, as long as one of a mail is\r\n"
_REPLIES = {"DATA": b"354 go on\r\n", "QUIT": b"221 bye\r\n"}


class _Server(asyncio.Protocol):
    """Takes everything. Each answer comes a round trip after what it answers."""

    def __init__(self, rtt: float, counted: list[int], *, pipelining: bool) -> None:
        self._rtt = rtt
        self._counted = counted
        self._extensions = b"250-PIPELINING\r\n" if pipelining else b""
        self._received = b""
        self._in_mail = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # TCP's own handshake is a round trip, too.
        self._answer(b"220 bench\r\n", 2 * self._rtt)

    def data_received(self, data: bytes) -> None:
        self._received += data
        replies = b""
        while (end := self._end()) >= 0:
            command, self._received = self._received[:end], self._received[end:]
            replies += self._reply(command)
        if self._in_mail:
            self._received = self._received[-4:]  # what may be the beginning of its end
        self._answer(replies, self._rtt)

    def _end(self) -> int:
        """Where the command ends, or the mail."""
        mark = b"\r\n.\r\n" if self._in_mail else b"\r\n"
        at = self._received.find(mark)
        return at if at < 0 else at + len(mark)

    def _reply(self, command: bytes) -> bytes:
        if self._in_mail:
            self._in_mail = False
            self._counted[0] += 1
            return b"250 ok\r\n"
        verb = command[:4].decode().upper()
        self._in_mail = verb == "DATA"
        if verb == "EHLO":
            return b"250-bench\r\n" + self._extensions + b"250 SIZE\r\n"
        return _REPLIES.get(verb, b"250 ok\r\n")

    def _answer(self, replies: bytes, after: float) -> None:
        if replies:
            asyncio.get_running_loop().call_later(after, self._write, replies)

    def _write(self, replies: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(replies)


async def _serve(pipe: Connection, rtt: float) -> None:
    """A process: says its two ports, without and with PIPELINING; asked, how many mails it has."""
    loop, counted = asyncio.get_running_loop(), [0]
    servers = [
        await loop.create_server(
            lambda offers=pipelining: _Server(rtt, counted, pipelining=offers),  # type: ignore[misc]
            "127.0.0.1",
            0,
        )
        for pipelining in (False, True)
    ]
    pipe.send([server.sockets[0].getsockname()[1] for server in servers])
    while await asyncio.to_thread(pipe.recv):
        pipe.send(counted[0])


@contextmanager
def server_process(rtt: float) -> Iterator[tuple[Process, list[int]]]:
    """The server, and its ports: one without PIPELINING, one with it."""
    with Process(_serve, rtt) as server:
        yield server, server.answer()
        server.send(False)


def measure_relay(
    settings: Settings,
    *,
    mails: int,
    size: int,
    recipients: int,
    concurrency: int,
    rtt: timedelta,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Mails a second of one process both ways, in turn; CPU of this process alone."""
    content = (b"Subject: bench\r\n\r\n" + _LINE * (size // len(_LINE) + 1))[:size]
    mail = Mail("bench", "s@bench.example", tuple(f"r{n}@bench.example" for n in range(recipients)))
    rates: dict[str, dict[str, float]] = {}
    with server_process(rtt.total_seconds()) as (server, (plain, pipelining)):
        for name, port, per_connection in (
            ("oneMailAConnection", plain, 1),
            ("keptConnections", pipelining, settings.relay.mails_per_connection),
        ):
            say(f"{mails} mails, {name}")
            hop = {"host": "127.0.0.1", "port": port, "mails_per_connection": per_connection}
            relay = Relay(Settings.model_validate({"relay": hop}))
            rates[name] = _rate(relay, mail, content, mails, concurrency)
        server.send(True)
        if server.answer() != 2 * (mails + concurrency):
            raise RuntimeError("the server has not got every mail once")
    one, several = (rates[name]["mailsPerSecond"] for name in rates)
    return {
        "mails": mails,
        "size": size,
        "recipients": recipients,
        "concurrency": concurrency,
        "rttMs": rtt / timedelta(milliseconds=1),
        **rates,
        "ratio": round(several / one, 2),
    }


def _rate(
    relay: Relay, mail: Mail, content: bytes, mails: int, concurrency: int
) -> dict[str, float]:
    """Over handler threads, after one mail a thread that opens its connection."""

    def send(_: int) -> None:
        if relay(mail, content) != Complete():
            raise RuntimeError("a mail was not sent")

    with ThreadPoolExecutor(concurrency) as threads:
        list(threads.map(send, range(concurrency)))
        began, cpu = time.perf_counter(), time.process_time()
        list(threads.map(send, range(mails)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "mailsPerSecond": round(mails / seconds, 1),
        "cpuMsAMail": round(1000 * cpu / mails, 2),
    }
