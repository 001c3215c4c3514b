"""S3 that is far away: a proxy, in a process of its own, passes each byte half a trip later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from mailslice.bench.isolated import Process

if TYPE_CHECKING:
    from mailslice.model.settings import Settings


@contextmanager
def at_distance(settings: Settings, rtt: timedelta) -> Iterator[Settings]:
    """The settings, with S3 so far away (the connection's first round trip is not)."""
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
    """Tells its port; ends when it is told."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Near(host, port, seconds), "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(pipe.recv)


class _End(asyncio.Protocol):
    """One end of a connection. What comes goes to the other end later, in its order."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.other: _End | None = None
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        for data in self._early:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            asyncio.get_running_loop().call_later(self.seconds, self.other.write, data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            asyncio.get_running_loop().call_later(self.seconds, self.other.close)

    def write(self, data: bytes) -> None:
        """Now, or once it is connected."""
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Near(_End):
    """The client's end, which opens the server's."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        super().__init__(seconds)
        self._address = host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.other = _End(self.seconds)
        self.other.other = self
        self._opening = asyncio.ensure_future(self._open(self.other))

    async def _open(self, far: _End) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, *self._address)
        except OSError:
            self.close()
