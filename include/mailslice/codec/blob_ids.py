"""Ids of blobs, which are their keys in S3.

passthrough: a random UUID. deduplication: the SHA-256 in standard base64 with padding, as the James
of tests/golden/deduplication.json writes it; a setting (in James a JVM property) chooses base64url
or hex. All spellings are read. A generation-aware id has the prefix `FAMILY_GENERATION_`, with
generation = floor(epoch seconds / duration seconds).
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from uuid import uuid4

from typing_extensions import Buffer

from mailslice.codec.row import epoch_ms
from mailslice.model.clock import Clock
from mailslice.model.mail import BlobId
from mailslice.model.settings import BlobIdKind, BlobSettings, BlobStrategy, HashEncoding

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_PLAIN = re.compile(rf"{_UUID.pattern}|[0-9a-f]{{64}}|[A-Za-z0-9+/_-]{{43}}=", re.ASCII)
_HASH = re.compile(
    rf"{_PLAIN.pattern}|[0-9A-F]{{64}}|[A-Z2-7]{{52}}====|[0-9A-V]{{52}}====", re.ASCII
)
"""Every spelling that James' property james.blob.id.hash.encoding allows, and a UUID."""
_BARE = re.compile(r"[0-9a-f]{32}|[A-Za-z0-9_-]{43}", re.ASCII)
"""A UUID without dashes, or base64url without padding: only after `FAMILY_GENERATION_`."""
_AWARE = re.compile(r"(\d{1,10})_(\d{1,18})_(.+)", re.ASCII | re.DOTALL)
SPELLINGS = ("-_/", "+")
"""Arguments of `translate`: characters in which spellings of one id differ (base64 and base64url,
`FAMILY_GENERATION_HASH` and its MinIO form), and their replacements; the last two are dropped. Only
for keeping blobs that a reference may mean. Two ids that become one text are as unlikely as two
contents with one hash.
"""
_MINIO = re.compile(r"(\d{1,10})/(\d{1,18})/(.)/(..)/(.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedBlobId:
    """The parts of a key; a plain id has neither family nor generation."""

    family: int | None
    generation: int | None
    hash: str


class BlobIds:
    """Makes the ids of new blobs, by the settings."""

    def __init__(self, settings: BlobSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def new(self, content: Buffer) -> BlobId:
        """A random id (passthrough), or the id of this content (deduplication)."""
        settings, random = self._settings, self._settings.strategy is BlobStrategy.PASSTHROUGH
        plain = str(uuid4()) if random else content_hash(content, settings.hash_encoding)
        if self._settings.id is BlobIdKind.PLAIN:
            return BlobId(plain)
        return BlobId(f"{self._settings.family}_{self.generation()}_{plain}")

    def generation(self) -> int:
        seconds = max(1, int(self._settings.generation_duration.total_seconds()))
        return epoch_ms(self._clock()) // 1000 // seconds


def content_hash(content: Buffer, encoding: HashEncoding = HashEncoding.BASE64) -> str:
    """SHA-256 of the content, by default in standard base64 with padding.

    S3 servers that keep files refuse or change a key with an empty path segment (`/` first, or
    `//`; one hash in 38). Such a hash is spelled in base64url, which James reads like any id.
    """
    digest = hashlib.sha256(content).digest()
    match encoding:
        case HashEncoding.BASE64:
            text = base64.b64encode(digest).decode()
            has_empty_segment = text.startswith("/") or "//" in text
            return base64.urlsafe_b64encode(digest).decode() if has_empty_segment else text
        case HashEncoding.BASE64URL:
            return base64.urlsafe_b64encode(digest).decode()
        case HashEncoding.HEX:
            return digest.hex()


def parse(key: str) -> ParsedBlobId:
    """The parts of `FAMILY_GENERATION_HASH`, or of its MinIO form. Every other key is plain."""
    if _PLAIN.fullmatch(key):
        return ParsedBlobId(None, None, key)
    if aware := _AWARE.fullmatch(key):
        return ParsedBlobId(int(aware[1]), int(aware[2]), aware[3])
    if minio := _MINIO.fullmatch(key):
        return ParsedBlobId(int(minio[1]), int(minio[2]), minio[3] + minio[4] + minio[5])
    return ParsedBlobId(None, None, key)


def is_random(blob_id: str) -> bool:
    """Whether the id is a UUID: such a blob is one mail's, whose completion may delete it (I6)."""
    return (_UUID.fullmatch(blob_id) or _UUID.fullmatch(parse(blob_id).hash)) is not None


def is_blob_id(key: str) -> bool:
    """Whether James or mailslice gives blobs such keys. Other objects are of other programs."""
    parsed = parse(key)
    bare = None if parsed.generation is None else _BARE.fullmatch(parsed.hash)
    return (_HASH.fullmatch(parsed.hash) or bare) is not None


def is_active(parsed: ParsedBlobId, family: int, generation: int) -> bool:
    """Whether James may still give this id to new content. Without a generation: never."""
    known = parsed.generation
    return parsed.family == family and known is not None and known + 1 >= generation
