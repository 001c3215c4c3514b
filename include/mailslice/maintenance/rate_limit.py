"""Limits operations a second on one store to the setting times the run's intensity."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

_BURST_S = 0.25
"""After a pause a throttle lets through a quarter of a second's worth at once, never more."""


@dataclass
class Throttle:
    """`take(n)` blocks until n more operations may start. Threads may share one.

    `per_second` None means no limit; an intensity below 1 then rests between operations, so
    that work takes that share of the time.
    """

    per_second: float | None
    intensity: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_at: float = field(default=0.0, init=False)
    _worked_since: float | None = field(default=None, init=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def free(self) -> bool:
        """Whether it never blocks."""
        return self.per_second is None and self.intensity >= 1.0

    def take(self, count: int = 1) -> None:
        """Wait for the turn of `count` operations."""
        if self.free or count <= 0:
            return
        pause = self._turn(count) if self.per_second is not None else self._rest()
        if pause > 0:
            self.sleep(pause)
        if self.per_second is None:
            with self._lock:
                self._worked_since = self.clock()

    def share(self, parts: int) -> Self:
        """One of `parts` throttles that together let through what this one does."""
        return replace(
            self, per_second=None if self.per_second is None else self.per_second / max(1, parts)
        )

    def _turn(self, count: int) -> float:
        rate = (self.per_second or 0.0) * self.intensity
        with self._lock:
            now = self.clock()
            start = max(self._free_at, now - _BURST_S)
            self._free_at = start + count / rate
            return start - now

    def _rest(self) -> float:
        with self._lock:
            worked = 0.0 if self._worked_since is None else self.clock() - self._worked_since
        return worked * (1 - self.intensity) / self.intensity

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
