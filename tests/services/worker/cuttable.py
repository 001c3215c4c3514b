"""A TCP proxy that can be cut and mended, or can swallow all bytes: simulates a store that dies, or
one that hangs.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress


class Cuttable:
    """Forwards a local port to `host:port`."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.hangs = False
        self.passed = 0
        """Bytes that were passed on in both directions."""
        self.cut_after: int | None = None
        """Resets a connection after so many more bytes, even in the middle of a frame."""

    @property
    def clients(self) -> int:
        """How many clients are connected through the proxy."""
        return len(self._clients)

    async def __aenter__(self) -> Cuttable:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Refuses new connections and resets those that are open."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0.05)

    def say(self, data: bytes) -> None:
        """Sends bytes to every client as if they came from the store, between two of its frames."""
        for writer in self._clients:
            writer.write(data)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(writer)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._to)
            try:
                await asyncio.gather(
                    self._pump(reader, there_writer), self._pump(there_reader, writer)
                )
            finally:
                there_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)
            self._clients.discard(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                while self.hangs:  # noqa: ASYNC110 - a test's switch
                    await asyncio.sleep(0.05)
                self.passed += len(data)
                if self.cut_after is not None:
                    if len(data) > self.cut_after:
                        writer.write(data[: self.cut_after])
                        await writer.drain()
                        self.cut_after = None
                        break
                    self.cut_after -= len(data)
                writer.write(data)
                await writer.drain()
        raise OSError("closed")


def blocked(reason: str) -> bytes:
    """AMQP's Connection.Blocked: the broker is in alarm."""
    return _method(60, bytes([len(reason)]) + reason.encode())


def unblocked() -> bytes:
    """Connection.Unblocked."""
    return _method(61, b"")


def _method(number: int, arguments: bytes) -> bytes:
    payload = struct.pack(">HH", 10, number) + arguments
    return struct.pack(">BHL", 1, 0, len(payload)) + payload + b"\xce"
