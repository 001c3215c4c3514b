"""The content of a mail, header blob and body blob together, within the budget and without second copies of large ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import nullcontext
from io import BytesIO

from mailslice.model.mail import QueuedMail
from mailslice.stores.blobs.hot import HotBlobs, OpenBlob
from mailslice.worker.budget import ContentBudget, Hold

_SMALL = 256 * 1024
_LARGE = 16


class Loader:
    """Loads contents for one event loop.

    At most 16 large contents are being read at once, which the rate does not notice: an open answer
    holds half a megabyte before anybody reads it. Small ones come with the first answer, and the
    window before S3 bounds those.
    """

    def __init__(self, blobs: HotBlobs, budget: ContentBudget) -> None:
        self._blobs = blobs
        self.budget = budget
        self._large = asyncio.Semaphore(_LARGE)

    async def load(self, item: QueuedMail) -> tuple[bytes, Hold]:
        """The content and its part of the budget, to be released. Raises ContentMissing, StoreUnavailable.

        The sizes come with the first bytes. When there is no room for the content those are let go,
        and asked for again in our turn.
        """
        header, body = await _open(self._blobs, item)
        size = header.size + body.size
        if (hold := self.budget.try_acquire(size)) is not None:
            return await _held(hold, self._read(header, body, size))
        del header, body
        hold = await self.budget.acquire(size)
        return await _held(hold, self._read_again(item, size))

    async def _read_again(self, item: QueuedMail, size: int) -> bytes:
        header, body = await _open(self._blobs, item)
        return await self._read(header, body, size)

    async def _read(self, header: OpenBlob, body: OpenBlob, size: int) -> bytes:
        async with self._large if size > _SMALL else nullcontext():
            return await _read(header, body, size)


async def _held(hold: Hold, reading: Awaitable[bytes]) -> tuple[bytes, Hold]:
    try:
        return await reading, hold
    except BaseException:
        hold.release()
        raise


async def _open(blobs: HotBlobs, item: QueuedMail) -> tuple[OpenBlob, OpenBlob]:
    header, body = await asyncio.gather(
        blobs.open(item.header_blob_id), blobs.open(item.body_blob_id)
    )
    return header, body


async def _read(header: OpenBlob, body: OpenBlob, size: int) -> bytes:
    if size <= _SMALL:
        return b"".join([chunk for blob in (header, body) async for chunk in blob.chunks()])
    # getvalue() of a BytesIO that nothing else looks at hands over its buffer: one copy in all.
    content = BytesIO()
    for blob in (header, body):
        async for chunk in blob.chunks():
            content.write(chunk)
    return content.getvalue()
