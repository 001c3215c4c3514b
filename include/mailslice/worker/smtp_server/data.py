"""What smtp-in reads: the bytes after DATA, and the addresses of MAIL FROM and RCPT TO.

Dots are un-stuffed, memory is counted, lines have any length. A mail that is refused in the middle
is read to its end (RFC 5321), but no longer kept. Addresses are taken character for character (RFC
5321 4.1.2): aiosmtpd reads them as message headers, decodes encoded words and drops comments.
"""

import asyncio
import re
from collections.abc import Callable
from io import BytesIO

from mailslice.worker.io.content_loader import Reservation

_ATOM = r"[^\s\x00-\x20\x7f()<>\[\]:;@\\,\"]+"
_QUOTED = r'"(?:[^\x00-\x1f\x7f"\\]|\\[^\x00-\x1f\x7f])*"'
_DOMAIN = rf"(?:{_ATOM}|\[[^\s\x00-\x20\x7f\[\]<>\\]+\])"
_MAILBOX = rf"(?:{_QUOTED}|{_ATOM})@{_DOMAIN}"
_ROUTE = rf"(?:@{_DOMAIN}(?:,@{_DOMAIN})*:)?"
_PATH = re.compile(
    rf" *(?:<{_ROUTE}(?P<angled>{_MAILBOX}|{_ATOM})?>|(?P<bare>{_MAILBOX}|{_ATOM}))(?P<rest>| .*)",
    re.DOTALL,
)
NULL_PATH = "<>"


def read_path(argument: str) -> tuple[str | None, str]:
    """The address at the start of `argument`, without a source route, and the parameters. `<>` is
    the null path; None: there is no address. A domain may be missing.
    """
    match = _PATH.fullmatch(argument)
    if match is None:
        return None, ""
    return match["angled"] or match["bare"] or NULL_PATH, match["rest"].strip()


TOO_LARGE = "552 5.3.4 The mail is too large"
BARE = "550 5.6.11 Bare <LF> or <CR> in the mail: its lines end with <CR><LF>"
BUSY = "451 4.3.1 Too much mail at once, try again later"
_STEP = 1 << 16


async def receive(
    reader: asyncio.StreamReader,
    limit: int,
    reservation: Reservation,
    on_progress: Callable[[int], None],
    before: bytes = b"",
    *,
    refuse_bare: bool = False,
) -> bytes | str:
    """The mail behind `before` (which does not count), or the refusal to answer with.

    Takes memory from `reservation` as it grows; a refusal releases it. `on_progress` gets the
    number of bytes, at first and for every 64 KiB: a slow client is not a lost one.
    """
    mail = _Mail(limit, reservation, before, refuse_bare=refuse_bare)
    reported = 0
    line_begins = True
    on_progress(0)
    while True:
        piece, line_ends = await _piece(reader)
        if line_begins and piece.startswith(b"."):
            if piece == b".\r\n":
                return mail.content.getvalue() if mail.refusal is None else mail.refusal
            piece = piece[1:]
        line_begins = line_ends
        mail.add(piece, line_ends=line_ends)
        if mail.received - reported >= _STEP:
            reported = mail.received
            on_progress(reported)


class _Mail:
    """The bytes received so far. Once they are refused, they are only counted."""

    def __init__(
        self, limit: int, reservation: Reservation, before: bytes, *, refuse_bare: bool
    ) -> None:
        self._limit = limit
        self._reservation = reservation
        self._refuse_bare = refuse_bare
        self._reserved = 0
        self.received = 0
        self.content = BytesIO()
        self.content.write(before)
        self.refusal: str | None = None

    def add(self, piece: bytes, *, line_ends: bool) -> None:
        self.received += len(piece)
        if self.refusal is not None:
            return
        self.refusal = self._reason_to_refuse(piece, len(piece) - 2 * line_ends)
        if self.refusal is None:
            self.content.write(piece)
        else:
            self.content = BytesIO()
            self._reservation.release()

    def _reason_to_refuse(self, piece: bytes, end: int) -> str | None:
        if self.received > self._limit:
            return TOO_LARGE
        if self._refuse_bare and (piece.find(b"\n", 0, end) >= 0 or piece.find(b"\r", 0, end) >= 0):
            return BARE
        if self.received > self._reserved:
            if not self._reservation.grow(_STEP + len(piece)):
                return BUSY
            self._reserved += _STEP + len(piece)
        return None


async def _piece(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """A line, or a part beyond the reader's limit; and whether it ends with CRLF."""
    try:
        return await reader.readuntil(b"\r\n"), True
    except asyncio.LimitOverrunError as error:
        # It never parts CR from LF: a CR at the end stays in the reader.
        return await reader.read(error.consumed), False
