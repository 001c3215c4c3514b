"""The answers to SMTP commands. A mail is enqueued as it came, behind a Received line."""

# ruff: noqa: N802 - aiosmtpd calls hooks by the names of the commands
import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any, Protocol
from uuid import uuid4

import orjson
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session, TLSSetupException

from mailslice.codec.addresses import is_address, james_takes
from mailslice.codec.content import header_end
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.errors import BadInput, BadSetting, MailsliceError
from mailslice.model.mail import Mail, QueuedMail
from mailslice.worker.io.content_loader import ContentBudget, Reservation
from mailslice.worker.logs import about
from mailslice.worker.smtp_server.data import BUSY, NULL_PATH
from mailslice.worker.smtp_server.metrics import SmtpMetrics
from mailslice.worker.smtp_server.policy import SmtpPolicy, client_address

log = logging.getLogger(__name__)

_NO_STORE = "451 4.3.0 The mail cannot be stored now, try again later"
_MAX_HOPS = 100
"""Received lines above which a mail is taken for one that loops (RFC 5321 6.3)."""
_FREE_RECIPIENTS = 100
"""Recipients that every server takes (RFC 5321 4.5.3.1.8); further ones count as memory."""
_HOP = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)
_TRACE = 1 << 20
"""Bytes of a mail that are searched for Received lines: each server puts its own at the top."""


class AcceptsMail(Protocol):
    """The part of `worker.QueueWorker` that intake needs."""

    async def enqueue(self, mail: Mail, content: bytes) -> QueuedMail: ...


@dataclass(slots=True, eq=False, repr=False)
class Intake:
    """aiosmtpd's hooks. 250 after DATA is sent only when the enqueue is durable."""

    worker: AcceptsMail
    policy: SmtpPolicy
    hostname: str
    max_recipients: int
    shared: bool
    budget: ContentBudget
    clock: Clock
    metrics: SmtpMetrics
    _enqueuing: set[asyncio.Task[str]] = field(init=False, default_factory=set)

    def is_stranger(self, session: Session) -> bool:
        """Whether the client is outside of the networks that may send without AUTH."""
        return not self.policy.allows(client_address(session.peer))

    def reservation(self) -> Reservation:
        return Reservation(self.budget)

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
        announced = [r for r in responses if self.policy.offers_auth or r[:8] != "250-AUTH"]
        return [*announced[:-1], "250-PIPELINING", "250-ENHANCEDSTATUSCODES", announced[-1]]

    async def handle_MAIL(
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        declared = next((int(o.removeprefix("SIZE=")) for o in options if o.startswith("SIZE=")), 0)
        if not self.budget.fits(declared):
            return BUSY  # before the client sends the mail in vain
        if address != NULL_PATH and (problem := self._wrong_address(address, envelope)):
            return problem
        envelope.mail_from = address
        return "250 2.1.0 OK"

    async def handle_RCPT(
        self, server: Any, session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if self.is_stranger(session) and not session.authenticated:
            return "550 5.7.1 Relaying denied" + ": AUTH first" * self.policy.offers_auth
        if len(envelope.rcpt_tos) >= self.max_recipients:
            return "452 4.5.3 Too many recipients"
        if address.lower() == "postmaster":
            # The one name that every server knows without a domain (RFC 5321 4.5.1).
            address = f"{address}@{self.hostname}"
        if problem := self._wrong_address(address, envelope):
            return problem
        is_free, size = len(envelope.rcpt_tos) < _FREE_RECIPIENTS, sys.getsizeof(address)
        if not is_free and not server.reservation.grow(size):
            return BUSY
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def take(
        self,
        session: Session,
        envelope: Envelope,
        reservation: Reservation,
        receiving: Callable[[Reservation, bytes], Awaitable[bytes | str]],
    ) -> str:
        """Receives a mail behind a Received line. The answer (250: durable). Ends `reservation`."""
        try:
            mail = self._mail(session, envelope)
            content = await receiving(reservation, self._trace(session, envelope, mail.name))
            if isinstance(content, bytes):
                received = _HOP.findall(content, 0, header_end(content[:_TRACE]))
                if len(received) - 1 > _MAX_HOPS:  # without the line of this server
                    content = "554 5.4.6 Too many hops: the mail goes round in circles"
        except BaseException:
            reservation.release()
            raise
        crash.point("smtp:received")
        # A client that hangs up must not interrupt an enqueue: the task goes on, and `drain` waits
        # for it.
        task = asyncio.create_task(self._answer(mail, content, reservation))
        self._enqueuing.add(task)
        task.add_done_callback(self._enqueuing.discard)
        return await asyncio.shield(task)

    async def handle_exception(self, error: Exception) -> str:
        """Logs the error. No internal detail reaches the client."""
        gave_up = isinstance(error, TLSSetupException)  # the client, in its TLS handshake
        level, why = (logging.INFO, error.__cause__) if gave_up else (logging.ERROR, error)
        log.log(level, "SMTP session failed: %s", type(why).__name__, extra=about("smtp_fault"))
        log.debug("SMTP session failed", exc_info=error)
        return "451 4.3.0 Local error, try again later"

    def authenticate(
        self, _server: SMTP, session: Session, _envelope: Envelope, _mechanism: str, auth_data: Any
    ) -> AuthResult:
        is_login, accepts = isinstance(auth_data, LoginPassword), self.policy.accepts
        good = is_login and accepts(auth_data.login, auth_data.password)
        if not good:
            self.metrics.wrong_passwords.inc()
            extra = about("smtp_wrong_password", client=str(client_address(session.peer)))
            log.info("wrong password from %s", extra["client"], extra=extra)
        return AuthResult(success=good, handled=False, auth_data=auth_data)

    async def drain(self) -> None:
        if self._enqueuing:
            await asyncio.wait(set(self._enqueuing))

    async def _answer(self, mail: Mail, content: bytes | str, reservation: Reservation) -> str:
        """The answer, which is counted here: a client that hung up does not wait for it."""
        answer = content if isinstance(content, str) else await self._enqueue(mail, content)
        reservation.release()
        self.metrics.answered(answer)
        return answer

    async def _enqueue(self, mail: Mail, content: bytes) -> str:
        try:
            queued = await self.worker.enqueue(mail, content)
        except MailsliceError as error:
            log.warning("mail not stored: %s", error, extra={"action": "smtp_refused"})
            # Bad input is a permanent fault of the mail. A bad setting (say, a changed password)
            # is a fault of this server, which gets corrected.
            its_fault = isinstance(error, BadInput) and not isinstance(error, BadSetting)
            return "554 5.6.0 The mail cannot be accepted" if its_fault else _NO_STORE
        except Exception as error:  # noqa: BLE001 - after any error the client keeps the mail
            return await self.handle_exception(error)
        self.metrics.bytes.inc(len(content))
        extra = about("smtp_accepted", queued.enqueue_id)
        log.info("accepted %d bytes as %s", len(content), queued.enqueue_id, extra=extra)
        return f"250 2.0.0 OK queued as {queued.enqueue_id}"

    def _wrong_address(self, address: str, envelope: Envelope) -> str | None:
        """What to answer to an address that this queue cannot keep; None when it is fine."""
        if not (address.isascii() or (envelope.smtp_utf8 and not self.shared)):
            why = "James takes none" if envelope.smtp_utf8 else "it needs SMTPUTF8"
            return f"553 5.6.7 An address beyond ASCII: {why}"
        takes = james_takes if self.shared else is_address
        return None if takes(address) else "553 5.1.3 Malformed address"

    def _mail(self, session: Session, envelope: Envelope) -> Mail:
        now = self.clock()
        address = client_address(session.peer)
        attributes = {"org.apache.james.HELO": _string_attribute(session.host_name or "")}
        if session.authenticated and isinstance(session.auth_data, LoginPassword):
            user = session.auth_data.login.decode("utf-8", "replace")
            attributes["org.apache.james.SMTPAuthUser"] = _string_attribute(user)
        is_local = address is not None and address.is_loopback
        return Mail(
            name=f"Mail{int(now.timestamp() * 1000)}-{uuid4()}",
            sender=None if envelope.mail_from == NULL_PATH else envelope.mail_from,
            recipients=tuple(dict.fromkeys(envelope.rcpt_tos)),
            last_updated_ns=int(now.timestamp() * 1000) * 1_000_000,
            attributes=attributes,
            remote_addr=str(address or ""),
            # No look-up: a name service must not delay mail. The name that the client claims is in
            # the HELO attribute.
            remote_host="localhost" if is_local else str(address or ""),
        )

    def _trace(self, session: Session, envelope: Envelope, name: str) -> bytes:
        address = client_address(session.peer)
        literal = f"IPv6:{address}" if address and address.version == 6 else str(address)
        protocol = "SMTP"
        if session.extended_smtp:
            protocol = "UTF8SMTP" if envelope.smtp_utf8 else "ESMTP"
            protocol += "S" * (session.ssl is not None) + "A" * bool(session.authenticated)
        helo = re.sub(r"[^!-'*-~]", "?", session.host_name or "unknown")
        lines = (
            f"Received: from {helo} ([{literal}])",
            f"\tby {self.hostname} (mailslice) with {protocol} id {name};",
            f"\t{format_datetime(self.clock())}",
        )
        return "".join(f"{line}\r\n" for line in lines).encode("ascii", "replace")


def _string_attribute(text: str) -> bytes:
    shown = text.encode("utf-8", "replace").decode()
    return orjson.dumps({"serializer": "StringSerializer", "value": shown})
