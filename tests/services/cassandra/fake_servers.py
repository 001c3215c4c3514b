"""Servers that misbehave: refuse the password, never answer, or lose connections."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ERROR, _READY, _AUTHENTICATE, _SUPPORTED = 0x00, 0x02, 0x03, 0x06
_STARTUP, _OPTIONS, _AUTH_RESPONSE = 0x01, 0x05, 0x0F


@contextmanager
def listening(serve, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Listens on a port of loopback. Runs `serve(connection)` in a thread for each client."""
    server = socket.create_server((host, port))
    open_connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            open_connections.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()
        for connection in open_connections:
            connection.close()


def mute(_connection: socket.socket) -> None:
    """A server that accepts connections and never answers."""


def refusing_password(connection: socket.socket) -> None:
    """A server that knows just enough of protocol v4 to refuse every password."""
    while header := _exactly(connection, 9):
        stream, opcode, length = struct.unpack(">xxhBI", header)
        _exactly(connection, length)
        if opcode == _OPTIONS:
            answer = _SUPPORTED, _string_multimap({"CQL_VERSION": ["3.4.7"], "COMPRESSION": []})
        elif opcode == _STARTUP:
            answer = _AUTHENTICATE, _string("org.apache.cassandra.auth.PasswordAuthenticator")
        else:
            answer = (
                _ERROR,
                struct.pack(">I", 0x0100)
                + _string("Provided username nobody and/or password are incorrect"),
            )
        connection.sendall(
            struct.pack(">BBhBI", 0x84, 0, stream, answer[0], len(answer[1])) + answer[1]
        )


class Wire:
    """A TCP proxy to a port. `cut()` closes and refuses connections. `hold()` lets nothing through.
    `deafen()` reads nothing until `hear()`.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._pairs: list[socket.socket] = []
        self._held = threading.Event()
        self._cut = threading.Event()
        self._hears = threading.Event()
        self._hears.set()

    def serve(self, connection: socket.socket) -> None:
        if self._cut.is_set():
            connection.close()
            return
        other = socket.create_connection(("127.0.0.1", self._port))
        self._pairs += [connection, other]
        threading.Thread(target=self._copy, args=(other, connection), daemon=True).start()
        self._copy(connection, other)

    def cut(self) -> None:
        self._cut.set()
        for connection in self._pairs:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                connection.close()

    def hold(self) -> None:
        self._held.set()

    def deafen(self) -> None:
        self._hears.clear()

    def hear(self) -> None:
        self._hears.set()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while self._hears.wait() and (data := source.recv(65536)):
                if not self._held.is_set():
                    target.sendall(data)
        except OSError:
            return


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _string_multimap(values: dict[str, list[str]]) -> bytes:
    lists = b"".join(
        _string(key) + struct.pack(">H", len(items)) + b"".join(map(_string, items))
        for key, items in values.items()
    )
    return struct.pack(">H", len(values)) + lists
