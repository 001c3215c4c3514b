"""What stands before S3 answers in its place: a page of a proxy is no mail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.factory import open_blob_store
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.blobs.store import MISSING


class _Page(BaseHTTPRequestHandler):
    """Whatever is asked for, a page."""

    status, body = 200, b""
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.body)

    do_GET = do_HEAD = do_PUT = do_POST = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def _answering(status: int, body: bytes) -> Iterator[S3Settings]:
    handler = type("Page", (_Page,), {"status": status, "body": body})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield S3Settings(endpoint=endpoint, access_key="k", secret_key="s", timeout="5s")
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(params=[b"", b"<html>Back soon</html>"], ids=["empty", "page"])
def proxy(request: pytest.FixtureRequest) -> Iterator[S3Settings]:
    yield from _answering(200, request.param)


@pytest.fixture(params=[b"", b"default backend - 404"], ids=["empty", "page"])
def not_found(request: pytest.FixtureRequest) -> Iterator[S3Settings]:
    yield from _answering(404, request.param)


@pytest.mark.parametrize("key", ["usual", "a//b"])
async def test_a_page_of_a_proxy_is_no_content_and_takes_none(proxy: S3Settings, key: str) -> None:
    """By obstore, and by boto3 for a key that only that can ask for."""
    store = AsyncBlobStore(proxy, "bucket")
    try:
        with pytest.raises(StoreUnavailable, match="an answer has no ETag"):
            await store.get(BlobId(key))
        with pytest.raises(StoreUnavailable):
            await store.put(BlobId(key), b"content")
    finally:
        store.close()


def test_a_page_of_a_proxy_is_nothing_to_administration_either(proxy: S3Settings) -> None:
    key = BlobId("key")
    with S3BlobStore(proxy, "bucket") as store:
        for ask in (
            lambda: store.get(key),
            lambda: store.put(key, b"content"),
            lambda: store.exists(key),
            lambda: store.heads([key]),
        ):
            with pytest.raises(StoreUnavailable, match="an answer has no ETag"):
                ask()
        with pytest.raises(StoreUnavailable, match="an answer has no Deleted"):
            store.delete_many([key])
        for ask in (
            lambda: list(store.pages()),
            lambda: store.first("a", "b"),
            lambda: store.folders("runs/"),
        ):
            with pytest.raises(StoreUnavailable, match="an answer has no IsTruncated"):
                ask()


@pytest.mark.parametrize("key", ["usual", "a//b"])
def test_a_page_of_a_proxy_is_no_copy(proxy: S3Settings, key: str) -> None:
    with open_blob_store(proxy, "own") as store:
        assert store.copies("mails", {BlobId(key): BlobId("kept")}).keys() == {key}


def test_a_404_of_a_proxy_does_not_say_that_there_is_nothing_to_copy(not_found: S3Settings) -> None:
    """A delete that keeps mails would note their content as lost."""
    with open_blob_store(not_found, "own") as store:
        failed = store.copies("mails", {BlobId("key"): BlobId("kept")})
    assert failed.keys() == {"key"}
    assert MISSING not in failed.values()
