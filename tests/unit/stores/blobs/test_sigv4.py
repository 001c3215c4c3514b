"""Signatures, compared with botocore's own."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from mailslice.stores.blobs import small
from mailslice.stores.blobs.small import Signer

NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC).timestamp()


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def botocores(
    monkeypatch: pytest.MonkeyPatch, method: str, url: str, payload: str, at: float, **more: str
) -> str:
    """The Authorization header that botocore makes for the same signed headers."""
    moment = datetime.fromtimestamp(int(at), UTC).replace(tzinfo=None)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: moment)
    request = AWSRequest(method, url, headers={"x-amz-content-sha256": payload, **more})
    auth = S3SigV4Auth(Credentials("access", "secret/key"), "s3", "eu-west-1")
    monkeypatch.setattr(auth, "payload", lambda _request: payload)
    auth.add_auth(request)
    return str(request.headers["Authorization"])


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("path", ["/bucket/plain", "/prefix/bucket/a%2Bb/c%3D%20%C3%A9~._-"])
def test_the_signature_is_that_of_botocore(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    clock, payload = Clock(), sha256(b"content").hexdigest()
    signer = Signer("s3.example:9000", "eu-west-1", "access", "secret/key", clock)
    for seconds in (0, 0.9, 1, 86_400, 366 * 86_400):  # the same second, another, the next day
        clock.now = NOON + seconds
        expected = botocores(
            monkeypatch, method, f"http://s3.example:9000{path}", payload, clock.now
        )
        assert f"Authorization: {expected}\r\n" in signer.headers(method, path, payload)


def test_the_source_of_a_copy_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    path, source = "/own/kept/a%2Bb", "mails/a%2Bb/c%3D"
    copied = {"x-amz-copy-source": source}
    url = f"http://s3.example:9000{path}"
    expected = botocores(monkeypatch, "PUT", url, small.EMPTY, NOON, **copied)
    signer = Signer("s3.example:9000", "eu-west-1", "access", "secret/key", Clock())
    lines = signer.headers("PUT", path, small.EMPTY, source).split("\r\n")
    assert {f"x-amz-copy-source:{source}", f"Authorization: {expected}"} <= {*lines}
    assert not any("\n" in line for line in lines)


def test_the_key_of_a_day_is_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    digest = small.hmac.digest

    def counting(key: bytes, message: bytes, name: str) -> bytes:
        asked.append(message)
        return digest(key, message, name)

    monkeypatch.setattr(small.hmac, "digest", counting)
    clock = Clock()
    signer = Signer("h", "r", "a", "s", clock)
    for seconds in range(4):
        clock.now = NOON + seconds
        signer.headers("GET", "/b/k", small.EMPTY)
    assert len(asked) == 4 + 4  # the four parts of the scope, then one for each request
