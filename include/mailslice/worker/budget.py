"""How many bytes of content are in memory at once. Small mails never notice it; large ones take turns."""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from functools import cache

_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK = 2 * 1024 * 1024


class Hold:
    """A part of the budget, given back once."""

    def __init__(self, budget: ContentBudget, size: int = 0) -> None:
        self._budget = budget
        self._size = size

    def grow(self, size: int) -> bool:
        """Takes `size` bytes more, if there is room, or nobody else holds any."""
        if not self._budget.fits(size, self._size):
            return False
        self._budget._free -= size  # noqa: SLF001 - one thing in two classes
        self._size += size
        return True

    def release(self) -> None:
        """Gives it back; a second call does nothing."""
        size, self._size = self._size, 0
        if size:
            self._budget._give_back(size)  # noqa: SLF001 - as above


class ContentBudget:
    """A semaphore of bytes, first come first served, for one event loop.

    A content larger than all of it takes all of it, alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def fits(self, size: int, own: int = 0) -> bool:
        """Whether `size` bytes more may be taken now by somebody who has `own` already.

        Who is alone may take any: the largest mail that is allowed could starve else.
        """
        return size <= self._free or self._size - self._free == own

    def try_acquire(self, size: int) -> Hold | None:
        """The hold, when it can be had at once."""
        size = min(size, self._size)
        if self._waiting or size > self._free:
            return None
        self._free -= size
        return Hold(self, size)

    async def acquire(self, size: int) -> Hold:
        """The hold, when it is this one's turn."""
        if (hold := self.try_acquire(size)) is not None:
            return hold
        size = min(size, self._size)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(size)
            else:
                self._wake()  # drops the cancelled turn, and lets those behind it pass
            raise
        return Hold(self, size)

    def _give_back(self, size: int) -> None:
        self._free += size
        self._wake()

    def _wake(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            size, turn = self._waiting.popleft()
            if turn.done():
                continue  # who waited for it was cancelled
            self._free -= size
            turn.set_result(None)


@cache
def return_large_blocks() -> bool:
    """Has memory of large contents given back to the system at once: fixes glibc's mmap threshold
    at 2 MiB, once a process. False where the C library has no mallopt.

    glibc raises it to the size of each freed block. Mails of 25 MB come from its arenas then, one
    a thread, which keep what is freed: 64 mails ended at 390 MiB resident, and at 210 so.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK))
    except (AttributeError, OSError, TypeError):
        return False
