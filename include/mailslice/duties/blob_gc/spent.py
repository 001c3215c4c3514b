"""How long the parts of a step took."""

from __future__ import annotations

import time


class Spent:
    """Seconds by what they were spent on; the clock runs from the start, anew from each `on`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def on(self, what: str) -> None:
        """What was done until now."""
        now = time.perf_counter()
        self.seconds[what] = round(now - self._since, 3)
        self._since = now
