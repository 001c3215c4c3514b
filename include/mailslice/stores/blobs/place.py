"""What S3 is called in messages. Apart from the clients, so that the hot path need not import boto3."""

from __future__ import annotations

from urllib.parse import urlsplit

from mailslice.model.errors import BadSetting
from mailslice.model.settings import S3Settings


def s3_place(settings: S3Settings) -> str:
    """host:port of the endpoint, for messages."""
    return urlsplit(settings.endpoint).netloc.rpartition("@")[2] or settings.endpoint


def wrong_key(settings: S3Settings, why: str) -> BadSetting:
    """The error for credentials that S3 refuses."""
    return BadSetting(
        f"S3 at {s3_place(settings)} refuses the key of MAILSLICE_S3_ACCESS_KEY and MAILSLICE_S3_SECRET_KEY ({settings.access_key!r}): {why}"
    )
