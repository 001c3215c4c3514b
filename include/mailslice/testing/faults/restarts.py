"""A server that really restarts under several lanes at once: everybody's connections go, so it goes
when all of them wait for that.

A lane that seeds, drains or balances is never hit by the restart of another: its own clients are no
part of the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Restarts:
    """`stop` and `start` return when the server is down, and up; `away`: seconds between them, in
    which children go on without it.
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
        """A lane is under way, as soon as the server is there: there is no restart before it waits
        for one, or ends.
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
        """Returns when the server has gone down, because every lane that is under way has asked for
        that.
        """
        with self._changed:
            now = self.count
            self._waiting += 1
            self._perhaps()
            self._changed.wait_for(lambda: self.count > now)

    def up(self) -> None:
        """Returns when the server is there. Raises what kept it from starting."""
        self._up.wait()
        if self._failed is not None:
            raise self._failed

    def _perhaps(self) -> None:
        """With the lock held: all of them wait, so it goes down now."""
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
