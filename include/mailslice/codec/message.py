r"""The message body of the work queue: James' JSON, with James' order of fields and its numbers
(tests/golden has messages that a real James wrote).

`encode` is stable to the byte. Jackson writes a character beyond the BMP as two `\uXXXX` escapes,
and hex digits in upper case. orjson does neither, so `encode` rewrites such parts of its output.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from mailslice.model.errors import Undecodable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail, RecipientHeader

_FIELDS = tuple(
    """
    enqueueId recipients name sender state errorMessage lastUpdated attributes remoteAddr
    remoteHost perRecipientHeaders headerBlobId bodyBlobId
    """.split()
)
_KEYS = tuple(f'"{field}"'.encode() for field in _FIELDS)
_LONGEST_KEY = 1024
"""Bytes of UTF-8. For a longer key S3 answers with an error instead of "not found"."""
_NULL = orjson.Fragment(b"null")
_NANOS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_NS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) * _NANOS
_LATEST_NS = ((datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) + 1) * _NANOS - 1

_BEYOND_BMP = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
_ESCAPE = re.compile(rb"\\(?:u00[0-9a-f]{2}|.)")
_LAST_UPDATED = re.compile(
    rb'"lastUpdated"(?<!\\"lastUpdated")\s*:\s*(-?\d{1,12}(?:\.\d+)?)\s*[,}]'
)
"""The literal comes before its lookbehind: `re` is fast only with a literal prefix."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def encode(item: QueuedMail) -> bytes:
    """The body as James writes it. Raises Undecodable: lone surrogate, or attribute not UTF-8."""
    mail = item.mail
    try:
        body = orjson.dumps(
            {
                "enqueueId": str(item.enqueue_id),
                "recipients": mail.recipients,
                "name": mail.name,
                "sender": mail.sender,
                "state": mail.state,
                "errorMessage": mail.error_message,
                "lastUpdated": _NULL
                if mail.last_updated_ns is None
                else orjson.Fragment(_number(mail.last_updated_ns)),
                "attributes": {
                    name: str(value, "utf-8") for name, value in mail.attributes.items()
                },
                "remoteAddr": mail.remote_addr,
                "remoteHost": mail.remote_host,
                "perRecipientHeaders": _grouped(mail.per_recipient_headers),
                "headerBlobId": item.header_blob_id,
                "bodyBlobId": item.body_blob_id,
            }
        )
    except (orjson.JSONEncodeError, UnicodeDecodeError) as error:
        raise Undecodable(
            f"mail {item.enqueue_id} cannot be written as JSON: {type(error).__name__}"
        ) from None
    if b"\\u00" in body:
        body = _ESCAPE.sub(_upper, body)
    if not body.isascii() and _BEYOND_BMP.search(body):
        body = _BEYOND_BMP.sub(_surrogates, body)
    return body


def decode(body: bytes) -> QueuedMail:
    """The mail in a message's body. Raises Undecodable, whose text never names an address."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Undecodable(f"not JSON: {error.msg} (byte {error.pos})") from None
    if not isinstance(fields, dict):
        raise Undecodable("not a JSON object")
    if any(body.count(key) > 1 for key in _KEYS):
        _refuse_duplicate_keys(body)
    sender = _optional(fields, "sender")
    mail = Mail(
        name=_required(fields, "name"),
        sender=None if sender == "<>" else sender,
        recipients=_recipients(fields),
        state=_optional(fields, "state"),
        error_message=_optional(fields, "errorMessage"),
        last_updated_ns=_last_updated(fields, body),
        attributes={
            name: _attribute(value).encode()
            for name, value in _object(fields, "attributes").items()
        },
        remote_addr=_optional(fields, "remoteAddr"),
        remote_host=_optional(fields, "remoteHost"),
        per_recipient_headers=_flat(_object(fields, "perRecipientHeaders")),
    )
    header, body_id = _blob_id(fields, "headerBlobId"), _blob_id(fields, "bodyBlobId")
    return QueuedMail(_enqueue_id(fields), mail, header, body_id)


def uuids_in(body: bytes) -> set[EnqueueId]:
    """UUIDs in an undecodable body. One may be the enqueue id of a mail that James can decode."""
    return {EnqueueId(UUID(text)) for text in _UUID.findall(body.decode("latin-1"))}


def _number(nanos: int) -> bytes:
    """Jackson's decimal of an Instant: nine decimal places, except `0.0` for the epoch itself."""
    if nanos == 0:
        return b"0.0"
    sign, magnitude = ("-", -nanos) if nanos < 0 else ("", nanos)
    seconds, rest = divmod(magnitude, _NANOS)
    return f"{sign}{seconds}.{rest:09d}".encode()


def _grouped(headers: Sequence[RecipientHeader]) -> dict[str, dict[str, dict[str, list[str]]]]:
    grouped: dict[str, dict[str, dict[str, list[str]]]] = {}
    for header in headers:
        named = grouped.setdefault(header.recipient, {"header": {}})["header"]
        named.setdefault(header.name, []).append(header.value)
    return grouped


def _upper(match: re.Match[bytes]) -> bytes:
    escape = match[0]
    return b"\\u" + escape[2:].upper() if len(escape) > 2 else escape


def _surrogates(match: re.Match[bytes]) -> bytes:
    offset = ord(match[0].decode()) - 0x10000
    return b"\\u%04X\\u%04X" % (0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF))


def _refuse_duplicate_keys(body: bytes) -> None:
    """Raises Undecodable: parsers disagree on a field given twice. Ignores inner objects."""
    outermost = _loads_slowly(body, object_pairs_hook=list)
    for key, times in Counter(key for key, _ in outermost).items():
        if times > 1 and key in _FIELDS:
            raise Undecodable(f"field {key} is given {times} times")


def _loads_slowly(body: bytes, **hooks: Any) -> Any:
    """Parses with `json`, whose hooks tell more than orjson. It allows fewer levels and digits."""
    try:
        return json.loads(body, **hooks)
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise Undecodable(f"JSON with too many levels or digits: {type(error).__name__}") from None


def _required(fields: Mapping[str, Any], field: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str):
        raise Undecodable(f"field {field} is missing or not text")
    return value


def _blob_id(fields: Mapping[str, Any], field: str) -> BlobId:
    value = _required(fields, field)
    if not value:
        raise Undecodable(f"field {field} is empty")
    if len(value) > _LONGEST_KEY or (not value.isascii() and len(value.encode()) > _LONGEST_KEY):
        raise Undecodable(f"field {field} is longer than S3 allows")
    return BlobId(value)


def _optional(fields: Mapping[str, Any], field: str) -> str | None:
    value = fields.get(field)
    if value is not None and not isinstance(value, str):
        raise Undecodable(f"field {field} is not text")
    return value


def _object(fields: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = fields.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Undecodable(f"field {field} is not an object")
    return value


def _enqueue_id(fields: Mapping[str, Any]) -> EnqueueId:
    text = _required(fields, "enqueueId")
    if not _UUID.fullmatch(text):
        raise Undecodable("field enqueueId is not a UUID")
    return EnqueueId(UUID(text))


def _recipients(fields: Mapping[str, Any]) -> tuple[str, ...]:
    value = fields.get("recipients")
    if not isinstance(value, list) or not all(isinstance(recipient, str) for recipient in value):
        raise Undecodable("field recipients is missing or not a list of text")
    return tuple(value)


def _attribute(value: object) -> str:
    if not isinstance(value, str):
        raise Undecodable("an attribute is not text")
    return value


def _flat(recipients: Mapping[str, Any]) -> tuple[RecipientHeader, ...]:
    if not recipients:
        return ()
    try:
        flat = tuple(
            RecipientHeader(recipient, name, value)
            for recipient, headers in recipients.items()
            for name, values in headers["header"].items()
            for value in values
        )
    except (TypeError, KeyError, AttributeError):
        raise Undecodable("field perRecipientHeaders is not as James writes it") from None
    if not all(isinstance(header.value, str) for header in flat):
        raise Undecodable("a header of perRecipientHeaders is not text")
    return flat


def _last_updated(fields: Mapping[str, Any], body: bytes) -> int | None:
    """Nanoseconds, exactly, from the digits in `body`: a float keeps only about 16 digits."""
    value = fields.get("lastUpdated")
    if value is None:
        return None
    if isinstance(value, str):
        return _checked(_iso_nanos(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Undecodable("field lastUpdated is not a number")
    matches = _LAST_UPDATED.findall(body)
    if len(matches) == 1 and float(matches[0]) == value:
        exact = Decimal(matches[0].decode())
    else:  # another field of this name, an exponent, or escapes in the key
        exact = Decimal(_loads_slowly(body, parse_float=Decimal)["lastUpdated"])
    return _checked(int(exact.scaleb(9)))


def _iso_nanos(text: str) -> int:
    wrong = "field lastUpdated is neither a number nor an ISO 8601 instant with its zone"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise Undecodable(wrong) from None
    if instant.tzinfo is None:
        raise Undecodable(wrong)
    return (instant - _EPOCH) // timedelta(microseconds=1) * 1000


def _checked(nanos: int) -> int:
    if not _EARLIEST_NS <= nanos <= _LATEST_NS:
        raise Undecodable("field lastUpdated is outside the years 1 to 9999")
    return nanos
