"""Derives an envelope from a mail's header. Never parses the body; raises nothing."""

import email.parser
import email.policy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mailslice.codec.address_list import parse_addresses
from mailslice.codec.content import header_end

_SENDER_FIELDS = ("return-path", "sender", "from")
_RECIPIENT_FIELDS = ("to", "cc", "bcc")
_RESENT_FIELDS = ("resent-to", "resent-cc", "resent-bcc")
_FIELDS_READ = {*_SENDER_FIELDS, *_RECIPIENT_FIELDS, *_RESENT_FIELDS}

_PARSER = email.parser.BytesHeaderParser(policy=email.policy.compat32)
_FOLD = re.compile(r"[\r\n]+[ \t]*")
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_FIELD_LINE = re.compile(rb"([!-9;-~]+)[ \t]*:|From ")
_ODD_LINE = re.compile(rb"(?:\A|[\r\n])(?!From (?![ \t]*:)|[!-9;-~]*:|[ \t\r\n]|\Z)")
_MAX_MENDED = 8 << 20
"""Bytes of a header that are mended, at most. No real mail has a longer header with odd lines."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """`sender` None: the null sender, or no sender. `recipients`: each once."""

    sender: str | None
    recipients: tuple[str, ...]


def envelope(content: bytes) -> Envelope:
    """Sender from Return-Path, Sender or From; recipients from To, Cc, Bcc, else from Resent-*."""
    fields = _fields(bytes(content[: header_end(content)]))
    to, resent = (_addresses(fields, names) for names in (_RECIPIENT_FIELDS, _RESENT_FIELDS))
    return Envelope(_sender(fields), _unique(to) or _unique(resent))


def _fields(header: bytes) -> dict[str, list[str]]:
    """Lower-case name -> unfolded values, decoded as UTF-8, of the fields in _FIELDS_READ."""
    fields: dict[str, list[str]] = {}
    for name, value in _PARSER.parsebytes(_repaired(header)).raw_items():
        key = str(name).lower()
        if key in _FIELDS_READ:
            text = str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            fields.setdefault(key, []).append(_FOLD.sub(" ", text))
    return fields


def _repaired(header: bytes) -> bytes:
    """The header without lines that are no field, and without blanks before colons: the parser
    takes the header to end at the first such line.

    Real mail has `>From ` lines of old spools, byte order marks, `To :` (RFC 5322 4.5), and lines
    that a filter broke. At two adjacent lines without a colon the body begins, without an empty
    line before it: fields that it quotes name no recipient.
    """
    header = header.removeprefix(_BOM)
    if _ODD_LINE.search(header) is None:
        return header
    retained = []
    inside = odd = False
    for line in _LINE.findall(header[:_MAX_MENDED]):
        if line[:1] in (b" ", b"\t"):
            if inside:
                retained.append(line)
            continue
        field = _FIELD_LINE.match(line)
        inside = field is not None
        if field is not None:
            retained.append(line if field[1] is None else field[1] + b":" + line[field.end() :])
            odd = False
        elif b":" not in line and not line.startswith(b">From "):
            if odd:
                break
            odd = True
    return b"".join(retained)


def _sender(fields: dict[str, list[str]]) -> str | None:
    for name in _SENDER_FIELDS:
        for value in fields.get(name, []):
            if name == "return-path" and value.replace(" ", "") == "<>":
                return None
            address = next(iter(parse_addresses(value)), None)
            if address:
                return address
    return None


def _addresses(fields: dict[str, list[str]], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for value in fields.get(name, []):
            yield from parse_addresses(value)


def _unique(addresses: Iterable[str]) -> tuple[str, ...]:
    # lower() merges the fewest addresses: casefold() or folded() might lose a recipient.
    by_key: dict[str, str] = {}
    for address in addresses:
        by_key.setdefault(address.lower(), address)
    return tuple(by_key.values())
