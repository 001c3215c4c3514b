"""An SMTP server that records mails, and refuses chosen commands and recipients.

It runs in a thread of its own, because the relay blocks.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(
        [*made, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


@dataclass
class Sink:
    """`refuse`: a recipient, MAIL or DATA -> the answer. `got`: (sender, recipients, bytes, MAIL
    options) of each mail.
    """

    refuse: dict[str, str] = field(default_factory=dict)
    got: list[tuple[str, tuple[str, ...], bytes, tuple[str, ...]]] = field(default_factory=list)
    port: int = 0
    drop_after_rcpt: bool = False
    drop_at: str = ""
    """Where to close the connection. `answer`: after the mail, without an answer."""
    pipelining: bool = False
    """Whether to offer PIPELINING."""
    connections: int = 0
    greeted: list[str] = field(default_factory=list)
    """The names that clients sent in EHLO."""

    async def handle_EHLO(
        self,
        _server: SMTP,
        session: Session,
        _envelope: Envelope,
        hostname: str,
        responses: list[str],
    ) -> list[str]:
        session.host_name = hostname
        self.greeted.append(hostname)
        return [*responses[:-1], *(["250-PIPELINING"] * self.pipelining), responses[-1]]

    async def handle_MAIL(
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if "MAIL" in self.refuse:
            return self.refuse["MAIL"]
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(
        self, server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refuse:
            return self.refuse[address]
        if self.drop_after_rcpt:
            server.transport.abort()
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, _session: Session, envelope: Envelope) -> str:
        if "DATA" in self.refuse:
            return self.refuse["DATA"]
        if self.drop_at == "answer":
            server.transport.abort()
        self.got.append(
            (
                envelope.mail_from or "",
                tuple(envelope.rcpt_tos),
                envelope.original_content or b"",
                tuple(envelope.mail_options),
            )
        )
        return "250 OK"


@dataclass
class Watching(Sink):
    """A sink that answers no mail before the event `may_go_on` is set."""

    begun: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    mails: int = 0

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.mails += 1
        return await super().handle_MAIL(server, session, envelope, address, options)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.begun.set()
        await asyncio.to_thread(self.may_go_on.wait, 10)
        return await super().handle_DATA(server, session, envelope)


@contextmanager
def running(
    sink: Sink,
    *,
    utf8: bool = True,
    tls: ssl.SSLContext | None = None,
    implicit: ssl.SSLContext | None = None,
    **options: Any,
) -> Iterator[Sink]:
    """Runs the sink on a free port of loopback. `implicit`: TLS from the first byte."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    def conversation() -> SMTP:
        sink.connections += 1
        return SMTP(
            sink, enable_SMTPUTF8=utf8, hostname="sink", tls_context=tls, loop=loop, **options
        )

    def serve() -> None:
        asyncio.set_event_loop(loop)
        made = loop.run_until_complete(
            loop.create_server(conversation, "127.0.0.1", 0, ssl=implicit)
        )
        sink.port = made.sockets[0].getsockname()[1]
        ready.set()
        loop.run_forever()
        made.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(5)
    try:
        yield sink
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
