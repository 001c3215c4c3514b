"""Limits concurrent requests to what the server can process, which their latency shows.

The gradient controller of Envoy's adaptive concurrency filter (after Netflix' concurrency-limits):
    limit = limit * twice the least latency / latency + sqrt(limit)
`latency` is the median of the last tenth of a second. The least latency is measured with three
requests at once, at the start and each minute. The limit grows while the server answers as fast as
then. When requests queue at the server, the limit falls until they queue here instead.
Source: envoyproxy.io/docs, configuration/http/http_filters/adaptive_concurrency_filter
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from random import uniform
from statistics import median
from time import monotonic

PROBE = 3
"""Requests at once while the least latency is measured."""
MIN_LIMIT, MAX_LIMIT = 8, 256
"""Below MIN_LIMIT requests, other programs on the same cores would displace ours."""
_FIRST = 16
"""The limit after the first probe."""
_SAMPLES = 25
"""The fewest latencies for a measurement."""
_EVERY = 0.1
_PROBE_EVERY = 60.0
_BUFFER = 2.0
"""Factor of the least latency: each latency includes a wait for our own event loop."""
_GRADIENT_BOUNDS = 0.5, 2.0
_PATIENCE = 1.0
"""Seconds after which a request enters in any case: hanging ones must not block the others."""
_UPDATES_AT_LEAST_LIMIT = 5
"""Consecutive updates at MIN_LIMIT after which the least latency is probed again."""


class Window:
    """The adaptive window of one event loop, served in order of arrival."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.limit: float = _FIRST
        self._clock = clock
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._samples: list[float] = []
        self._since = clock()
        self._least = math.inf
        self._probing = True
        self._probe_began = self._since
        self._probe_at = 0.0
        self._was_full = False
        self._times_at_least = 0

    async def enter(self) -> float:
        """Waits for room. Returns the start time; pass it to `leave`, however the request ends."""
        if self._under_way >= self._room or self._waiting:
            await self._turn()
        else:
            self._under_way += 1
        return self._clock()

    def leave(self, began: float) -> None:
        """Ends a request that began at `began`. Its latency is a sample."""
        self._under_way -= 1
        now = self._clock()
        if began >= self._probe_began:  # earlier requests are no measure of the probe
            self._samples.append(now - began)
        if len(self._samples) >= _SAMPLES and now - self._since >= _EVERY:
            self._update(now)
        self._wake()

    @property
    def _room(self) -> int:
        return PROBE if self._probing else int(self.limit)

    async def _turn(self) -> None:
        self._was_full = True
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        overdue = loop.call_later(_PATIENCE, self._admit, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._under_way -= 1
            self._wake()
            raise
        finally:
            overdue.cancel()

    def _wake(self) -> None:
        """Admits waiting requests while there is room. Drops those that are done or cancelled."""
        while self._waiting and (self._waiting[0].done() or self._under_way < self._room):
            self._admit(self._waiting.popleft())

    def _admit(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._under_way += 1
            turn.set_result(None)

    def _update(self, now: float) -> None:
        latency = max(median(self._samples), 1e-6)
        self._samples, self._since = [], now
        if self._probing:
            self._probing = False
            self._least = latency
            self._probe_at = now + uniform(0.9, 1.1) * _PROBE_EVERY
            return
        self._least = min(self._least, latency)
        low, high = _GRADIENT_BOUNDS
        gradient = min(max(_BUFFER * self._least / latency, low), high)
        target = gradient * self.limit + math.sqrt(self.limit)
        if target < self.limit or self._was_full:  # a limit that is not reached need not grow
            self.limit = min(max(target, MIN_LIMIT), MAX_LIMIT)
        self._was_full = bool(self._waiting)
        self._times_at_least = self._times_at_least + 1 if self.limit <= MIN_LIMIT else 0
        if now >= self._probe_at or self._times_at_least >= _UPDATES_AT_LEAST_LIMIT:
            self._probing, self._probe_began, self._times_at_least = True, now, 0
