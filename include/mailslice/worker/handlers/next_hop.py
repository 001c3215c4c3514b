"""The next SMTP server as MAILSLICE_RELAY_* names it: connections, their reuse, TLS and AUTH.

smtplib connects, sends EHLO and STARTTLS, and reads replies. mailslice orders commands and replies
itself: smtplib knows neither PIPELINING nor a mail in pieces (ADR 55).
"""

import base64
import io
import logging
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from mailslice.model.errors import BadSetting
from mailslice.model.settings import RelaySettings, StartTls
from mailslice.worker.smtp_server.policy import (
    RenewedTls,
    is_loopback,
    load_certificate,
    require_both,
)

log = logging.getLogger(__name__)

CLOSING = 421


class StaleConnection(smtplib.SMTPServerDisconnected):
    """The connection ended between two mails, or after refusals, before this mail's first byte: no
    recipient has the mail. Recipients without an answer are to be named on a fresh connection.
    """


class LoginRefused(Exception):
    """The next hop does not take our user and password: the settings are wrong, not the mail."""


class _Replies(socket.SocketIO):
    """Reads replies: `room` bytes, until the time `ends`, so that no slow server holds a mail."""

    _sock: socket.socket
    ends, room = 0.0, 0

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self.ends and max(self.ends - time.monotonic(), 0.001))
        if (count := super().readinto(buffer[: self.room])) is None:
            raise BlockingIOError
        self.room -= count
        return count


class _TimedServer(smtplib.SMTP):
    """smtplib's SMTP, but the time-out is for a whole reply, and a reply has at most 64 KiB."""

    def getreply(self) -> tuple[int, bytes]:
        sock: Any = self.sock
        self.file = self.file or io.BufferedReader(_Replies(sock, "r"))
        seconds = sock.gettimeout()
        self.file.raw.ends, self.file.raw.room = time.monotonic() + seconds, 1 << 16
        reply = super().getreply()
        sock.settimeout(seconds)
        return reply


class _TlsServer(_TimedServer, smtplib.SMTP_SSL):
    """The same, with TLS from the first byte."""


class Connection:
    """One connection after EHLO. For one thread at a time."""

    def __init__(self, server: smtplib.SMTP) -> None:
        self._server = server
        self.mails = 0
        """Transactions that were begun on it."""
        self.is_unclean = False
        """Whether a transaction may be open: RSET comes first then."""
        self.idle_since = 0.0
        self._may_be_stale = False

    @property
    def is_open(self) -> bool:
        return self._server.sock is not None

    def is_silent(self) -> bool:
        """Whether nothing came after the last reply: no other one (which stays), and no end."""
        sock: Any = self._server.sock
        replies: Any = self._server.file
        seconds, replies.raw.ends, replies.raw.room = sock.gettimeout(), 0.0, 1 << 16
        try:
            replies.peek()
        except OSError as error:  # a session ticket of TLS is no reply
            return isinstance(error, BlockingIOError | ssl.SSLWantReadError)
        finally:
            sock.settimeout(seconds)
        return False

    def offers(self, extension: str) -> bool:
        return self._server.has_extn(extension)

    def begin(self) -> None:
        """Begins a transaction. If the connection has ended before, this mail is not at fault."""
        self._may_be_stale = self.mails > 0 or self.idle_since > 0
        self.mails += 1

    def mark_answered(self) -> None:
        """Records that the server has answered this transaction's MAIL."""
        self._may_be_stale = False
        self.is_unclean = True

    def send_commands(self, commands: Sequence[str]) -> None:
        """Sends them in one flight; the server replies to each."""
        if any("\r" in command or "\n" in command for command in commands):
            raise ValueError("a command with a line end in it")
        self.send("".join(f"{command}\r\n" for command in commands).encode())

    def send_content(self, piece: bytes) -> None:
        """As `send`, if no reply is there: before its last byte none answers the mail."""
        if not self.is_silent():
            raise smtplib.SMTPServerDisconnected("the server did not wait for the whole mail")
        self.send(piece)

    def send(self, piece: bytes) -> None:
        """Sends it within one time-out. After a failure replies can be read, unlike in smtplib."""
        sock: Any = self._server.sock
        try:
            sock.sendall(piece)
        except OSError as error:
            self._check_fresh(error)
            raise smtplib.SMTPServerDisconnected("Server not connected") from error

    def reply(self) -> tuple[int, str]:
        """(code, text); code -1 for a malformed reply. Raises when the connection has ended."""
        try:
            code, words = self._server.getreply()
        except (OSError, smtplib.SMTPException) as error:
            self._check_fresh(error)
            raise
        if code == CLOSING or words.startswith(b"4.4.2"):  # SES: 451 4.4.2 Timeout
            self._check_fresh(None)
        return code, words.decode("utf-8", "replace")

    def out_of_step(self, code: int) -> smtplib.SMTPServerDisconnected:
        """Closes it. Returns the error to raise: `code` is no answer to the command."""
        self._check_fresh(None)
        self.close()
        return smtplib.SMTPServerDisconnected(f"{code} ends the connection")

    def set_timeout(self, seconds: float) -> None:
        if self._server.sock is not None:
            self._server.sock.settimeout(seconds)

    def close(self) -> None:
        self._server.close()

    def quit(self) -> None:
        """Sends QUIT and does not wait for the reply: some servers are slow to answer it."""
        with suppress(OSError, smtplib.SMTPException):
            self._server.send(b"QUIT\r\n")
        self.close()

    def _check_fresh(self, error: Exception | None) -> None:
        """Raises StaleConnection when the server has answered nothing of this transaction."""
        if self._may_be_stale:
            self.close()
            raise StaleConnection("ended between two mails") from error


class NextHop:
    """A pool of connections, one to a thread at most; keeps idle ones for `idle_seconds`."""

    def __init__(self, settings: RelaySettings, *, idle_seconds: float = 30.0) -> None:
        """Raises BadSetting for a contradiction, an unreadable file, a password in the clear."""
        self._settings = settings
        self._idle_seconds = idle_seconds
        files = settings.tls_ca, settings.tls_certificate, settings.tls_key
        self.tls = RenewedTls(lambda: tls_of(settings), *files)
        self._login = login_of(settings)
        # smtplib takes the address as a literal if the name has no domain (RFC 5321 4.1.1.1).
        self._name = smtplib.SMTP().local_hostname
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._sweeper: threading.Timer | None = None

    def connection(self, *, fresh: bool = False) -> Connection:
        """The idle one used last, or a new one. Raises OSError, SMTPException, LoginRefused."""
        with self._lock:
            while self._idle and not fresh:
                if (idle := self._idle.pop()).is_silent():
                    return idle
                idle.close()
        try:
            return Connection(self._connect(self.tls.context()))
        except ssl.SSLError as error:
            if self._settings.starttls is not StartTls.MAY or self._settings.implicit_tls:
                raise
            text = "next hop %s:%d: no TLS could be agreed on (%s); sending without, "
            text += "as MAILSLICE_RELAY_STARTTLS=may allows"
            why = type(error.__cause__ or error).__name__
            facts = self._settings.host, self._settings.port, why
            log.info(text, *facts, extra={"action": "relay_clear"})
            return Connection(self._connect(None))

    def release(self, connection: Connection) -> None:
        """Keeps it for the next mail, or closes it: after its last mail, or when it has ended."""
        if not connection.is_open or connection.mails >= self._settings.mails_per_connection:
            connection.quit()
            return
        connection.idle_since = time.monotonic()
        with self._lock:
            self._sweep_later(self._idle_seconds)
            self._idle.append(connection)

    def _sweep(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._sweeper = None
            old = [link for link in self._idle if now - link.idle_since >= self._idle_seconds]
            self._idle = [link for link in self._idle if link not in old]
            if self._idle:
                self._sweep_later(self._idle_seconds - (now - self._idle[0].idle_since))
        for connection in old:
            connection.quit()

    def _sweep_later(self, seconds: float) -> None:
        if self._sweeper is None:
            sweeper = threading.Timer(seconds, self._sweep)
            sweeper.daemon = True
            sweeper.start()  # may fail: then the next release tries it
            self._sweeper = sweeper

    def _connect(self, tls: ssl.SSLContext | None) -> smtplib.SMTP:
        hop = self._settings
        kind = partial(_TlsServer, context=tls) if hop.implicit_tls else _TimedServer
        server = kind(hop.host, hop.port, self._name, timeout=hop.timeout.total_seconds())
        try:
            if server.sock is not None:
                # The last piece of a mail must not wait for the acknowledgement of the one before.
                server.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.ehlo_or_helo_if_needed()
            if tls is not None and not hop.implicit_tls:
                start_tls(server, tls, only_if_offered=hop.starttls is StartTls.MAY)
            if self._login is not None:
                log_in(server, *self._login)
        except BaseException:
            server.close()
            raise
        return server


def start_tls(server: smtplib.SMTP, tls: ssl.SSLContext, *, only_if_offered: bool) -> None:
    """STARTTLS, then EHLO again. Raises when it is refused, unless TLS is optional."""
    if only_if_offered and not server.has_extn("starttls"):
        return
    try:
        server.starttls(context=tls)
        sock: Any = server.sock
        only_if_offered &= sock.version() == "TLSv1.3"  # the server may still refuse
        server.ehlo_or_helo_if_needed()
    except OSError as error:  # includes smtplib's errors
        of_command = isinstance(error, smtplib.SMTPHeloError)  # EHLO failed, not TLS
        of_command |= isinstance(error.__context__, TimeoutError)
        if of_command or not only_if_offered or getattr(error, "smtp_code", 0) == CLOSING:
            raise
        if not isinstance(error, smtplib.SMTPResponseException):
            raise ssl.SSLError(type(error).__name__) from error  # then it connects without TLS


def log_in(server: smtplib.SMTP, username: str, password: str) -> None:
    """Sends AUTH PLAIN, or LOGIN if only that is offered (RFC 4954, 4616). Raises LoginRefused."""
    offered = server.esmtp_features.get("auth", "").upper().split()
    if "PLAIN" in offered:
        code, words = server.docmd("AUTH PLAIN", _base64(f"\x00{username}\x00{password}"))
    elif "LOGIN" in offered:
        code, words = server.docmd("AUTH", f"LOGIN {_base64(username)}")
        if code == 334:
            code, words = server.docmd(_base64(password))
    else:
        raise LoginRefused("neither AUTH PLAIN nor LOGIN is offered (MAILSLICE_RELAY_USERNAME)")
    if code != 235:
        text = words.decode("utf-8", "replace")
        raise LoginRefused(f"{code} to AUTH (MAILSLICE_RELAY_USERNAME): {text}")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def login_of(hop: RelaySettings) -> tuple[str, str] | None:
    """User and password, None without a user. Raises BadSetting if one is set without the other, or
    if the password would cross the network in the clear.
    """
    password = hop.password.get_secret_value() if hop.password else None
    require_both("MAILSLICE_RELAY", USERNAME=hop.username, PASSWORD=password)
    if hop.username is None or password is None:
        return None
    always_tls = hop.implicit_tls or hop.starttls in {StartTls.MUST, StartTls.VERIFIED}
    if not (always_tls or hop.auth_without_tls or is_loopback(hop.host)):
        raise BadSetting(
            f"MAILSLICE_RELAY_USERNAME is set, MAILSLICE_RELAY_HOST={hop.host!r} is not loopback, "
            f"and MAILSLICE_RELAY_STARTTLS={hop.starttls}: the password would cross the network in "
            "the clear; allowed: MAILSLICE_RELAY_STARTTLS=verified (or must), "
            "MAILSLICE_RELAY_IMPLICIT_TLS=true, or MAILSLICE_RELAY_AUTH_WITHOUT_TLS=true"
        )
    return hop.username, password


def tls_of(hop: RelaySettings) -> ssl.SSLContext | None:
    """The TLS context; None without TLS. Raises BadSetting."""
    by_default = hop.implicit_tls and hop.starttls is not StartTls.MUST
    verified = hop.starttls is StartTls.VERIFIED or by_default
    if hop.tls_ca is not None and not verified:
        raise BadSetting(
            f"MAILSLICE_RELAY_TLS_CA={str(hop.tls_ca)!r}: nothing is verified with "
            f"MAILSLICE_RELAY_STARTTLS={hop.starttls}; allowed with it: verified"
        )
    require_both("MAILSLICE_RELAY", TLS_CERTIFICATE=hop.tls_certificate, TLS_KEY=hop.tls_key)
    if hop.starttls is StartTls.NONE and not hop.implicit_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=hop.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise BadSetting(
            f"MAILSLICE_RELAY_TLS_CA={str(hop.tls_ca)!r} cannot be loaded: {error}; "
            "allowed: a file of certificates, PEM"
        ) from error
    if not verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if hop.tls_certificate is not None:
        load_certificate(context, "MAILSLICE_RELAY", hop.tls_certificate, hop.tls_key)
    return context
