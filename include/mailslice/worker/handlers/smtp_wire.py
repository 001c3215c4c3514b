"""A mail's bytes as SMTP wants them. Only the wire sees these: what is stored is never changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from email.header import Header

from mailslice.model.mail import RecipientHeader

_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_FIRST_DOT = re.compile(rb"(?m)^\.")
_HEADER_NAME = re.compile(r"[!-9;-~]+")


def on_the_wire(content: bytes) -> bytes:
    """Every line end as CRLF (RFC 5321 2.3.8: bare CR and LF must not be sent); all other bytes as they are."""
    return _BARE.sub(b"\r\n", content)


def with_end(wire: bytes) -> bytes:
    """What follows DATA: dots at the start of a line doubled (RFC 5321 4.5.2), and the end of the mail."""
    doubled = _FIRST_DOT.sub(b"..", wire)
    return doubled + (b".\r\n" if doubled.endswith(b"\r\n") else b"\r\n.\r\n")


def header_block(headers: Iterable[RecipientHeader]) -> bytes:
    """Header lines to stand before the mail's own. A line break in a value becomes a space, beyond ASCII it is encoded (RFC 2047)."""
    lines = []
    for header in headers:
        if _HEADER_NAME.fullmatch(header.name):
            value = " ".join(header.value.split())
            shown = value if value.isascii() else Header(value, "utf-8").encode()
            lines.append(on_the_wire(f"{header.name}: {shown}\n".encode("ascii")))
    return b"".join(lines)


def is_sendable(address: str) -> bool:
    """Whether an address can stand in a command at all: no control character, no angle bracket that would end it."""
    return not any(ord(c) < 32 or ord(c) == 127 or c in "<>" for c in address)
