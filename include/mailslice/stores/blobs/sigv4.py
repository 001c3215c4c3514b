"""AWS Signature Version 4: docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from hashlib import sha256

EMPTY = sha256(b"").hexdigest()
"""The hash of no payload."""
_SIGNED = "host;x-amz-content-sha256;x-amz-date"


class Signer:
    """Signs for one host, region and key."""

    def __init__(
        self,
        host: str,
        region: str,
        access_key: str,
        secret_key: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._region = region
        self._access_key = access_key
        self._secret = b"AWS4" + secret_key.encode()
        self._clock = clock
        self._second = -1
        self._date = ""
        self._scope = ""
        self._key = b""

    def headers(self, method: str, path: str, payload: str) -> str:
        """The header lines for this percent-encoded path; `payload` is the hash of the body."""
        if (second := int(self._clock())) != self._second:
            self._begin(second)
        request = (
            f"{method}\n{path}\n\nhost:{self._host}\nx-amz-content-sha256:{payload}\n"
            f"x-amz-date:{self._date}\n\n{_SIGNED}\n{payload}"
        )
        hashed = sha256(request.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{self._date}\n{self._scope}\n{hashed}"
        signature = hmac.digest(self._key, to_sign.encode(), "sha256").hex()
        return (
            f"Host: {self._host}\r\nx-amz-content-sha256: {payload}\r\nx-amz-date: {self._date}\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._access_key}/{self._scope}, "
            f"SignedHeaders={_SIGNED}, Signature={signature}\r\n"
        )

    def _begin(self, second: int) -> None:
        self._second = second
        self._date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = self._date[:8]
        scope = f"{day}/{self._region}/s3/aws4_request"
        if scope == self._scope:
            return
        key = self._secret
        for part in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._scope, self._key = scope, key
