"""A TCP proxy in front of a real store. Simulates a store that dies at work; other clients of the
store do not notice.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class Proxy:
    """Listens on a free port and passes bytes to `target` and back.

    `cut()` closes everything, as a killed server would. `stall()` only stops passing bytes.
    """

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self._target = target
        self._open: list[socket.socket] = []
        self._stalled = threading.Event()
        self.passed = 0
        self.pause = 0.0
        """Seconds to wait before each chunk is passed on."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Closes open connections and refuses new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def stall(self) -> None:
        """Accepts bytes and passes none on, as a machine that froze."""
        self._stalled.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.passed += len(data)
                time.sleep(self.pause)
                if not self._stalled.is_set():
                    sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
