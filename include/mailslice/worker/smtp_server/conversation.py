"""One SMTP conversation: aiosmtpd's protocol, limits of clients and time, and our own DATA."""

# ruff: noqa: N802 - aiosmtpd calls commands by their names
import asyncio
import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiosmtpd.smtp import SMTP

from mailslice.model import crash
from mailslice.worker.io.content_loader import Reservation
from mailslice.worker.smtp_server.data import read_path, receive
from mailslice.worker.smtp_server.policy import SmtpPolicy, client_address, client_key
from mailslice.worker.smtp_server.session import Intake

_AUTH_TRIES = 5
_ANSWER_WITHIN = 600.0
"""Seconds that a client waits for the answer to its mail (RFC 5321 4.5.3.2.6): not idle time."""
_LEAST_RATE = 100_000.0
"""Bytes a second: a mail that is slower for longer than `ServerTimes.mail` is cut off."""


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Time limits of an SMTP server that are not settings, in seconds."""

    drain: float = 30.0
    """Time for mails that are being received when the server ends."""
    goodbye: float = 2.0
    """Time for a dismissed client to read its 421."""
    wrong_password: float = 2.0
    """Pause before the answer to a wrong password: many connections may guess it at once."""
    login: float = 300.0
    """Time in which a client outside of the allowed networks has to log in."""
    mail: float = 600.0
    """Time for one mail: a client that sends a byte now and then would occupy memory for days."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections at once. `of_all`: for strangers together, and for allowed clients
    together. `of_client`: for each stranger.
    """

    of_all: int
    of_client: int

    def exceeded(self, one: "Conversation", others: "Iterable[Conversation]") -> str | None:
        """The limit, `all` or `client`, that is exceeded by `one` more."""
        same_kind = [other.client for other in others if bool(other.client) is bool(one.client)]
        if len(same_kind) >= self.of_all:
            return "all"
        return "client" if one.client and same_kind.count(one.client) >= self.of_client else None


class Conversation(SMTP):  # type: ignore[misc]
    """aiosmtpd's protocol, with limits of clients, counted memory, and lines of any length."""

    line_length_limit = 1 << 16  # what the reader keeps of a line; a mail's lines may be longer

    def __init__(
        self,
        intake: Intake,
        policy: SmtpPolicy,
        open_now: "set[Conversation]",
        limits: ConnectionLimits,
        times: ServerTimes,
        **options: Any,
    ) -> None:
        self.reservation = intake.reservation()
        """Memory of the mail whose recipients are being named."""
        super().__init__(
            intake,
            enable_SMTPUTF8=True,
            decode_data=False,
            ident="mailslice",
            authenticator=intake.authenticate,
            command_call_limit={"AUTH": _AUTH_TRIES, "*": 1_000_000},
            tls_context=policy.tls.context(),
            auth_require_tls=not (policy.auth_without_tls and policy.offers_auth),
            **options,
        )
        self._intake = intake
        self._policy = policy
        self._open_now = open_now
        self._limits = limits
        self._times = times
        self._dismissed: float | None = None
        self._pause_ends = 0.0
        self.client = ""
        """The key of a client from outside of the allowed networks (`policy`)."""
        self.receiving = False
        self.enqueuing = False

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        return read_path(arg) if arg else ("", "")

    def _getparams(self, params: Sequence[str]) -> dict[str, str | bool] | None:
        """Drops AUTH= (RFC 4954 5), which clients that logged in may send: it means nothing here.

        SIZE has ASCII digits only: int() takes only some of those that isdigit() does. A parameter
        that is given twice is a syntax error: only its last value would be checked.
        """
        known: dict[str, str | bool] | None = super()._getparams(params)
        if known is None or not str(known.get("SIZE", "")).isascii() or len(known) < len(params):
            return None
        if self._policy.offers_auth:
            known.pop("AUTH", None)
        return known

    async def _handle_client(self) -> None:
        if self._intake.is_stranger(self.session):
            self.client = client_key(client_address(self.session.peer))
        if too_many := self._limits.exceeded(self, self._open_now):
            self._intake.metrics.refused(too_many)
            whose = " from your address" if too_many == "client" else ""
            await self.push(f"421 4.3.2 Too many connections{whose}, try again later")
            self.transport.close()
            return
        self._open_now.add(self)
        aged = self.loop.call_later(self._times.login, self._login_over) if self.client else None
        try:
            await super()._handle_client()
        finally:
            # Else a client could avoid the pause by hanging up and connecting again.
            self.loop.call_at(self._pause_ends, self._open_now.discard, self)
            if aged is not None:
                aged.cancel()

    def _login_over(self) -> None:
        """Cuts off a client outside of the networks that has not logged in."""
        if not self.session.authenticated:
            self._cut_off()

    @functools.wraps(SMTP.smtp_EHLO)
    async def smtp_EHLO(self, hostname: str) -> None:
        # aiosmtpd has one table for all connections, adds to it at each EHLO, and empties it for
        # each new client. RFC 4954 wants room for long passwords, and for AUTH= of MAIL.
        self.command_size_limits = defaultdict(lambda: 512, AUTH=12_288, MAIL=512 + 500)
        await super().smtp_EHLO(hostname)

    @functools.wraps(SMTP.smtp_STARTTLS)
    async def smtp_STARTTLS(self, arg: str) -> None:
        if self.session.ssl:
            await self.push("503 5.5.1 TLS is active already")
        else:
            await super().smtp_STARTTLS(arg)

    @functools.wraps(SMTP.smtp_AUTH)
    async def smtp_AUTH(self, arg: str | None) -> None:
        # A mechanism's name has no case (RFC 5321 2.4): .NET clients send `AUTH login`.
        words = (arg or "").split()
        try:
            await super().smtp_AUTH(" ".join([*map(str.upper, words[:1]), *words[1:]]))
        except ValueError:  # raised by aiosmtpd's reader
            await self.push("500 5.5.6 Authentication Exchange line is too long")

    async def push(self, status: str | bytes) -> None:
        if status[:3] in {"535", b"535"}:
            self._pause_ends = self.loop.time() + self._times.wrong_password
            await asyncio.sleep(self._times.wrong_password)
        # An answer may repeat the client's bytes, which may not be UTF-8.
        await super().push(status.encode(errors="replace") if isinstance(status, str) else status)

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
            # The reservation outlives a client that hangs up, as the enqueue does.
            reservation, self.reservation = self.reservation, self._intake.reservation()
            answer = await self._intake.take(
                self.session, self.envelope, reservation, self._receive
            )
            self._reset_timeout()
            self._set_post_data_state()
            await self.push(answer)
            crash.point("smtp:answered")
        finally:
            self.receiving = self.enqueuing = False

    async def _receive(self, reservation: Reservation, before: bytes) -> bytes | str:
        began = self.loop.time()

        def progressed(count: int) -> None:
            remaining = began + self._times.mail + count / _LEAST_RATE - self.loop.time()
            self._reset_timeout(max(min(self._timeout_duration, remaining), 0.001))

        received = await receive(
            self._reader,
            self.data_size_limit,
            reservation,
            progressed,
            before,
            # From strangers only: software in the allowed networks may send bare line ends.
            refuse_bare=self._policy.refuse_bare_line_ends and bool(self.client),
        )
        if self._dismissed is not None:
            raise asyncio.CancelledError  # the client got 421, and sends the mail again
        self.enqueuing = True
        self._reset_timeout(_ANSWER_WITHIN)
        return received

    def _set_post_data_state(self) -> None:
        """Called by aiosmtpd when another mail begins, or the same one again."""
        self.reservation.release()
        super()._set_post_data_state()

    def eof_received(self) -> bool:
        """Closes it, also before its task has begun: uvloop reads first."""
        super().eof_received()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.reservation.release()
        super().connection_lost(error)

    def _cut_off(self) -> None:
        """Aborts it: an orderly close would wait for ever for a client that does not read."""
        (self._original_transport or self.transport).abort()
        if self._handler_coroutine is not None:
            # asyncio does not report that a connection ended within a TLS handshake.
            self._handler_coroutine.cancel()
        self.reservation.release()

    _timeout_cb = _cut_off

    def dismiss(self) -> None:
        """Closes it with 421 (RFC 5321 3.8). A later call cuts off a client that does not read."""
        now = self.loop.time()
        if self._dismissed is None:
            self._dismissed = now
        elif now - self._dismissed >= self._times.goodbye:
            self._cut_off()
        if not self.transport.is_closing():
            self._writer.write(b"421 4.3.2 The server is shutting down, try again later\r\n")
            self.transport.close()
