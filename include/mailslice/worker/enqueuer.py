"""Enqueue: header and body blob together -> view row and confirmed publish in parallel -> return when both are confirmed.

On failure: deleted mark, then this enqueue's own blobs (random ids only), then the error. An error of the broker is not "not sent": the
message may still come, and then the mark drops it. So blobs go only once the mark is written; else they are orphans for blob_gc.

A message whose row fails can be taken back by nothing while Cassandra is away for longer than that is tried, and whoever was told of the error sends the
mail again. So after a row that failed rows come first, and messages only after them, until one has succeeded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mailslice.codec import blob_ids, message
from mailslice.codec.content import split
from mailslice.codec.headers import headers_of
from mailslice.model import crash
from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.mail import BlobId, EnqueueId, Mail, Place, QueuedMail, ViewRow
from mailslice.model.slices import bucket_of, slice_start
from mailslice.worker.delays import Delays, checked_delay
from mailslice.worker.given import check_content
from mailslice.worker.wiring import Wiring

if TYPE_CHECKING:
    from mailslice.worker.budget import Hold

log = logging.getLogger(__name__)
_SMALL = 1024 * 1024
_UNDO_SECONDS = 8.0
_UNDO_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)


class Enqueuer:
    """Enqueues into one queue; any number of calls beside each other."""

    def __init__(self, wiring: Wiring, delays: Delays) -> None:
        self._wiring = wiring
        self._delays = delays
        self._starts_written = False
        self._starts_lock = asyncio.Lock()
        self._undoing: set[asyncio.Task[None]] = set()
        self._failed = 0
        self._overcome = 0
        """How many of the inserts that failed had done so before one began that succeeded."""

    async def enqueue(
        self, mail: Mail, content: bytes | Path, delay: timedelta | None = None
    ) -> QueuedMail:
        """Returns when the mail is durable. A Path is read only when the memory budget has room for it.

        Raises BadInput (too large, no recipients), StoreUnavailable (then it is not enqueued, or dropped at delivery, but for what was under way when
        Cassandra went for long), or what the file raises.
        """
        if not mail.recipients:
            raise BadInput(f"mail {mail.name!r} has no recipients; at least one")
        check_content(content)
        delay = checked_delay(delay)
        size = _size(content)
        self._check_size(mail, size)
        hold = self._wiring.enqueue_budget.try_acquire(
            size
        ) or await self._wiring.enqueue_budget.acquire(size)
        try:
            return await self._within(hold, mail, content, delay)
        finally:
            hold.release()

    async def _within(
        self, _hold: Hold, mail: Mail, content: bytes | Path, delay: timedelta | None
    ) -> QueuedMail:
        if isinstance(content, Path):
            content = await asyncio.to_thread(content.read_bytes)
            self._check_size(mail, len(content))
        # Where the header ends, and hashes of deduplication, take a second of the largest mails: the loop must not stand still for that.
        parted = (
            self._parted(content)
            if len(content) <= _SMALL
            else await asyncio.to_thread(self._parted, content)
        )
        header, body, header_id, body_id = parted
        item = QueuedMail(EnqueueId(uuid4()), mail, header_id, body_id)
        encoded = message.encode(item)
        try:
            await _both(
                self._wiring.blobs.put(item.header_blob_id, header),
                self._wiring.blobs.put(item.body_blob_id, body),
            )
            crash.point("enqueue:blobs-put")
            await self._record(item, encoded, delay)
        except BaseException:
            await self._undone(item)
            raise
        crash.point("enqueue:durable")
        return item

    def _parted(self, content: bytes) -> tuple[memoryview, memoryview, BlobId, BlobId]:
        header, body = split(content)
        ids = self._wiring.blob_ids
        return header, body, ids.new(header), ids.new(body)

    async def _record(self, item: QueuedMail, encoded: bytes, delay: timedelta | None) -> None:
        wiring = self._wiring
        now = wiring.clock()
        place = Place(
            slice_start(now, wiring.shape.window),
            bucket_of(item.mail.name, wiring.shape.bucket_counts[-1]),
        )
        if not self._starts_written:
            await self._write_starts(place.slice_start)
        row = ViewRow(wiring.queue, place, now, item)
        first = self._insert(row)
        if self._overcome < self._failed:
            await first
            await self._publish(item, encoded, place, now, delay)
        else:
            await _both(first, self._publish(item, encoded, place, now, delay))

    async def _publish(
        self, item: QueuedMail, encoded: bytes, place: Place, now: datetime, delay: timedelta | None
    ) -> None:
        if delay is not None and delay > timedelta(0):
            await self._delays.schedule(
                item.enqueue_id, encoded, headers_of(place), now, now + delay
            )
        else:
            await self._wiring.publisher.publish(
                self._wiring.names.exchange, encoded, headers_of(place), now
            )

    async def _insert(self, row: ViewRow) -> None:
        failed = self._failed
        try:
            await self._wiring.bridge.rows(self._wiring.tables.written.insert_future(row))
        except (
            BaseException
        ):  # cancelled, too: who gave it up may have waited for a store that is away
            self._failed += 1
            raise
        self._overcome = max(self._overcome, failed)
        crash.point("enqueue:row-inserted")

    async def _write_starts(self, first: datetime) -> None:
        """Both starts IF NOT EXISTS, before the first row, which else nobody would see; contentStart first, as it may never be the greater."""
        async with self._starts_lock:
            if not self._starts_written:
                tables, queue = self._wiring.tables, self._wiring.queue
                await asyncio.to_thread(tables.content_starts.insert_first, queue, first)
                crash.point("enqueue:content-start-written")
                await asyncio.to_thread(tables.browse_starts.insert_first, queue, first)
                crash.point("enqueue:starts-written")
                self._starts_written = True

    def _check_size(self, mail: Mail, size: int) -> None:
        most = self._wiring.settings.queue.max_mail_bytes
        if size > most:
            raise BadInput(
                f"mail {mail.name!r} has {size} bytes; allowed are {most} (MAILSLICE_QUEUE_MAX_MAIL_BYTES)"
            )

    async def _undone(self, item: QueuedMail) -> None:
        """Returns when it was tried; what failed is tried again, beside the caller and also when that is cancelled, but for no longer than 8 s."""
        tried = asyncio.Event()
        undoing = asyncio.create_task(self._undo(item, tried), name=f"undo-{item.enqueue_id}")
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)
        await tried.wait()

    async def _undo(self, item: QueuedMail, tried: asyncio.Event) -> None:
        """A message that was published is delivered, unless the mark is written: a store that blinked is asked again."""
        extra = {"action": "enqueue_failed", "enqueue_id": str(item.enqueue_id)}
        why: Exception | None = None
        try:
            async with asyncio.timeout(_UNDO_SECONDS):
                for pause in _UNDO_PAUSES:
                    await asyncio.sleep(pause)
                    try:
                        await self._take_back(item)
                    except MailsliceError as error:
                        why = error
                        tried.set()
                    else:
                        return
        except TimeoutError as error:
            why = why or error
        finally:
            tried.set()
        log.warning(
            "a failed enqueue left something behind (row, message or blobs): %s",
            why or "time is up",
            extra=extra,
        )

    async def _take_back(self, item: QueuedMail) -> None:
        await self._wiring.mark(item.enqueue_id)
        crash.point("enqueue:undo-marked")
        await self._wiring.blobs.delete_many(
            [blob for blob in (item.header_blob_id, item.body_blob_id) if blob_ids.is_random(blob)]
        )

    async def close(self) -> None:
        """Waits for what is being undone."""
        while self._undoing:
            await asyncio.wait(self._undoing)


def _size(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


async def _both(first: Awaitable[None], second: Awaitable[None]) -> None:
    """Both, beside each other, both to their end: what fails must not leave the other one running behind its undoing. Raises the first error."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)
        raise
    errors = [error for task in tasks if (error := task.exception()) is not None]
    if errors:
        raise errors[0]
