"""Enqueue: header and body blob together -> view row -> confirmed publish -> return.

The row comes first: a message that is delivered before a failed insert could not be taken back. A
failed enqueue is undone (`enqueue_undo`). After an error of the broker it may be delivered.
"""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from mailslice.admin.deletions.deletion import all_ended
from mailslice.codec import message
from mailslice.codec.content import split
from mailslice.codec.headers import headers_of
from mailslice.model import crash
from mailslice.model.errors import BadInput, Unconfirmed
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail, ViewRow
from mailslice.worker.enqueue.delayed_mails import Delays, checked_delay
from mailslice.worker.enqueue.enqueue_undo import EnqueueUndo
from mailslice.worker.events import message_id_of
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.validation import check_content

_SMALL = 1024 * 1024
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""RabbitMQ 4 closes the channel at a larger message, and all publishes under way on it fail."""


class Enqueuer:
    """Enqueues into one queue; any number of concurrent calls."""

    def __init__(
        self, context: QueueContext, delays: Delays, undoing: EnqueueUndo | None = None
    ) -> None:
        self._context = context
        self._delays = delays
        self._starts_written = False
        self._starts_lock = asyncio.Lock()
        self._undoing = undoing or EnqueueUndo(context)

    async def enqueue(
        self, mail: Mail, content: bytes | Path, delay: timedelta | None = None
    ) -> QueuedMail:
        """Returns when the mail is durable. A Path is read when the memory budget has room for it.

        Raises BadInput (too large, no recipients), StoreUnavailable (not enqueued), Unconfirmed (it
        may be delivered; usually its deleted mark drops it), or errors of reading the file.
        """
        if not mail.recipients:
            raise BadInput(f"mail {mail.name!r} has no recipients; at least one")
        check_content(content)
        delay = checked_delay(delay)
        size = _size(content)
        self._check_size(mail, size)
        budget = self._context.enqueue_budget
        reservation = budget.try_acquire(size) or await budget.acquire(size)
        try:
            return await self._within_budget(mail, content, delay)
        finally:
            reservation.release()

    async def _within_budget(
        self, mail: Mail, content: bytes | Path, delay: timedelta | None
    ) -> QueuedMail:
        if isinstance(content, Path):
            content = await asyncio.to_thread(content.read_bytes)
            self._check_size(mail, len(content))
        # Splitting, and hashing for deduplication, take a second for the largest mails: too long
        # for the loop.
        is_small, part = len(content) <= _SMALL, self._split_content
        parts = part(content) if is_small else await asyncio.to_thread(part, content)
        header, body, header_id, body_id = parts
        item = QueuedMail(EnqueueId(uuid4()), mail, header_id, body_id)
        encoded = message.encode(item)
        if len(encoded) > _MAX_MESSAGE_BYTES:
            raise BadInput(
                f"mail {mail.name!r} has an envelope of {len(encoded)} bytes, attributes included; "
                f"allowed are {_MAX_MESSAGE_BYTES}"
            )
        put = self._context.blobs.put
        try:
            # Both end, also when cancelled: no put may go on after the undoing.
            await all_ended([put(header_id, header), put(body_id, body)])
            crash.point("enqueue:blobs-put")
            await self._record(item, encoded, delay)
        except BaseException:
            await self._undoing.take_back(item, self._delays if delay else None)
            raise
        crash.point("enqueue:durable")
        events = self._context.events
        if events.enabled:
            due = self._context.clock() + delay if delay else None
            message_id = message_id_of(header)
            events.emit("accepted", item, messageId=message_id, bytes=len(content), due=due)
        return item

    def _split_content(self, content: bytes) -> tuple[memoryview, memoryview, BlobId, BlobId]:
        header, body = split(content)
        ids = self._context.blob_ids
        return header, body, ids.new(header), ids.new(body)

    async def _record(self, item: QueuedMail, encoded: bytes, delay: timedelta | None) -> None:
        context = self._context
        if not self._starts_written:
            await self._write_starts(context.shape.partition("", context.clock()).slice_start)
        now = context.clock()  # the starts may have waited for Cassandra, with many others
        partition = context.shape.partition(item.mail.name, now)
        row = ViewRow(context.queue, partition, now, item)
        try:
            await context.bridge.rows(context.tables.written.insert_future(row))
        except BadInput as error:
            raise type(error)(f"mail {item.mail.name!r}: {error}") from error
        crash.point("enqueue:row-inserted")
        copy = MessageCopy(encoded, headers_of(partition), now)
        try:
            if delay is None:
                await context.publish(copy)
            else:
                await self._delays.schedule(item.enqueue_id, copy, now + delay)
        except Unconfirmed as error:
            raise Unconfirmed(
                f"{error}; the mail may be delivered all the same, mostly its deleted mark drops it"
            ) from error

    async def _write_starts(self, first: datetime) -> None:
        """Writes contentStart and browseStart once, before this worker's first row."""
        async with self._starts_lock:
            if not self._starts_written:
                context = self._context
                await asyncio.to_thread(context.tables.insert_starts, context.queue, first)
                crash.point("enqueue:starts-written")
                self._starts_written = True

    def _check_size(self, mail: Mail, size: int) -> None:
        limit = self._context.settings.queue.max_mail_bytes
        if size > limit:
            raise BadInput(
                f"mail {mail.name!r} has {size} bytes; allowed are {limit} "
                "(MAILSLICE_QUEUE_MAX_MAIL_BYTES)"
            )

    async def close(self) -> None:
        """Waits a little for failed enqueues that are being undone."""
        await self._undoing.close()


def _size(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)
