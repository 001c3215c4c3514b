"""A TCP proxy in front of a real store. Simulates a store that dies, freezes or breaks off in the
middle of a frame; other clients of the store do not notice.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

_PIECE = 65536


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes bytes to `target` and back.
    Works in its own threads; its methods may be called from any thread.

    `passed` counts the bytes of both directions.
    """

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._flows = threading.Event()
        self._flows.set()
        self._remaining_bytes: int | None = None
        self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._accepting()

    def cut(self) -> None:
        """Closes open connections and refuses new ones, as a killed server would."""
        self._refuse()
        self.drop()

    def drop(self) -> None:
        """Closes open connections; new ones pass, as after a network that lost its state."""
        with self._lock:
            open_now, self._open = self._open, []
        for connection in open_now:
            _shut(connection)

    def stall(self) -> None:
        """Holds all bytes back, as a machine that froze.

        `mend` passes them on.
        """
        self._flows.clear()

    def break_off(self, after: int) -> None:
        """Closes all open connections in the middle of a frame, once `after` more bytes went to
        the store; 0: at once. New connections pass.
        """
        with self._lock:
            self._remaining_bytes = after

    def mend(self) -> None:
        """Passes everything on again, the held bytes of stalled connections first."""
        with self._lock:
            self._remaining_bytes = None
        self._flows.set()
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._accepting()

    def close(self) -> None:
        """Ends the proxy and its connections."""
        self._flows.set()
        self.cut()

    def _refuse(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accepting(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(
                    target=self._pass,
                    args=(source, sink),
                    kwargs={"upward": sink is server},
                    daemon=True,
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, *, upward: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                self._flows.wait()
                if upward and self._remaining_bytes is not None:
                    data, broken = self._allowed(data)
                    sink.sendall(data)
                    if broken:
                        self.drop()
                        break
                    continue
                self.passed += len(data)
                sink.sendall(data)
        _shut(source)
        _shut(sink)
        with self._lock, suppress(ValueError):
            self._open.remove(source)

    def _allowed(self, data: bytes) -> tuple[bytes, bool]:
        """The part of the data that still passes, and whether connections break off after it."""
        with self._lock:
            if self._remaining_bytes is None:
                return data, False
            if len(data) < self._remaining_bytes:
                self._remaining_bytes -= len(data)
                return data, False
            data, self._remaining_bytes = data[: self._remaining_bytes], None
            return data, True


def _shut(connection: socket.socket) -> None:
    """Shuts down both directions, which wakes a thread that reads from the socket.

    The descriptor is closed with the last reference.
    """
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
