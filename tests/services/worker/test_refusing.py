"""The proxy that refuses objects: its answers are whole, and its connections are kept."""

from __future__ import annotations

import asyncio
import http.client

from tests.services.worker.refusing import Refusing


def _statuses(port: int) -> list[tuple[int, bytes]]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    answers = []
    for method in ("GET", "HEAD", "GET"):
        client.request(method, "/bucket/bad-1")
        answer = client.getresponse()
        answers.append((answer.status, answer.read()))
    client.close()
    return answers


async def test_a_refused_object_is_a_whole_503_on_a_connection_that_stays() -> None:
    s3 = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    async with s3, Refusing("127.0.0.1", s3.sockets[0].getsockname()[1]) as proxy:
        proxy.unreadable.add("bad-1")
        answers = await asyncio.to_thread(_statuses, proxy.port)
    assert [status for status, _ in answers] == [503, 503, 503]
    assert [b"<Code>SlowDown</Code>" in body for _, body in answers] == [True, False, True]
    assert all(body.endswith(b"</Error>") for _, body in answers[::2])
    assert proxy.refused == 3


async def test_a_connection_that_s3_closed_is_closed_to_the_client_too() -> None:
    s3 = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with s3, Refusing("127.0.0.1", s3.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
