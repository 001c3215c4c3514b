"""What a connection writes at once is sent at once, whole and in order."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.asyncio_connection import AsyncioConnection, _AsyncioIOServicesAdapter
from pika.adapters.utils.nbio_interface import AbstractStreamProtocol

from mailslice.stores.rabbitmq.link import JoiningConnection

WITH_TLS = [False, True] if find_spec("cryptography") else [False]
"""A worker alone (tests/versions) has nothing that issues certificates."""
PUBLISH = [b"m" * 40, b"h" * 180, b"b" * 700]


class Silent(AbstractStreamProtocol):
    """Nothing comes from the other side."""

    def connection_made(self, transport: Any) -> None:
        """Nobody waits for it."""

    def connection_lost(self, error: Any) -> None:
        """Nobody waits for it."""

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        raise AssertionError


class Sent:
    """A socket that counts the sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.sends = sock, 0

    def send(self, data: bytes) -> int:
        self.sends += 1
        return self._sock.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Pair:
    """A pika connection of the class and what the other side reads; no handshake of AMQP."""

    def __init__(self, kind: type[AsyncioConnection], transport: Any, reader: Any) -> None:
        self.connection = kind.__new__(kind)
        self.connection.bytes_sent = self.connection.frames_sent = 0
        self.transport, self.reader = transport, reader
        self.socket = Sent(transport._sock)
        vars(self.connection)["_transport"] = transport  # pika's names, none of ours
        vars(transport)["_sock"] = self.socket

    def write(self, frames: list[bytes]) -> None:
        self.connection._output_marshaled_frames(frames)


async def pair(kind: type[AsyncioConnection], tls: tuple[Path, Path, Path] | None = None) -> Pair:
    loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    server = client = None
    if tls is not None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(tls[0], tls[1])
        client = ssl.create_default_context(cafile=str(tls[2]))
    linked: asyncio.Future[Any] = loop.create_future()
    _AsyncioIOServicesAdapter(loop).create_streaming_connection(
        Silent, ours, linked.set_result, client, "127.0.0.1" if client else None
    )
    reader = asyncio.StreamReader(limit=4096)
    await loop.connect_accepted_socket(
        lambda: asyncio.StreamReaderProtocol(reader), theirs, ssl=server
    )
    return Pair(kind, (await linked)[0], reader)


async def test_publishes_of_one_turn_of_the_loop_are_one_send() -> None:
    """Fails, too, where another pika calls its buffers by other names."""
    sends = {}
    for kind in (AsyncioConnection, JoiningConnection):
        one = await pair(kind)
        for _ in range(5):
            one.write(PUBLISH)
        assert one.transport.get_write_buffer_size() == 5 * 920
        assert await one.reader.readexactly(5 * 920) == 5 * b"".join(PUBLISH)
        assert one.transport.get_write_buffer_size() == 0
        sends[kind] = one.socket.sends
        one.transport.abort()
    assert sends == {AsyncioConnection: 15, JoiningConnection: 1}


@pytest.mark.parametrize("with_tls", WITH_TLS)
async def test_all_bytes_come_in_order_when_the_socket_takes_parts(
    tmp_path: Path, *, with_tls: bool
) -> None:
    tls = None
    if with_tls:
        from tests.services.blobs.s3_server import issued

        tls = issued(tmp_path)
    one = await pair(JoiningConnection, tls)
    sizes, written, read = random.Random(3), bytearray(), bytearray()

    async def take(most: int) -> None:
        read.extend(await one.reader.read(most))

    partial = False
    for _ in range(400):
        frames = [sizes.randbytes(sizes.choice((21, 430, 3000, 20_000))) for _ in range(3)]
        one.write(frames)
        written += b"".join(frames)
        await asyncio.sleep(0)
        partial |= 0 < one.transport.get_write_buffer_size() < sum(map(len, frames))
        while one.transport.get_write_buffer_size() > 100_000 * sizes.random():
            await take(sizes.choice((1000, 30_000)))
    while len(read) < len(written):
        await take(200_000)
    assert read == written
    assert partial
    assert one.transport.get_write_buffer_size() == 0
    one.transport.abort()


async def test_what_is_written_after_an_abort_is_not_kept() -> None:
    one = await pair(JoiningConnection)
    one.write(PUBLISH)
    one.transport.abort()
    one.write(PUBLISH)
    assert not one.transport._tx_buffers
