"""A proxy in front of Cassandra that reads CQL frames (protocol v4). It answers reads (or writes)
of the deleted marks of chosen ids like a coordinator whose replicas are down, and passes all else.
"""

from __future__ import annotations

import asyncio
import re
import struct
from contextlib import suppress
from enum import Enum
from uuid import UUID

_ERROR, _RESULT, _PREPARE, _EXECUTE = 0x00, 0x08, 0x09, 0x0A
_PREPARED = struct.pack(">I", 4)
_HEADER = struct.Struct(">BBhBI")
_QUORUM = 4
_READ_OF_MARKS = re.compile(rb"SELECT .* FROM \S+\.deletedmailsv2 ", re.IGNORECASE)
_WRITE_OF_MARKS = re.compile(rb"INSERT INTO \S+\.deletedmailsv2 ", re.IGNORECASE)


class Away(Enum):
    """How the proxy answers. Unavailable comes at once, as from a coordinator that knows that its
    replicas are down. A read time-out comes after Cassandra's default of 5 s.
    """

    UNAVAILABLE = (0.0, 0x1000, struct.pack(">HII", _QUORUM, 2, 1))
    READ_TIMEOUT = (5.0, 0x1200, struct.pack(">HIIB", _QUORUM, 1, 2, 1))


class MarksAway:
    """Forwards a local port to `host:port`.

    `ids`: mails whose marks cannot be read; `writes`: or written, but read, as while a new node
    takes a range over. `refused`: requests that got an error.
    """

    def __init__(self, host: str, port: int, away: Away, *, writes: bool = False) -> None:
        self._to = (host, port)
        self._seconds, code, rest = away.value
        message = away.name.encode()
        self._error = struct.pack(">IH", code, len(message)) + message + rest
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._statements: set[bytes] = set()
        self._pattern = _WRITE_OF_MARKS if writes else _READ_OF_MARKS
        self.port = 0
        self.ids: set[UUID] = set()
        self.refused = 0

    async def __aenter__(self) -> MarksAway:
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
        preparing: set[int] = set()
        back = asyncio.create_task(self._answers(there_reader, writer, preparing))
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    stream, opcode, frame = await _frame(reader)
                    body = frame[_HEADER.size :]
                    if opcode == _PREPARE and self._pattern.search(body):
                        preparing.add(stream)
                    if opcode == _EXECUTE and self._is_refused(body):
                        self.refused += 1
                        header = _HEADER.pack(0x84, 0, stream, _ERROR, len(self._error))
                        asyncio.get_running_loop().call_later(
                            self._seconds, writer.write, header + self._error
                        )
                    else:
                        there_writer.write(frame)
                        await there_writer.drain()
        finally:
            back.cancel()
            writer.transport.abort()
            there_writer.transport.abort()
            self._tasks.discard(task)

    def _is_refused(self, body: bytes) -> bool:
        (length,) = struct.unpack_from(">H", body)
        return body[2 : 2 + length] in self._statements and any(
            one.bytes in body for one in self.ids
        )

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, preparing: set[int]
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                stream, opcode, frame = await _frame(reader)
                if stream in preparing:
                    preparing.discard(stream)
                    body = frame[_HEADER.size :]
                    if opcode == _RESULT and body.startswith(_PREPARED):
                        (length,) = struct.unpack_from(">H", body, 4)
                        self._statements.add(body[6 : 6 + length])
                writer.write(frame)
                await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Stream, opcode and all bytes of the next frame."""
    header = await reader.readexactly(_HEADER.size)
    _, _, stream, opcode, length = _HEADER.unpack(header)
    return stream, opcode, header + await reader.readexactly(length)
