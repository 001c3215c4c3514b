"""Measures how fast one process relays to a server that is a round trip away, without stores.

Compares one mail a connection and one command at a time with kept connections and PIPELINING.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from mailslice.bench.isolated import Process
from mailslice.model.mail import Mail
from mailslice.model.settings import Settings
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.outcome import Complete

_LINE = b"a line of mailslice bench relay, as long as one of a mail is\r\n"
_LONGEST = 2**31
"""The largest mail in bytes: the server reads it whole."""


@dataclass
class _MailSink:
    """An SMTP server that accepts and counts mails. Each answer is delayed by a round trip."""

    rtt: float
    mails: int = 0
    _listening: list[asyncio.Server] = field(default_factory=list)

    async def listen(self, extensions: bytes) -> int:
        """Listens, and offers these extensions in EHLO. Returns the port."""
        talk = partial(self._talk, extensions=extensions)
        server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=_LONGEST)
        self._listening.append(server)  # asyncio does not keep a server alive
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, extensions: bytes
    ) -> None:
        def answer(reply: bytes, trips: int = 1) -> None:
            asyncio.get_running_loop().call_later(trips * self.rtt, write, reply)

        def write(reply: bytes) -> None:
            if not writer.is_closing():
                writer.write(reply)

        answer(b"220 bench\r\n", 2)  # the TCP handshake takes a round trip, too
        with suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                match line[:4].upper():
                    case b"EHLO":
                        answer(b"250-bench\r\n" + extensions + b"250 SIZE\r\n")
                    case b"DATA":
                        answer(b"354 go on\r\n")
                        await reader.readuntil(b"\r\n.\r\n")
                        self.mails += 1
                        answer(b"250 ok\r\n")
                    case b"QUIT":
                        answer(b"221 bye\r\n")
                    case _:
                        answer(b"250 ok\r\n")
        writer.close()


async def _serve(pipe: Connection, rtt: float) -> None:
    """The server process: sends its ports (without, with PIPELINING), then counts on request."""
    server = _MailSink(rtt)
    pipe.send([await server.listen(extensions) for extensions in (b"", b"250-PIPELINING\r\n")])
    while await asyncio.to_thread(pipe.recv):
        pipe.send(server.mails)


@contextmanager
def server_process(rtt: float) -> Iterator[tuple[Process, list[int]]]:
    """The server process and its two ports: without PIPELINING, with PIPELINING."""
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
    print_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Mails a second of one process in one way, then in the other; CPU of this process only."""
    content = (b"Subject: bench\r\n\r\n" + _LINE * (size // len(_LINE) + 1))[:size]
    mail = Mail("bench", "s@bench.example", tuple(f"r{n}@bench.example" for n in range(recipients)))
    rates: dict[str, dict[str, float]] = {}
    with server_process(rtt.total_seconds()) as (server, (plain, pipelining)):
        for name, port, per_connection in (
            ("oneMailAConnection", plain, 1),
            ("keptConnections", pipelining, settings.relay.mails_per_connection),
        ):
            print_progress(f"{mails} mails, {name}")
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
    """Sends from handler threads. Each thread first opens its connection with one mail."""

    def send(_: int) -> None:
        if relay(mail, content) != Complete():
            raise RuntimeError("a mail was not sent")

    with ThreadPoolExecutor(concurrency) as threads:
        list(threads.map(send, range(concurrency)))
        began, cpu = time.perf_counter(), time.process_time()
        list(threads.map(send, range(mails)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"mailsPerSecond": round(mails / seconds, 1), "cpuMsAMail": round(1000 * cpu / mails, 2)}
