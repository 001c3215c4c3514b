"""Deletes blobs of done mails after the ack, in batches; blob_gc deletes what is left."""

import asyncio
import logging
from collections.abc import Iterable

from mailslice.codec.blob_ids import is_random
from mailslice.model import crash
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import BlobId
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.worker.logs import about

log = logging.getLogger(__name__)
KEYS_A_REQUEST = 100
MAX_PENDING = 1000
"""Keys that may wait or be under way before completions wait for them."""
_EVERY = 0.05
_FLUSHERS = 2


class BlobDiscarder:
    """Deletes only random ids: a deduplicated object serves other mails, too (I6).

    A completion waits `room_timeout` seconds for room. If deletes hang for longer, further blobs
    are left to blob_gc. A close waits `close_timeout` seconds at most, then leaves the rest, too.
    """

    def __init__(
        self, blobs: AsyncBlobStore, *, room_timeout: float = 1.0, close_timeout: float = 5.0
    ) -> None:
        self._blobs = blobs
        self._room_timeout = room_timeout
        self._close_timeout = close_timeout
        self._pending: list[BlobId] = []
        self._in_flight = 0
        self._dropped = 0
        """Keys left behind since deletes began to hang; 0 while they do not."""
        self._room = asyncio.Event()
        self._room.set()
        self._requests: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def add(self, blob_ids: Iterable[BlobId]) -> None:
        """Takes the ids of a done mail. Waits for slow deletes, not for those that hang."""
        keys = [blob_id for blob_id in blob_ids if is_random(blob_id)]
        if self._dropped and len(self._pending) + self._in_flight + len(keys) > MAX_PENDING:
            self._dropped += len(keys)
            return
        self._pending += keys
        self._flush_soon()
        if len(self._pending) + self._in_flight > MAX_PENDING:
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), self._room_timeout)
            except TimeoutError:
                self._drop()

    def _drop(self) -> None:
        count = min(len(self._pending), len(self._pending) + self._in_flight - MAX_PENDING)
        if count > 0:
            del self._pending[:count]
            self._dropped += count
            text = "S3 does not answer deletes: blobs of done mails stay behind, for blob_gc"
            log.warning(text, extra=about("discard_hangs", blobs=count))

    async def close(self) -> None:
        """Deletes what is pending, within the time-out: the rest is left to blob_gc."""
        try:
            async with asyncio.timeout(self._close_timeout):
                while self._pending or self._requests:
                    self._flush()
                    await asyncio.wait(self._requests)
        except TimeoutError:
            self._dropped += len(self._pending) + self._in_flight
            self._pending.clear()
            requests = list(self._requests)
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)  # `_on_deleted` logs the loss

    def _flush_soon(self) -> None:
        if len(self._pending) >= KEYS_A_REQUEST:
            self._flush()
        elif self._pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pending and len(self._requests) < _FLUSHERS:
            keys, self._pending = self._pending[:KEYS_A_REQUEST], self._pending[KEYS_A_REQUEST:]
            self._in_flight += len(keys)
            request = asyncio.create_task(self._delete(keys))
            self._requests.add(request)
            request.add_done_callback(self._on_deleted)

    async def _delete(self, keys: list[BlobId]) -> None:
        crash.point("discard:begun")
        try:
            await self._blobs.delete_many(keys)
        except MailsliceError as error:
            text = "%d blobs of done mails stay behind, for blob_gc: %s"
            log.warning(text, len(keys), error, extra=about("discard_failed", blobs=len(keys)))
        finally:
            self._in_flight -= len(keys)

    def _on_deleted(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        if self._dropped:
            text = "%d blobs of done mails stayed behind, for blob_gc: deletes hung"
            log.warning(text, self._dropped, extra=about("discard_failed", blobs=self._dropped))
            self._dropped = 0
        if len(self._pending) + self._in_flight <= MAX_PENDING:
            self._room.set()
        self._flush_soon()
