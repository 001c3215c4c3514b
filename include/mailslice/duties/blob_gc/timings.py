"""How long each part of a step took."""

from __future__ import annotations

import time


class Timings:
    """Seconds by part of a step, measured from the previous call of `on`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def on(self, part: str) -> None:
        """Attribute the time since the previous call to `part`."""
        now = time.perf_counter()
        self.seconds[part] = round(now - self._since, 3)
        self._since = now
