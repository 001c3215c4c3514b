"""What S3 is called in messages, and keys that not every client or server can express.

A message or a row may name any key: what cannot be there is missing, and no reason to wait for S3.
Apart from the clients, so that the hot path need not import boto3.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from mailslice.model.errors import BadSetting
from mailslice.model.settings import S3Settings

_LONGEST = 1024
"""Bytes of a key, by S3's documentation."""
_CONTROLS = frozenset(map(chr, (*range(32), 127)))


def needs_boto3(key: str) -> bool:
    """Whether the object_store crate would change or refuse the key: it drops slashes at the ends,
    allows no empty or dotted segments, no control characters.

    Standard base64 has slashes, so about one deduplicated id in 40 is such a key.
    """
    if not _CONTROLS.isdisjoint(key):
        return True
    return ("/" in key or key in (".", "..")) and any(
        segment in ("", ".", "..") for segment in key.split("/")
    )


def is_impossible(key: str) -> bool:
    """Whether no S3 server can hold such a key."""
    try:
        return "\0" in key or not 0 < len(key.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return True


def s3_location(settings: S3Settings) -> str:
    """host:port of the endpoint, for messages."""
    return urlsplit(settings.endpoint).netloc.rpartition("@")[2] or settings.endpoint


def wrong_key(settings: S3Settings, why: str) -> BadSetting:
    """The error for credentials that S3 refuses."""
    return BadSetting(
        f"S3 at {s3_location(settings)} refuses the key of MAILSLICE_S3_ACCESS_KEY and "
        f"MAILSLICE_S3_SECRET_KEY ({settings.access_key!r}): {why}"
    )
