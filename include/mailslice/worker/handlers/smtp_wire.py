"""A mail's bytes on the wire, as SMTP wants them. The stored content is never changed.

The pieces are made while they are sent, so a mail of any size costs the memory of one piece, and no
call holds Python's lock (GIL) for long.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.header import Header
from re import compile as pattern
from typing import Self

from mailslice.model.mail import RecipientHeader

PIECE = 64 * 1024
_STEP = 1 << 20
"""Bytes in which one call counts line ends."""
_HEADER_NAME = pattern(r"[!-9;-~]+")
_QUOTED_LOCAL_PART = pattern(r'^"(?:[^"\\]|\\.)*"@')


@dataclass(frozen=True, slots=True)
class Body:
    """A mail's content, and what the MAIL command says of it (SIZE, BODY)."""

    content: bytes
    size: int
    """With every line end as CRLF, before dots are doubled (RFC 1870)."""
    is_ascii: bool

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Counts line ends without a copy of the content."""
        size = len(content)
        for start in range(0, len(content), _STEP):
            end = start + _STEP
            size += content.count(b"\n", start, end) + content.count(b"\r", start, end)
            size -= 2 * content.count(b"\r\n", start, end + 1)  # those that begin in this step
        return cls(content, size, content.isascii())


def data(head: bytes, content: bytes) -> Iterator[bytes]:
    """The bytes after DATA, in pieces of about 64 KiB. The last piece has the end of the mail.

    Every line end becomes CRLF (RFC 5321 2.3.8: bare CR and LF must not be sent). Dots at the start
    of a line are doubled (4.5.2). All other bytes stay.
    """
    line_begins, pending_cr, ready = True, b"", b""
    for piece in _slices(head, content):
        raw = pending_cr + piece
        pending_cr = b"\r" if raw.endswith(b"\r") else b""  # its LF may come with the next piece
        if not (raw := raw.removesuffix(pending_cr)):
            continue
        if ready:
            yield ready
        ready = _dots_doubled(_crlf(raw), first=line_begins)
        line_begins = ready.endswith(b"\n")
    if pending_cr:
        ready, line_begins = ready + b"\r\n", True
    yield ready + (b".\r\n" if line_begins and ready else b"\r\n.\r\n")


def _slices(*parts: bytes) -> Iterator[bytes]:
    for part in parts:
        for start in range(0, len(part), PIECE):
            yield part[start : start + PIECE]


def _crlf(raw: bytes) -> bytes:
    pairs = raw.count(b"\r\n")
    if raw.count(b"\n") == pairs == raw.count(b"\r"):
        return raw
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\r\n")


def _dots_doubled(wire: bytes, *, first: bool) -> bytes:
    doubled = wire.replace(b"\r\n.", b"\r\n..")
    return b"." + doubled if first and wire.startswith(b".") else doubled


def header_block(headers: Iterable[RecipientHeader]) -> bytes:
    """Header lines before the mail's own: line breaks become spaces, text beyond ASCII RFC 2047."""
    lines = []
    for header in headers:
        if _HEADER_NAME.fullmatch(header.name):
            value = " ".join(header.value.split())
            shown = value if value.isascii() else Header(value, "utf-8").encode(linesep="\r\n")
            lines.append(f"{header.name}: {shown}\r\n".encode("ascii"))
    return b"".join(lines)


def is_sendable(address: str) -> bool:
    """Whether an address can stand in a command: no control character, no bare angle bracket."""
    bare = _QUOTED_LOCAL_PART.sub("@", address)
    return not (any(ord(c) < 32 or ord(c) == 127 for c in address) or "<" in bare or ">" in bare)
