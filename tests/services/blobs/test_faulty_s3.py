"""Small objects at a server with faults: whichever client asks, the outcome is the same."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from mailslice.model.errors import BadSetting, ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.blobs.small import SMALL, can_serve
from mailslice.worker.io.content_loader import ContentBudget, Loader
from tests.services.blobs.s3_server import (
    BUSY,
    DENIED,
    NO_KEY,
    STORED,
    Act,
    Closed,
    Server,
    answer,
    cut,
    issued,
    late,
    part,
    reset,
    say,
    serving,
)

KEY = BlobId("1_600_ab+c/de=")
CONTENT = b"header and body " * 200


def settings(server: Server, **given: Any) -> S3Settings:
    scheme = "https" if "ca" in given else "http"
    return S3Settings(
        endpoint=f"{scheme}://127.0.0.1:{server.port}",
        access_key="a",
        secret_key=SecretStr("b"),
        **{"timeout": timedelta(seconds=3), **given},
    )


@pytest.fixture(params=["small", "obstore"])
def client(request: pytest.FixtureRequest) -> str:
    """Both clients in turn: `small` in front of obstore, and obstore alone."""
    name: str = request.param
    return name


def opened(client: str, settings: S3Settings, bucket: str = "b") -> AsyncBlobStore:
    blobs = AsyncBlobStore(settings, bucket)
    if client == "obstore":
        blobs.small = None
    return blobs


def chunked(content: bytes) -> bytes:
    whole = part(content, None, "Transfer-Encoding: chunked")
    head = whole[: -len(content)]
    pieces = [content[at : at + 1000] for at in range(0, len(content), 1000)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


GOOD: dict[str, list[Act]] = {
    "plain": [],
    "reset": [reset],
    "closed without a word": [cut()],
    "short": [cut(part(CONTENT)[:500])],
    "short head": [cut(part(CONTENT)[:30])],
    "busy": [say(answer(503, BUSY))],
    "broken": [say(answer(500, b"oops"))],
    "in two pieces": [late(0.1, part(CONTENT))],
    "early hints": [say(b"HTTP/1.1 103 Early Hints\r\n\r\n" + part(CONTENT))],
    "told to close": [cut(part(CONTENT, None, "Connection: close"))],
}


@pytest.mark.parametrize("acts", GOOD.values(), ids=GOOD)
async def test_a_get_has_all_bytes_or_is_asked_again(client: str, acts: list[Act]) -> None:
    with serving(Server(*acts, rest=say(part(CONTENT)))) as server:
        hot = opened(client, settings(server))
        assert await hot.get(KEY) == CONTENT
        assert await hot.get(KEY) == CONTENT
        hot.close()
    assert set(server.asked) == {"GET /b/1_600_ab%2Bc/de%3D"}


async def test_what_is_not_of_http_is_no_answer_of_an_s3(client: str) -> None:
    smtp = cut(b"220 mail.example ESMTP\r\n")
    with serving(Server(smtp, rest=say(part(CONTENT)))) as server:
        hot = opened(client, settings(server))
        if client == "obstore":
            with pytest.raises(StoreUnavailable, match="S3 at 127"):
                await hot.get(KEY)
        assert await hot.get(KEY) == CONTENT
        hot.close()


async def test_a_chunked_answer_is_read_to_its_end() -> None:
    with serving(Server(rest=say(chunked(CONTENT)))) as server:
        hot = AsyncBlobStore(settings(server), "b")
        assert [await hot.get(KEY) for _ in range(3)] == [CONTENT] * 3
        hot.close()


@pytest.mark.parametrize(
    ("status", "content_range"),
    [
        (200, "None: none"),
        (416, "None: none"),
        (206, "None: none"),
        (206, "Content-Range: bytes 1-3200/3201"),
        (206, "Content-Range: bytes 0-199/3200"),
        (206, "Content-Range: bytes 0-3199/*"),
        (206, "Content-Range: bytes 0-0/0"),
    ],
)
async def test_a_server_that_gives_no_parts_is_read_as_a_whole(
    client: str, status: int, content_range: str
) -> None:
    more = ('ETag: "x"', "Last-Modified: Sun, 22 Nov 2026 10:00:00 GMT")
    whole, no_part = (answer(code, CONTENT, *more) for code in (200, status))
    no_part = no_part.replace(b"ETag", f"{content_range}\r\nETag".encode())

    def by_range(connection: Any) -> None:
        is_part = b"\r\nrange:" in server.heads[-1].lower()
        connection.sendall(no_part if is_part else whole)

    with serving(Server(rest=by_range)) as server:
        assert await opened(client, settings(server)).get(KEY) == CONTENT


@pytest.mark.parametrize(
    "lie",
    [part(CONTENT, len(CONTENT) + 1), part(CONTENT).replace(b"bytes 0-", b"bytes 1-")],
    ids=["less than there is", "another part"],
)
async def test_a_part_that_is_not_the_one_asked_for_is_not_taken(lie: bytes) -> None:
    with serving(Server(say(lie), rest=say(part(CONTENT)))) as server:
        assert await AsyncBlobStore(settings(server), "b").get(KEY) == CONTENT
    assert len(server.asked) == 2


PUTS: dict[str, list[Act]] = {
    "plain": [],
    "reset": [reset],
    "closed without a word": [cut()],
    "busy": [say(answer(503, BUSY))],
    "broken": [say(answer(500, b"oops"))],
    "answered before it was read, and closed": [cut(answer(503, BUSY, "Connection: close"))],
}


@pytest.mark.parametrize("acts", PUTS.values(), ids=PUTS)
async def test_a_put_is_done_or_done_again(client: str, acts: list[Act]) -> None:
    with serving(Server(*acts, rest=say(STORED))) as server:
        hot = opened(client, settings(server))
        await hot.put(KEY, memoryview(b"??" + CONTENT)[2:])
        await hot.put(KEY, b"")
        hot.close()
    assert set(server.asked) == {"PUT /b/1_600_ab%2Bc/de%3D"}
    assert set(server.bodies) == {CONTENT, b""}
    assert server.bodies[-2:] == [CONTENT, b""]


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (answer(503, BUSY), StoreUnavailable, "SlowDown"),
        (answer(500, b"oops"), StoreUnavailable, "oops"),
        (answer(403, DENIED), BadSetting, "MAILSLICE_S3_SECRET_KEY"),
        (
            answer(404, b"<Error><Code>NoSuchBucket</Code></Error>"),
            StoreUnavailable,
            "NoSuchBucket",
        ),
    ],
    ids=["busy", "broken", "denied", "no bucket"],
)
async def test_what_goes_on_is_an_error_of_its_kind(
    client: str, said: bytes, error: type[Exception], words: str
) -> None:
    with serving(Server(rest=say(said))) as server:
        hot = opened(client, settings(server))
        with pytest.raises(error, match=words):
            await hot.put(KEY, CONTENT)
        with pytest.raises(error, match=words):
            await hot.get(KEY)


@pytest.mark.parametrize("status", [301, 302, 307])
def test_an_endpoint_that_redirects_to_https_is_a_bad_setting(status: int) -> None:
    said = answer(status, b"", "Location: https://127.0.0.1/b")
    with serving(Server(rest=say(said))) as server:
        blobs = S3BlobStore(settings(server), "b")
        for ask in (blobs.bucket_exists, blobs.now_skew, lambda: next(iter(blobs.list()))):
            with pytest.raises(BadSetting, match="redirects: is MAILSLICE_S3_ENDPOINT that of"):
                ask()


async def test_an_object_that_is_not_there_is_missing_content(client: str) -> None:
    listing = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"

    def by_kind(connection: Any) -> None:
        path = server.asked[-1]
        said = answer(200, listing) if "list-type" in path else answer(404, NO_KEY)
        connection.sendall(answer(404) if path.startswith("HEAD") else said)

    with (
        serving(Server(rest=by_kind)) as server,
        pytest.raises(ContentMissing, match="has no object"),
    ):
        await opened(client, settings(server), "bbb").get(KEY)


async def test_a_head_without_an_answer_is_unknown_only_while_the_bucket_answers() -> None:
    silent, denied = {"HEAD /b/silent"}, set[str]()
    probe = "GET /b/mailslice-asks-for-what-is-not-there"

    def by_key(connection: Any) -> None:
        asked = server.asked[-1]
        there = 200 if asked == "HEAD /b/there" else 404
        if asked in denied:
            connection.sendall(answer(403, DENIED))
        elif asked in silent:
            connection.sendall(answer(503))
        else:
            connection.sendall(answer(there, b"" if asked[0] == "H" else NO_KEY))

    with serving(Server(rest=by_key)) as server:
        hot = AsyncBlobStore(settings(server), "b")
        ids, unanswered = [BlobId("there"), BlobId("gone"), BlobId("silent")], set[BlobId]()
        assert await hot.missing(ids, unanswered) == {"gone"}
        assert unanswered == {"silent"}
        with pytest.raises(StoreUnavailable):
            await hot.missing(ids)
        for fault in (denied, silent):
            fault.add(probe)
            with pytest.raises(StoreUnavailable):
                await hot.missing(ids[2:], unanswered)
            fault.clear()
            silent.add("HEAD /b/silent")
        hot.close()


async def test_a_denied_object_is_unknown_whichever_client_can_express_its_key() -> None:
    """Every fortieth deduplicated id is a key for boto3 alone."""

    def deny_objects(connection: Any) -> None:
        is_object = server.asked[-1].startswith("HEAD /b/denied")
        connection.sendall(answer(403) if is_object else answer(404, NO_KEY))

    with serving(Server(rest=deny_objects)) as server:
        hot = AsyncBlobStore(settings(server), "b")
        ids, unanswered = [BlobId("denied"), BlobId("denied/")], set[BlobId]()
        assert await hot.missing(ids, unanswered) == set()
        assert unanswered == set(ids)
        hot.close()


async def test_a_connection_that_the_server_closed_in_between_is_not_used(client: str) -> None:
    def gone(_connection: Any) -> None:
        raise Closed

    with serving(Server(rest=say(part(CONTENT)), after=gone)) as server:
        hot = opened(client, settings(server))
        for _ in range(3):
            assert await hot.get(KEY) == CONTENT
            await asyncio.sleep(0.2)
        hot.close()
    assert (len(server.asked), server.connections) == (3, 3)


async def test_what_comes_unasked_is_nobodys_answer() -> None:
    other = part(b"another mail " * 100)
    with serving(Server(rest=say(part(CONTENT)), after=say(other))) as server:
        hot = AsyncBlobStore(settings(server), "b")
        for _ in range(3):
            assert await hot.get(KEY) == CONTENT
            await asyncio.sleep(0.2)
        hot.close()


async def test_an_answer_that_follows_at_once_is_nobodys_either() -> None:
    other = part(b"another mail " * 100)
    with serving(Server(say(part(CONTENT) + other), rest=say(part(CONTENT)))) as server:
        hot = AsyncBlobStore(settings(server), "b")
        assert [await hot.get(KEY) for _ in range(2)] == [CONTENT] * 2
        hot.close()
    assert server.connections == 2


async def test_no_answer_in_time_is_an_outage_and_its_connection_is_not_used_again(
    client: str,
) -> None:
    # Two late ones: obstore may ask again by itself, just before our own time-out.
    twice = (late(2, part(b"late")),) * 2
    with serving(Server(*twice, rest=say(part(CONTENT)))) as server:
        hot = opened(client, settings(server, timeout=timedelta(seconds=1)))
        with pytest.raises(StoreUnavailable, match="no answer in 1 s"):
            await hot.get(KEY)
        answers = list[bytes]()
        for _ in range(2):
            with suppress(StoreUnavailable):
                answers.append(await hot.get(KEY))
        assert set(answers) == {CONTENT}
        hot.close()
    assert server.connections == 3


async def test_a_large_upload_has_the_time_that_its_bytes_take(client: str) -> None:
    content = bytes(3 * 2**20)
    with serving(Server(late(1.5, STORED), rest=reset)) as server:
        hot = opened(client, settings(server, timeout=timedelta(seconds=1)))
        await hot.put(KEY, content)
        hot.close()
    assert server.bodies == [content]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE"])
async def test_endpoint_and_keys_are_those_of_the_settings_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Server(rest=say(STORED))) as other, serving(Server(rest=say(STORED))) as server:
        url = f"http://127.0.0.1:{other.port}"
        monkeypatch.setenv(name, {"AWS_ENDPOINT_URL_S3": url}.get(name, "true"))
        await opened("obstore", settings(server)).put(KEY, bytes(SMALL + 1))
    assert (len(server.asked), other.asked) == (1, [])
    assert b"Credential=a/" in server.heads[0]
    assert b"x-amz-security-token" not in server.heads[0]


async def test_a_store_that_is_too_busy_for_a_part_is_not_asked_for_the_whole(client: str) -> None:
    busy = (say(answer(503, BUSY)),) * {"small": 4, "obstore": 3}[client]
    with serving(Server(*busy, rest=say(answer(200, CONTENT, 'ETag: "x"')))) as server:
        hot = opened(client, settings(server))
        with pytest.raises(StoreUnavailable, match="SlowDown"):
            await hot.get(KEY)
        hot.close()
    assert all(b"\r\nrange: bytes=" in head.lower() for head in server.heads)


async def test_connections_are_kept_and_as_many_as_there_are_requests() -> None:
    with serving(Server(rest=say(part(CONTENT)))) as server:
        hot = AsyncBlobStore(settings(server), "b")
        for _ in range(5):
            await asyncio.gather(*(hot.get(KEY) for _ in range(3)))
        hot.close()
    assert (len(server.asked), server.connections) == (15, 3)


async def test_a_large_object_is_begun_by_one_client_and_ended_by_the_other() -> None:
    content = os.urandom(SMALL + 1000)
    rest = answer(
        206,
        content[SMALL:],
        f"Content-Range: bytes {SMALL}-{len(content) - 1}/{len(content)}",
        'ETag: "x"',
        "Last-Modified: Sun, 22 Nov 2026 10:00:00 GMT",
    )
    with serving(Server(say(part(content[:SMALL], len(content))), rest=say(rest))) as server:
        hot = AsyncBlobStore(settings(server), "b")
        assert await hot.get(KEY) == content
        hot.close()
    assert len(server.asked) == 2


class LargeObject:
    """An object at a server whose answers with the first bytes of a part end too early."""

    def __init__(self, size: int) -> None:
        self.content = os.urandom(size)
        self.server = Server(rest=self._give)
        self.sent = 0
        self.breaks = True
        self.is_lost = False
        """Whether the answer with the whole object ends too early, too."""
        self.later_size = size
        """The size that the object has for requests of its later parts."""

    def _give(self, connection: Any) -> None:
        asked = re.search(rb"(?i)\r\nrange: bytes=(\d+)-(\d*)", self.server.heads[-1])
        at = int(asked[1]) if asked else 0
        end = int(asked[2]) + 1 if asked and asked[2] else self.later_size
        lines = ['ETag: "x"', "Last-Modified: Sun, 22 Nov 2026 10:00:00 GMT"]
        if asked:
            lines.append(f"Content-Range: bytes {at}-{end - 1}/{self.later_size}")
        whole = answer(206 if asked else 200, self.content[at:end], *lines)
        head = whole.index(b"\r\n\r\n") + 4
        if self.server.asked[-1].startswith("HEAD"):
            return connection.sendall(whole[:head])
        if self.is_lost or (self.breaks and asked and at < SMALL):
            cut(whole[: head + 1000])(connection)
        for start in range(0, len(whole), SMALL):
            connection.sendall(whole[start : start + SMALL])
            self.sent += SMALL
        return None


async def test_a_large_object_is_opened_by_its_size_where_its_first_part_breaks(
    client: str,
) -> None:
    """The reader reserves memory between the two: a whole mail would come outside of its budget."""
    stored = LargeObject(32 * 2**20)
    with serving(stored.server) as server:
        hot = opened(client, settings(server))
        blob = await hot.open(KEY)
        assert blob.size == len(stored.content)
        await asyncio.sleep(0.5)
        assert stored.sent < len(stored.content) / 2
        assert b"".join([chunk async for chunk in blob.chunks()]) == stored.content
        hot.close()


async def test_a_broken_part_is_read_again_within_the_budget_which_an_error_gives_back(
    client: str,
) -> None:
    stored = LargeObject(16 * 2**20)
    size = 2 * len(stored.content)
    item: Any = SimpleNamespace(header_blob_id=KEY, body_blob_id=KEY)
    with serving(stored.server) as server:
        hot = opened(client, settings(server))
        budget = ContentBudget(size)
        loader, other = Loader(hot, budget), await budget.acquire(1)
        loading = asyncio.create_task(loader.load(item))
        await asyncio.sleep(1)
        assert (loading.done(), stored.sent < size / 2) == (False, True)
        other.release()
        content, reservation = await loading
        assert content == stored.content * 2
        assert budget.try_acquire(1) is None
        reservation.release()
        stored.is_lost = True
        with pytest.raises(StoreUnavailable):
            await loader.load(item)
        assert budget.try_acquire(size) is not None
        hot.close()


@pytest.mark.parametrize("size", [SMALL, 3 * 2**20])
async def test_an_object_that_breaks_each_time_is_an_outage(client: str, size: int) -> None:
    stored = LargeObject(size)
    stored.is_lost = True
    with serving(stored.server) as server:
        hot = opened(client, settings(server))
        with pytest.raises(StoreUnavailable, match="S3 at 127"):
            await hot.get(KEY)
        hot.close()


@pytest.mark.parametrize("more", [1000, 3 * 2**20])
async def test_a_rest_that_ends_too_early_is_no_content(client: str, more: int) -> None:
    stored = LargeObject(SMALL + more)
    stored.breaks = False
    with serving(stored.server) as server:
        hot = opened(client, settings(server))
        blob = await hot.open(KEY)
        assert blob.size == len(stored.content)
        stored.later_size -= 500
        with pytest.raises(
            StoreUnavailable, match=f"had {SMALL + more} bytes, has {SMALL + more - 500}$"
        ):
            async for _ in blob.chunks():
                pass
        hot.close()


async def test_after_five_failures_in_a_row_obstore_alone_is_asked_for_a_while() -> None:
    with serving(Server(rest=say(answer(400, b"<Error/>")))) as server:
        hot = AsyncBlobStore(settings(server), "b")
        for expected in (2, 4, 6, 8, 10, 11, 12):
            with pytest.raises(StoreUnavailable):
                await hot.put(KEY, CONTENT)
            assert len(server.asked) == expected


async def test_by_tls_with_the_authority_of_the_settings_and_only_so(
    client: str, tmp_path: Path
) -> None:
    cert, key, ca = issued(tmp_path)
    (tmp_path / "other").mkdir()
    other = issued(tmp_path / "other")[2]
    with serving(Server(rest=say(part(CONTENT))), (cert, key)) as server:
        hot = opened(client, settings(server, ca=ca))
        assert [await hot.get(KEY) for _ in range(3)] == [CONTENT] * 3
        hot.close()
        assert server.connections == 1
        with pytest.raises(StoreUnavailable):
            await opened(client, settings(server, ca=other)).get(KEY)
    assert len(server.asked) == 3


def test_keys_of_the_machine_and_proxies_are_left_to_obstore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    plain = S3Settings(endpoint="http://s3.example", access_key="a", secret_key=SecretStr("b"))
    assert can_serve(plain)
    assert not can_serve(plain.model_copy(update={"access_key": None}))
    assert not can_serve(plain.model_copy(update={"secret_key": None}))
    for name in ("http_proxy", "all_proxy"):
        with monkeypatch.context() as named:
            named.setenv(name, "http://proxy.example:3128")
            assert not can_serve(plain)
            named.setenv("no_proxy", "s3.example")
            assert can_serve(plain)
            assert not can_serve(plain.model_copy(update={"access_key": None}))
