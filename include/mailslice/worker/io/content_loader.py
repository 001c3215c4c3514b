"""The content of mails in memory: how much at once (`ContentBudget`), and how it is loaded."""

import asyncio
import ctypes
from collections import deque
from collections.abc import Sequence
from functools import cache
from io import BytesIO

from mailslice.model.mail import QueuedMail
from mailslice.stores.blobs.async_store import AsyncBlobStore, OpenBlob

_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK = 2 * 1024 * 1024


class Reservation:
    """A part of the budget, given back once."""

    def __init__(self, budget: "ContentBudget", size: int = 0) -> None:
        self._budget = budget
        self._size = size

    def grow(self, size: int) -> bool:
        """Takes `size` bytes more, if they are free or no one else has a reservation."""
        if not self._budget.fits(size, self._size):
            return False
        self._budget._free -= size  # noqa: SLF001 - one thing in two classes
        self._size += size
        return True

    def release(self) -> None:
        """Gives it back; a second call does nothing."""
        size, self._size = self._size, 0
        if size:
            self._budget._return(size)  # noqa: SLF001 - as above


class ContentBudget:
    """A semaphore of bytes for one loop, first come first served. A larger content takes it all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def fits(self, size: int, own: int = 0) -> bool:
        """Whether an owner of `own` may take `size` more. A sole owner may: it would starve."""
        return size <= self._free or self._size - self._free == own

    def try_acquire(self, size: int) -> Reservation | None:
        """The reservation, where there is room at once."""
        size = min(size, self._size)
        if self._waiting or size > self._free:
            return None
        self._free -= size
        return Reservation(self, size)

    async def acquire(self, size: int) -> Reservation:
        if (reservation := self.try_acquire(size)) is not None:
            return reservation
        size = min(size, self._size)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._return(size)
            else:
                self._wake()  # drops the cancelled turn, and lets those behind it pass
            raise
        return Reservation(self, size)

    def _return(self, size: int) -> None:
        self._free += size
        self._wake()

    def _wake(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            size, turn = self._waiting.popleft()
            if turn.done():
                continue  # its waiter was cancelled
            self._free -= size
            turn.set_result(None)


@cache
def return_large_blocks() -> bool:
    """Makes glibc return the memory of large contents at once: fixes its mmap threshold at 2 MiB.
    Else it rises, and the arenas of threads keep freed memory: 64 mails of 25 MB ended at 390 MiB
    resident, not at 210. False where the C library has no mallopt.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK))
    except (AttributeError, OSError, TypeError):
        return False


_SMALL = 256 * 1024
_LARGE = 16


class Loader:
    """Loads contents for one event loop.

    It reads at most 16 large contents at once: an open answer holds half a megabyte unread. Small
    ones come with the first answer.
    """

    def __init__(self, blobs: AsyncBlobStore, budget: ContentBudget) -> None:
        self._blobs = blobs
        self.budget = budget
        self._large = asyncio.Semaphore(_LARGE)

    async def load(self, item: QueuedMail) -> tuple[bytes, Reservation]:
        """The content and its reservation, to be released. Raises ContentMissing, StoreUnavailable.

        The sizes come with the first bytes. If the budget has no room for the content, these bytes
        are dropped, and requested again when it has.
        """
        opened: Sequence[OpenBlob] = await _open(self._blobs, item)
        size = sum(blob.size for blob in opened)
        if (reservation := self.budget.try_acquire(size)) is None:
            opened = ()
            reservation = await self.budget.acquire(size)
        try:
            return await self._read(opened or await _open(self._blobs, item), size), reservation
        except BaseException:
            reservation.release()
            raise

    async def _read(self, opened: Sequence[OpenBlob], size: int) -> bytes:
        if size <= _SMALL:
            return b"".join([chunk for blob in opened async for chunk in blob.chunks()])
        # getvalue() of a BytesIO without other references returns its buffer: one copy in all.
        content = BytesIO()
        async with self._large:
            for blob in opened:
                async for chunk in blob.chunks():
                    content.write(chunk)
        return content.getvalue()


async def _open(blobs: AsyncBlobStore, item: QueuedMail) -> tuple[OpenBlob, OpenBlob]:
    return await asyncio.gather(blobs.open(item.header_blob_id), blobs.open(item.body_blob_id))
