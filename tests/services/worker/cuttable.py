"""A TCP proxy that can be cut and mended, or made to swallow what comes: a store that dies, and one that hangs."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Cuttable:
    """Forwards a local port to `host:port`."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.hangs = False

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

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._to)
            try:
                await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
            finally:
                there_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                while self.hangs:  # noqa: ASYNC110 - a test's switch
                    await asyncio.sleep(0.05)
                writer.write(data)
                await writer.drain()
        raise OSError("closed")
