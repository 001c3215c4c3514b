"""Keys that not every client or server can express, and the names of the service in messages.

A message or a row may name any key. A key that no server can hold is missing; a retry would not
help. This module imports no client, so that the hot path does not load boto3.
"""

import re
from functools import partial
from urllib.parse import unquote, urlsplit

from mailslice.model.errors import BadSetting, ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import BlobProvider, S3Settings

_LONGEST = 1024
"""Bytes of the longest key, by S3's documentation. Azure and GCS allow as many."""
_CONTROLS = frozenset(map(chr, (*range(32), 127)))
_TO_ESCAPE = re.compile(r"[%\x00-\x1f\x7f]")
_SEGMENTS = {"": "%", ".": "%2E", "..": "%2E%2E"}
"""Segments that obstore cannot express, and their escapes for providers without boto3."""
_NAMES = {BlobProvider.S3: "S3", BlobProvider.AZURE: "Azure", BlobProvider.GCS: "GCS"}
GCS_ENDPOINT = "https://storage.googleapis.com"


def needs_boto3(key: str) -> bool:
    """Whether the object_store crate would change or refuse the key: it drops slashes at the ends,
    allows no empty or dotted segments, no control characters.

    Standard base64 has slashes, so about one deduplicated id in 40 is such a key.
    """
    if not _CONTROLS.isdisjoint(key):
        return True
    has_segments = "/" in key or key in (".", "..")
    return has_segments and any(segment in _SEGMENTS for segment in key.split("/"))


def is_impossible(key: str) -> bool:
    """Whether no server can hold such a key."""
    try:
        return "\0" in key or not 0 < len(key.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return True


def escape_key(key: str) -> str:
    """The path of a key in Azure or GCS: the key, with `%` escapes where obstore needs them."""
    if "%" not in key and not needs_boto3(key):
        return key
    escaped = partial(_TO_ESCAPE.sub, lambda match: f"%{ord(match[0]):02X}")
    return "/".join(_SEGMENTS.get(segment) or escaped(segment) for segment in key.split("/"))


def unescape_key(path: str) -> str:
    if "%" not in path:
        return path
    return "/".join("" if segment == "%" else unquote(segment) for segment in path.split("/"))


def service(settings: S3Settings) -> str:
    """`S3 at HOST:PORT`, for messages."""
    if settings.provider is BlobProvider.GCS:
        return "GCS"
    host = urlsplit(settings.endpoint).netloc.rpartition("@")[2] or settings.endpoint
    return f"{_NAMES[settings.provider]} at {host}"


def refused_credentials(settings: S3Settings, why: str) -> BadSetting:
    region = f", MAILSLICE_S3_REGION={settings.region!r}"
    return BadSetting(
        f"{service(settings)} refuses the key of MAILSLICE_S3_ACCESS_KEY and "
        f"MAILSLICE_S3_SECRET_KEY ({settings.access_key!r}"
        f"{region if settings.provider is BlobProvider.S3 else ''}): {why}"
    )


def missing_content(settings: S3Settings, bucket: str, blob_id: BlobId) -> ContentMissing:
    name, _, address = service(settings).partition(" at ")
    at = f" at {address}" if address else ""
    return ContentMissing(f"{name} bucket {bucket!r}{at} has no object {blob_id!r}")


def no_answer(settings: S3Settings, bucket: str, field: str = "ETag") -> StoreUnavailable:
    """The error for a 200 without `field`: the answer is not the service's, but a proxy's, say."""
    return StoreUnavailable(f"{service(settings)}, bucket {bucket!r}: an answer has no {field}")
