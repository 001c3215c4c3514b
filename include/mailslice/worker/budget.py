"""How many bytes of content are in memory at once. Small mails never notice it; large ones take turns."""

from __future__ import annotations

import asyncio
from collections import deque


class Hold:
    """A part of the budget, given back once."""

    def __init__(self, budget: ContentBudget, size: int) -> None:
        self._budget = budget
        self._size = size

    def release(self) -> None:
        """Gives it back; a second call does nothing."""
        size, self._size = self._size, 0
        if size:
            self._budget._give_back(size)  # noqa: SLF001 - one thing in two classes


class ContentBudget:
    """A semaphore of bytes, first come first served, for one event loop. A content larger than all of it takes all of it, alone."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, size: int) -> Hold | None:
        """The hold, when it can be had at once."""
        wanted = min(size, self._size)
        if self._waiting or wanted > self._free:
            return None
        self._free -= wanted
        return Hold(self, wanted)

    async def acquire(self, size: int) -> Hold:
        """The hold, when it is this one's turn."""
        if (hold := self.try_acquire(size)) is not None:
            return hold
        wanted = min(size, self._size)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(wanted)
            else:
                self._wake()  # it drops the cancelled turn, if it is the first, and lets those behind it pass
            raise
        return Hold(self, wanted)

    def _give_back(self, size: int) -> None:
        self._free += size
        self._wake()

    def _wake(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            wanted, turn = self._waiting.popleft()
            if turn.done():
                continue  # who waited for it was cancelled
            self._free -= wanted
            turn.set_result(None)
