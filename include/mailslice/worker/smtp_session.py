"""One SMTP conversation: what is answered to each command, and the way of a mail's bytes into the queue.

The bytes after DATA are kept as they came, dots un-stuffed. One thing is put before them, as RFC 5321 4.4 demands of every server that accepts a
mail: a Received line.
"""

# ruff: noqa: N802 - aiosmtpd calls hooks by the names of the commands
from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from email.utils import format_datetime
from typing import Any, Protocol
from uuid import uuid4

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from mailslice.codec.addresses import is_address
from mailslice.codec.content import split
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.errors import BadInput, BadSetting, MailsliceError
from mailslice.model.mail import Mail, QueuedMail
from mailslice.worker.smtp_data import BUSY, Hold, IntakeBudget, receive
from mailslice.worker.smtp_path import NULL_PATH, read_path
from mailslice.worker.smtp_policy import SmtpPolicy, client_address

log = logging.getLogger(__name__)

_NO_STORE = "451 4.3.0 The mail cannot be stored now, try again later"
_AUTH_TRIES = 5
_MOST_HOPS = 100
"""Received lines, after which a mail is taken to go round in circles (RFC 5321 6.3)."""
_ANSWER_WITHIN = 600.0
"""Seconds that a client waits for the answer to its mail (RFC 5321 4.5.3.2.6): it is not idle then, we are busy."""
_GOODBYE = 2.0
"""Seconds for a client that is sent away to read what it was told."""
_FREE_RECIPIENTS = 100
"""Of one mail: as many as every server takes (RFC 5321 4.5.3.1.8). Beyond them they count as mail in memory."""
_HOP = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)


class Enqueuer(Protocol):
    """The part of `worker.QueueWorker` that intake needs."""

    async def enqueue(self, mail: Mail, content: bytes) -> QueuedMail: ...


class Intake:
    """aiosmtpd's hooks. 250 after DATA is said only when the enqueue is durable."""

    def __init__(
        self,
        worker: Enqueuer,
        policy: SmtpPolicy,
        *,
        hostname: str,
        max_recipients: int,
        budget: IntakeBudget,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._policy = policy
        self._hostname = hostname
        self._max_recipients = max_recipients
        self._budget = budget
        self._clock = clock
        self._enqueuing: set[asyncio.Task[str]] = set()

    @property
    def offers_auth(self) -> bool:
        """Whether clients may log in at all."""
        return self._policy.offers_auth

    def hold(self) -> Hold:
        """For one mail: what it takes of the memory."""
        return self._budget.hold()

    async def handle_EHLO(
        self,
        _server: SMTP,
        session: Session,
        _envelope: Envelope,
        hostname: str,
        responses: list[str],
    ) -> list[str]:
        """AUTH is announced only where it can succeed."""
        session.host_name = hostname
        kept = [
            line
            for line in responses
            if self._policy.offers_auth or not line.startswith("250-AUTH")
        ]
        return [*kept[:-1], "250-PIPELINING", "250-ENHANCEDSTATUSCODES", kept[-1]]

    async def handle_MAIL(
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        declared = next((int(o.removeprefix("SIZE=")) for o in options if o.startswith("SIZE=")), 0)
        if not self._budget.fits(declared):
            return BUSY  # said before the client sends it all in vain
        if address != NULL_PATH and (problem := _wrong_address(address, utf8=envelope.smtp_utf8)):
            return problem
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 OK"

    async def handle_RCPT(
        self,
        server: Conversation,
        session: Session,
        envelope: Envelope,
        address: str,
        options: list[str],
    ) -> str:
        if not (session.authenticated or self._policy.allows(client_address(session.peer))):
            return "550 5.7.1 Relaying denied" + (
                ": AUTH first" if self._policy.offers_auth else ""
            )
        if len(envelope.rcpt_tos) >= self._max_recipients:
            return "452 4.5.3 Too many recipients"
        if address.lower() == "postmaster":
            address = f"{address}@{self._hostname}"  # the one name that every server knows without a domain (RFC 5321 4.5.1)
        if problem := _wrong_address(address, utf8=envelope.smtp_utf8):
            return problem
        if len(envelope.rcpt_tos) >= _FREE_RECIPIENTS and not server.hold.grow(
            sys.getsizeof(address)
        ):
            return BUSY
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 OK"

    async def take(
        self,
        session: Session,
        envelope: Envelope,
        hold: Hold,
        receiving: Callable[[Hold, bytes], Awaitable[bytes | str]],
    ) -> str:
        """Receives a mail, behind a Received line, and gives the answer to it: 250 when it is durable. `hold` has its recipients; it is released."""
        try:
            mail = self._mail(session, envelope)
            content = await receiving(hold, self._trace(session, envelope, mail.name))
            if isinstance(content, bytes) and len(_HOP.findall(split(content)[0])) - 1 > _MOST_HOPS:
                content = "554 5.4.6 Too many hops: the mail goes round in circles"
        except BaseException:
            hold.release()
            raise
        if isinstance(content, str):
            hold.release()
            return content
        crash.point("smtp:received")
        # A client that hangs up must not cut an enqueue in two: the task goes on, and `drain` waits for it.
        task = asyncio.create_task(self._accept(mail, content, hold))
        self._enqueuing.add(task)
        task.add_done_callback(self._enqueuing.discard)
        return await asyncio.shield(task)

    async def handle_exception(self, error: Exception) -> str:
        """No word of the inside reaches the client."""
        log.error("SMTP session failed: %s", type(error).__name__, extra={"action": "smtp_fault"})
        log.debug("SMTP session failed", exc_info=error)
        return "451 4.3.0 Local error, try again later"

    def authenticate(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, given: Any
    ) -> AuthResult:
        """The authenticator that aiosmtpd asks."""
        good = isinstance(given, LoginPassword) and self._policy.accepts(
            given.login, given.password
        )
        return AuthResult(success=good, handled=False, auth_data=given)

    async def drain(self) -> None:
        """Waits for the enqueues that run."""
        if self._enqueuing:
            await asyncio.wait(set(self._enqueuing))

    async def _accept(self, mail: Mail, content: bytes, hold: Hold) -> str:
        try:
            queued = await self._worker.enqueue(mail, content)
        except MailsliceError as error:
            log.warning("mail not stored: %s", error, extra={"action": "smtp_refused"})
            # Bad input is the mail's fault and stays so; a bad setting, say a password that was changed, is ours and is mended.
            its_fault = isinstance(error, BadInput) and not isinstance(error, BadSetting)
            return "554 5.6.0 The mail cannot be accepted" if its_fault else _NO_STORE
        except Exception as error:  # noqa: BLE001 - whatever it is, the client keeps the mail
            return await self.handle_exception(error)
        finally:
            hold.release()
        log.info(
            "accepted %d bytes as %s",
            len(content),
            queued.enqueue_id,
            extra={"action": "smtp_accepted", "enqueue_id": str(queued.enqueue_id)},
        )
        return f"250 2.0.0 OK queued as {queued.enqueue_id}"

    def _mail(self, session: Session, envelope: Envelope) -> Mail:
        now = self._clock()
        address = client_address(session.peer)
        attributes = {"org.apache.james.HELO": _string_attribute(session.host_name or "")}
        if session.authenticated and isinstance(session.auth_data, LoginPassword):
            attributes["org.apache.james.SMTPAuthUser"] = _string_attribute(
                session.auth_data.login.decode("utf-8", "replace")
            )
        return Mail(
            name=f"Mail{int(now.timestamp() * 1000)}-{uuid4()}",
            sender=None if envelope.mail_from == NULL_PATH else envelope.mail_from,
            recipients=tuple(dict.fromkeys(envelope.rcpt_tos)),
            last_updated_ns=int(now.timestamp() * 1000) * 1_000_000,
            attributes=attributes,
            remote_addr=str(address or ""),
            # Not looked up: a name service must not hold up mail. The name the client claims is in the HELO attribute.
            remote_host="localhost"
            if address is not None and address.is_loopback
            else str(address or ""),
        )

    def _trace(self, session: Session, envelope: Envelope, name: str) -> bytes:
        address = client_address(session.peer)
        literal = (
            f"IPv6:{address}" if address is not None and address.version == 6 else str(address)
        )
        protocol = (
            ("UTF8SMTP" if envelope.smtp_utf8 else "ESMTP") if session.extended_smtp else "SMTP"
        )
        if session.extended_smtp:
            protocol += "S" * (session.ssl is not None) + "A" * bool(session.authenticated)
        helo = re.sub(r"[^!-'*-~]", "?", session.host_name or "unknown")
        lines = (
            f"Received: from {helo} ([{literal}])",
            f"\tby {self._hostname} (mailslice) with {protocol} id {name};",
            f"\t{format_datetime(self._clock())}",
        )
        return "".join(f"{line}\r\n" for line in lines).encode("ascii", "replace")


class Conversation(SMTP):  # type: ignore[misc]
    """aiosmtpd's protocol with a bound on clients and an own way of receiving mail, which counts memory and keeps lines of any length."""

    line_length_limit = 1 << 16  # what the reader keeps of a line; a mail's lines may be longer

    def __init__(
        self, intake: Intake, open_now: set[Conversation], max_connections: int, **options: Any
    ) -> None:
        self.hold = intake.hold()
        """Of the mail whose recipients are being named."""
        super().__init__(
            intake,
            enable_SMTPUTF8=True,
            decode_data=False,
            ident="mailslice",
            authenticator=intake.authenticate,
            command_call_limit={"AUTH": _AUTH_TRIES, "*": 1_000_000},
            **options,
        )
        self._intake = intake
        self._open_now = open_now
        self._max_connections = max_connections
        self._dismissed: float | None = None
        self.receiving = False

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        return read_path(arg) if arg else ("", "")

    def _getparams(self, params: Sequence[str]) -> dict[str, str | bool] | None:
        """AUTH= is for servers that ask who the sender is within a trusted network; here it says nothing, but clients that logged in send it (RFC 4954 5)."""
        known: dict[str, str | bool] | None = super()._getparams(params)
        if known is not None and self._intake.offers_auth:
            known.pop("AUTH", None)
        return known

    async def _handle_client(self) -> None:
        if len(self._open_now) >= self._max_connections:
            await self.push("421 4.3.2 Too many connections, try again later")
            self.transport.close()
            return
        self._open_now.add(self)
        try:
            await super()._handle_client()
        finally:
            self._open_now.discard(self)

    @functools.wraps(SMTP.smtp_DATA)
    async def smtp_DATA(self, arg: str | None) -> None:
        if await self.check_helo_needed() or await self.check_auth_needed("DATA"):
            return
        if not self.envelope.rcpt_tos:
            await self.push("503 5.5.1 RCPT first")
        elif arg:
            await self.push("501 Syntax: DATA")
        else:
            await self._take_mail()

    async def _take_mail(self) -> None:
        await self.push("354 End data with <CR><LF>.<CR><LF>")
        self.receiving = True
        try:
            hold, self.hold = (
                self.hold,
                self._intake.hold(),
            )  # it outlives a client that hangs up, as the enqueue does
            answer = await self._intake.take(self.session, self.envelope, hold, self._receive)
            self._reset_timeout()
            self._set_post_data_state()
            await self.push(answer)
            crash.point("smtp:answered")
        finally:
            self.receiving = False

    async def _receive(self, hold: Hold, before: bytes) -> bytes | str:
        received = await receive(
            self._reader, self.data_size_limit, hold, self._reset_timeout, before
        )
        self._reset_timeout(_ANSWER_WITHIN)
        return received

    def _set_post_data_state(self) -> None:
        """What aiosmtpd does when another mail begins, or the same one anew."""
        self.hold.release()
        super()._set_post_data_state()

    def connection_lost(self, error: Exception | None) -> None:
        """The end, whoever wanted it."""
        self.hold.release()
        super().connection_lost(error)

    def _timeout_cb(self) -> None:
        """A close would wait for a client that does not read for good, and its place among the clients with it."""
        self._cut_off()

    def _cut_off(self) -> None:
        (self._original_transport or self.transport).abort()
        if self._handler_coroutine is not None:
            self._handler_coroutine.cancel()  # of a connection that ends within a TLS handshake asyncio tells nobody
        self.hold.release()

    def dismiss(self) -> None:
        """Closes it, with the word for that (RFC 5321 3.8). Called again and again until it is gone: a client that does not read is cut off in the end."""
        now = self.loop.time()
        if self._dismissed is None:
            self._dismissed = now
        elif now - self._dismissed >= _GOODBYE:
            self._cut_off()
        if not self.transport.is_closing():
            self._writer.write(b"421 4.3.2 The server is shutting down, try again later\r\n")
            self.transport.close()


def conversation_factory(
    intake: Intake,
    open_now: set[Conversation],
    max_connections: int,
    policy: SmtpPolicy,
    **options: Any,
) -> Callable[[], Conversation]:
    """What makes a conversation for each client."""
    return lambda: Conversation(
        intake,
        open_now,
        max_connections,
        tls_context=policy.tls,
        auth_require_tls=not (policy.auth_without_tls and policy.offers_auth),
        **options,
    )


def _wrong_address(address: str, *, utf8: bool) -> str | None:
    """What to answer to an address that cannot be kept; None when it is fine."""
    if not (is_address(address) and _james_takes(address)):
        return "553 5.1.3 Malformed address"
    if not (address.isascii() or utf8):
        return "553 5.6.7 The address needs SMTPUTF8"
    return None


def _james_takes(address: str) -> bool:
    """A James that gets a mail with one recipient that its MailAddress refuses dead-letters it for all of them; with such a sender it takes the null sender."""
    local, _, domain = address.rpartition("@")
    return (
        local != '""'
        and ".." not in local
        and not any(label[0] == "-" or label[-1] == "-" for label in domain.split("."))
    )


def _string_attribute(text: str) -> bytes:
    """James' form of a text attribute."""
    shown = text.encode("utf-8", "replace").decode()
    return json.dumps(
        {"serializer": "StringSerializer", "value": shown},
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()
