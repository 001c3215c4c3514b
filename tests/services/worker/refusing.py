"""A proxy in front of S3 that reads requests. It answers 503 for chosen objects, and passes all
other requests.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ERROR = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"
_HEAD = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"


class Refusing:
    """Forwards a local port to `host:port`.

    `unreadable`: keys, or parts of keys, whose GETs and HEADs get 503.
    """

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.unreadable: set[str] = set()
        self.refused = 0

    async def __aenter__(self) -> Refusing:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0.05)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_reader, there_writer = await asyncio.open_connection(*self._to)
        back = asyncio.create_task(self._pump(there_reader, writer))
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = _LENGTH.search(head)
                    body = await reader.readexactly(int(length[1]) if length else 0)
                    line = head.split(b"\r\n", 1)[0].decode()
                    reads = line.startswith(("GET ", "HEAD "))
                    if reads and any(key in line for key in self.unreadable):
                        self.refused += 1
                        writer.write(_HEAD % len(_ERROR))
                        writer.write(b"" if line[0] == "H" else _ERROR)
                    else:
                        there_writer.write(head + body)
                    await writer.drain()
        finally:
            back.cancel()
            writer.transport.abort()
            there_writer.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()  # S3 has closed it: a kept connection would get no answer any more


@contextmanager
def refusing_s3(endpoint: str, *unreadable: str) -> Iterator[str]:
    """The endpoint of a proxy, in a thread of its own, that refuses to read these keys."""
    url, started, loop = urlsplit(endpoint), threading.Event(), asyncio.new_event_loop()
    proxy, over = Refusing(url.hostname or "", url.port or 0), asyncio.Event()
    proxy.unreadable.update(unreadable)

    async def serve() -> None:
        async with proxy:
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield f"{url.scheme}://127.0.0.1:{proxy.port}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()
