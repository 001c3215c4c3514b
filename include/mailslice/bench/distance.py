"""Simulates a distant S3: a proxy process passes each byte on after half a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mailslice.bench.isolated import Process

if TYPE_CHECKING:
    from mailslice.model.settings import Settings

_BUFFER = 256 * 1024


@contextmanager
def at_distance(settings: Settings, rtt: timedelta) -> Iterator[Settings]:
    """Settings with S3 at this round trip time. The TCP handshake is not delayed."""
    if not rtt:
        yield settings
        return
    endpoint = urlsplit(settings.s3.endpoint)
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    with Process(_proxy, endpoint.hostname, port, rtt.total_seconds() / 2) as proxy:
        far = f"{endpoint.scheme}://127.0.0.1:{proxy.answer()}{endpoint.path}"
        yield settings.model_copy(update={"s3": settings.s3.model_copy(update={"endpoint": far})})
        proxy.send()
        proxy.answer()


async def _proxy(pipe: Connection, host: str, port: int, seconds: float) -> None:
    """The proxy process: sends its port, and ends at the parent's next message."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port, limit=_BUFFER)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass(reader, far_writer, seconds), _pass(far_reader, writer, seconds))

    server = await asyncio.start_server(connect, "127.0.0.1", 0, limit=_BUFFER)
    pipe.send(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(pipe.recv)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Writes all that is read, `seconds` later and in the same order, then closes the stream."""

    def write(data: bytes) -> None:
        if not writer.is_closing():
            writer.write(data)

    later = partial(asyncio.get_running_loop().call_later, seconds)
    with suppress(OSError):
        while data := await reader.read(_BUFFER):
            later(write, data)
    later(writer.close)
