"""Restarts a real server under several lanes at once. All connections break, so the server stops
only when every lane waits for that.

A restart that one lane asks for never hits a lane that seeds, drains or balances: the clients of
the test kit itself are not under test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Restarts:
    """`stop` and `start` return when the server is down, and when it is up. `away`: seconds between
    them, in which children work without the server.
    """

    def __init__(
        self, stop: Callable[[], None], start: Callable[[], None], away: float = 1.0
    ) -> None:
        self._stop = stop
        self._start = start
        self._away = away
        self._changed = threading.Condition()
        self._lanes = 0
        self._waiting = 0
        self._up = threading.Event()
        self._up.set()
        self.count = 0
        """Restarts so far."""
        self._failed: BaseException | None = None

    @contextmanager
    def lane(self) -> Iterator[None]:
        """Runs a lane, once the server is up. There is no restart until this lane waits for one or
        ends.
        """
        with self._changed:
            self._lanes += 1
        try:
            self.up()
            yield
        finally:
            with self._changed:
                self._lanes -= 1
                self._perhaps()

    def down(self) -> None:
        """Asks for a restart. Returns when every running lane has asked for one and the server has
        been stopped.
        """
        with self._changed:
            now = self.count
            self._waiting += 1
            self._perhaps()
            self._changed.wait_for(lambda: self.count > now)

    def up(self) -> None:
        """Returns when the server is up. Raises the error of a stop or start that failed."""
        self._up.wait()
        if self._failed is not None:
            raise self._failed

    def _perhaps(self) -> None:
        """Stops the server if every running lane waits for that. The caller holds the lock."""
        if not self._waiting or self._waiting < self._lanes:
            return
        self._waiting = 0
        self._up.clear()
        try:
            self._stop()
        except BaseException as error:  # noqa: BLE001 - told to every lane
            self._failed = error
        self.count += 1
        self._changed.notify_all()
        begin = threading.Timer(self._away, self._begin)
        begin.daemon = True
        begin.start()

    def _begin(self) -> None:
        try:
            if self._failed is None:
                self._start()
        except BaseException as error:  # noqa: BLE001 - told to every lane
            self._failed = error
        self._up.set()
