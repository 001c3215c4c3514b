"""Our own S3 client on the event loop: HEADs, copies, and PUTs and GETs of small objects.

It recognises success only. After anything else `async_store` repeats the request by obstore, and
`s3_store` by boto3: those handle retries, errors, proxies and credentials of the machine.
"""

import asyncio
import hmac
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import sha256
from random import uniform
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from typing_extensions import Buffer

from mailslice.model.settings import BlobProvider, S3Settings
from mailslice.stores.blobs.http_pool import Answer, HttpPool
from mailslice.stores.tls import s3_authorities

log = logging.getLogger(__name__)
SMALL = 64 * 1024
"""Bytes of the largest small object."""
_CONNECT_SECONDS = 5.0
_FAILURES = 5
_REST_SECONDS = 5.0
"""After five failures in a row this client rests for 5 s: else S3 would get each request twice."""
_BUSY = (429, 500, 502, 503, 504)
_NO_BYTES = (404, 416)
"""Statuses: no such key; the range of an empty object."""
_RESTING = Answer()
_BUSY_PAUSE = 0.1
"""Seconds at most. obstore, which is asked next, pauses as long before its second try."""
EMPTY = sha256(b"").hexdigest()
"""The SHA-256 of an empty payload."""
_SIGNED = "host;x-amz-content-sha256;x-amz-date"
_SIGNED_OF_COPY = "host;x-amz-content-sha256;x-amz-copy-source;x-amz-date"


def can_serve(settings: S3Settings) -> bool:
    """Whether the provider is S3, the settings hold the keys, and no proxy is in between."""
    if settings.provider is not BlobProvider.S3:
        return False
    endpoint = urlsplit(settings.endpoint)
    proxies = getproxies()
    has_proxy = endpoint.scheme in proxies or "all" in proxies
    is_direct = not has_proxy or bool(proxy_bypass(endpoint.netloc))
    return is_direct and settings.access_key is not None and settings.secret_key is not None


class SmallObjects:
    """One bucket, addressed by path, for one event loop."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        endpoint = urlsplit(settings.endpoint)
        secure = endpoint.scheme == "https"
        usual = 443 if secure else 80
        port = endpoint.port or usual
        name = endpoint.hostname or ""
        host = (f"[{name}]" if ":" in name else name) + ("" if port == usual else f":{port}")
        secret = settings.secret_key.get_secret_value() if settings.secret_key else ""
        seconds = min(settings.timeout.total_seconds(), _CONNECT_SECONDS)
        self._prefix = f"{endpoint.path.rstrip('/')}/{bucket}/"
        self._signer = Signer(host, settings.region, settings.access_key or "", secret)
        self._pool = HttpPool(name, port, _tls(settings) if secure else None, seconds, 2 * SMALL)
        self._failures = 0
        self._rests_until = 0.0

    async def put(self, key: str, content: Buffer) -> bool:
        """Writes the object, over an older one. False: it may or may not be written."""
        path = self._prefix + quote(key)
        head = (
            f"PUT {path} HTTP/1.1\r\n"
            f"{self._signer.headers('PUT', path, sha256(content).hexdigest())}"
            f"Content-Length: {memoryview(content).nbytes}\r\n"
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        answer = await self._answer(b"".join((head.encode(), content)))
        return self._is_well(answer, answer.status == 200 and b"etag" in answer.headers)

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The first 64 KiB of the object, and its size. None: ask obstore."""
        path = self._prefix + quote(key)
        signed = self._signer.headers("GET", path, EMPTY)
        head = f"GET {path} HTTP/1.1\r\n{signed}Range: bytes=0-{SMALL - 1}\r\n\r\n"
        answer = await self._answer(head.encode())
        if answer.status in _NO_BYTES:
            return None
        size = _size(answer)
        return (answer.body, size) if self._is_well(answer, size > 0) else None

    async def head(self, key: str) -> tuple[int, datetime] | None:
        """The object's size in bytes and its last-modified (whole seconds). None: ask boto3."""
        path = self._prefix + quote(key)
        head = f"HEAD {path} HTTP/1.1\r\n{self._signer.headers('HEAD', path, EMPTY)}\r\n"
        answer = await self._answer(head.encode(), has_body=False)
        if answer.status in _NO_BYTES:
            return None
        size = answer.headers.get(b"content-length", b"")
        modified = _time(answer.headers.get(b"last-modified", b""))
        is_well = self._is_well(answer, answer.status == 200 and size.isdigit() and bool(modified))
        return (int(size), modified) if is_well and modified else None

    async def copy(self, source: str, key: str, to: str) -> bool | None:
        """Copies an object of bucket `source` into this one, within S3. None: outcome unknown."""
        path = self._prefix + quote(to)
        signed = self._signer.headers("PUT", path, EMPTY, quote(f"{source}/{key}"))
        head = f"PUT {path} HTTP/1.1\r\n{signed}Content-Length: 0\r\n\r\n"
        answer = await self._answer(head.encode())
        # A failed copy of S3, and a page of a proxy, have status 200, too.
        return (answer.status == 200 and b"ETag>" in answer.body) or None

    def close(self) -> None:
        self._pool.close()

    async def _answer(self, request: bytes, *, has_body: bool = True) -> Answer:
        """S3's answer. Status 0: S3 gave none, or this client rests and did not ask."""
        if asyncio.get_running_loop().time() < self._rests_until:
            return _RESTING
        try:
            answer = await self._pool.request(request, has_body=has_body)
        except (OSError, UnicodeError) as error:  # an invalid host name is a UnicodeError
            return Answer(body=(str(error) or type(error).__name__).encode())
        if answer.status in _BUSY:
            await asyncio.sleep(uniform(_BUSY_PAUSE / 2, _BUSY_PAUSE))
        return answer

    def _is_well(self, answer: Answer, well: bool) -> bool:
        """Returns `well`, and counts failures: five in a row start a rest."""
        if well:
            self._failures = 0
        elif answer is not _RESTING:
            self._failures += 1
            if self._failures >= _FAILURES:
                self._failures = 0
                self._rests_until = asyncio.get_running_loop().time() + _REST_SECONDS
                why = f"status {answer.status}" if answer.status else answer.body.decode()
                log.info("small objects go by obstore for %g s: %s", _REST_SECONDS, why)
        return well


@dataclass(slots=True)
class Signer:
    """Signs for one host, region and key: AWS Signature Version 4, header-based."""

    host: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)
    clock: Callable[[], float] = time.time
    _second: int = -1
    _date: str = ""
    _scope: str = ""
    _key: bytes = field(default=b"", repr=False)

    def headers(self, method: str, path: str, payload: str, copied: str = "") -> str:
        """The header lines for this percent-encoded path; `payload` is the hash of the body,
        `copied` the percent-encoded source of a copy.
        """
        if (second := int(self.clock())) != self._second:
            self._begin(second)
        names, source = _SIGNED, ""
        if copied:
            names, source = _SIGNED_OF_COPY, f"x-amz-copy-source:{copied}\n"
        request = (
            f"{method}\n{path}\n\nhost:{self.host}\nx-amz-content-sha256:{payload}\n{source}"
            f"x-amz-date:{self._date}\n\n{names}\n{payload}"
        )
        hashed = sha256(request.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{self._date}\n{self._scope}\n{hashed}"
        signature = hmac.digest(self._key, to_sign.encode(), "sha256").hex()
        source = source.replace("\n", "\r\n")
        return (
            f"Host: {self.host}\r\nx-amz-content-sha256: {payload}\r\nx-amz-date: {self._date}\r\n"
            f"{source}Authorization: AWS4-HMAC-SHA256 Credential={self.access_key}/{self._scope}, "
            f"SignedHeaders={names}, Signature={signature}\r\n"
        )

    def _begin(self, second: int) -> None:
        self._second = second
        self._date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = self._date[:8]
        scope = f"{day}/{self.region}/s3/aws4_request"
        if scope == self._scope:
            return
        key = b"AWS4" + self.secret_key.encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._scope, self._key = scope, key


@lru_cache(1024)
def _time(modified: bytes) -> datetime | None:
    try:
        when = parsedate_to_datetime(modified.decode("ascii"))
    except ValueError:
        return None
    return when if when.tzinfo else None


def _size(answer: Answer) -> int:
    """The object's size in bytes, if the answer is the requested range of it; else 0."""
    part, _, total = answer.headers.get(b"content-range", b"").partition(b"/")
    size, length = int(total) if total.isdigit() else 0, len(answer.body)
    is_first = part == b"bytes 0-%d" % (length - 1) and length == min(size, SMALL)
    return size if answer.status == 206 and is_first else 0


def _tls(settings: S3Settings) -> ssl.SSLContext:
    """Trusts the authority of the settings and those of the machine, as obstore does."""
    context = ssl.create_default_context()
    if s3_authorities(settings):
        context.load_verify_locations(cafile=settings.ca)
    return context
