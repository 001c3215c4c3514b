"""One mail in the hands of a handler, and what may become of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from mailslice.codec import message as codec
from mailslice.model.errors import BadInput
from mailslice.model.mail import Place, QueuedMail
from mailslice.model.names import HEADER_REASON, RabbitNames
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.budget import Hold
from mailslice.worker.cleaned import row_of
from mailslice.worker.delays import Delays, own_headers, place_in
from mailslice.worker.noting import note_dead_letter
from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)


class Delivery:
    """A mail with its content. Settle it once, by `complete`, `retry` or `reject`; until then the broker keeps it.

    Each of the three may raise StoreUnavailable: nothing is lost then, call it again. When the connection was lost meanwhile it does what it can
    without the broker, which hands the mail out again: the deleted check drops it then if it was completed.
    """

    def __init__(self, wiring: Wiring, delays: Delays, message: Message, item: QueuedMail, *, content: bytes, hold: Hold) -> None:
        self._wiring = wiring
        self._delays = delays
        self._message = message
        self._hold = hold
        self._settled = False
        self._item = item
        self._content = content
        self.settled = asyncio.Event()
        """Set when this worker has let go of the mail."""
        self.handed: float | None = None
        """When it was handed out, by the event loop's clock."""
        self.stage = "received"
        self.attempt = 1
        self.waiters = 0
        """Later deliveries of the same mail that wait here for this one."""
        wiring.in_hand[item.enqueue_id] = self

    @property
    def item(self) -> QueuedMail:
        """The mail, its enqueue id, its blob ids."""
        return self._item

    @property
    def content(self) -> bytes:
        """Header and body, byte for byte as they were enqueued."""
        return self._content

    @property
    def redelivered(self) -> bool:
        """Whether the broker has handed it out before; after a restart of the broker it may say so of any mail."""
        return self._message.redelivered

    @property
    def message(self) -> Message:
        """What the broker delivered."""
        return self._message

    @property
    def arrived(self) -> float:
        """When the broker handed it out, by the event loop's clock."""
        return self._message.arrived

    def hand_out(self) -> None:
        """From now on it is a handler's."""
        self.handed = asyncio.get_running_loop().time()
        self.stage = "loaded"

    async def complete(self) -> None:
        """The mail is done: deleted mark, then ack, then its blobs if their ids are random. Returns when mark and ack are sent."""
        if self._settled:
            return
        await self._wiring.mark(self._item.enqueue_id)
        self._wiring.doings.done(self._item.enqueue_id, self._seconds())
        await self._end(self._message.ack)
        await self._wiring.discarder.add((self._item.header_blob_id, self._item.body_blob_id))

    async def retry(self, recipients: Sequence[str] | None = None, after: timedelta | None = None) -> None:
        """Hand it out again: at once, or `after` a delay; to the `recipients` that remain (some of the mail's; none: it is complete).

        At once and with the same recipients it is a requeue, as James does. Else a new message is confirmed before the old one is acknowledged:
        a crash in between leaves both. A mail that was deleted meanwhile is dropped.
        """
        if self._settled:
            return
        left = self._item.mail.recipients if recipients is None else tuple(recipients)
        if not left:
            await self.complete()
            return
        if unknown := set(left) - set(self._item.mail.recipients):
            raise BadInput(f"retry names {len(unknown)} recipients that mail {self._item.enqueue_id} does not have")
        later = after is not None and after > timedelta(0)
        if left == self._item.mail.recipients and not later:
            await self._end(self._message.give_back)
        elif await self._wiring.is_marked(self._item.enqueue_id):
            await self._end(self._message.ack)
        else:
            await self._publish_again(left, after if later else None)
            await self._end(self._message.ack)

    async def reject(self, reason: str) -> None:
        """To the dead letter queue. The reason goes to the log: no address in it."""
        if self._settled:
            return
        if self._message.redelivered:
            await self._delays.forget(self._item.enqueue_id)
        await dead_letter(self._wiring, self._message, reason, str(self._item.enqueue_id))
        await self._end(lambda: True)

    def abandon(self) -> None:
        """It was never handed out, and its connection is gone: only what it holds here is let go."""
        self._settled = True
        self._release()

    async def _publish_again(self, recipients: tuple[str, ...], after: timedelta | None) -> None:
        place = place_in(self._message.headers)
        if recipients != self._item.mail.recipients:
            place = await self._rewrite_row(recipients, place)
            self._item = replace(self._item, mail=replace(self._item.mail, recipients=recipients))
        body = codec.encode(self._item)
        headers, timestamp = own_headers(self._message.headers), self._message.timestamp
        if after is None:
            await self._wiring.publisher.publish(self._wiring.names.exchange, body, headers, timestamp)
        else:
            await self._delays.schedule(self._item.enqueue_id, body, headers, timestamp, self._wiring.clock() + after)

    async def _rewrite_row(self, recipients: tuple[str, ...], place: Place | None) -> Place | None:
        """The view shows the recipients that remain. Only a row that is there is written: a cleaned one must not come back."""
        row = await row_of(self._wiring, self._item, place)
        if row is None:
            return place
        item = replace(row.item, mail=replace(row.item.mail, recipients=recipients))
        for table in self._wiring.tables.existing:
            if await asyncio.to_thread(table.read, self._wiring.queue, row.place, row.enqueue_id) is not None:
                await self._wiring.bridge.rows(table.insert_future(replace(row, item=item)))
        return row.place

    def _seconds(self) -> float:
        return 0.0 if self.handed is None else asyncio.get_running_loop().time() - self.handed

    async def _end(self, settle: Callable[[], bool]) -> None:
        self._settled = True
        if self.handed is not None:
            self._wiring.doings.ended(self._seconds())
        if not settle():
            log.info(
                "the broker hands a settled mail out again: its connection is gone", extra={"action": "stale_tag", "enqueue_id": str(self._item.enqueue_id)}
            )
        self._release()
        await self._message.link.flushed()

    def _release(self) -> None:
        self._hold.release()
        if self._wiring.in_hand.get(self._item.enqueue_id) is self:
            del self._wiring.in_hand[self._item.enqueue_id]
        self.settled.set()


async def dead_letter(wiring: Wiring, message: Message, reason: str, what: str = "a message that is no mail") -> None:
    """To the dead letter queue: by the broker where the work queue has a dead letter exchange, else by a confirmed copy before the ack.

    A reject carries no header, so the reason is in the log, and noted for the duty dead_letters. Raises StoreUnavailable: the message is still held, then.
    """
    log.warning("dead letter: %s: %s", what, reason, extra={"action": "dead_letter", "enqueue_id": what, "queue": wiring.queue})
    if wiring.broker_dead_letters:
        message.dead_letter()
    else:
        await copy_to_dead_letters(wiring, message, reason)
    await message.link.flushed()
    await note_dead_letter(wiring, message, reason)


async def copy_to_dead_letters(wiring: Wiring, message: Message, reason: str) -> None:
    """A confirmed copy to the dead letter exchange, which `open_worker` has made sure of, and then the ack."""
    exchange = RabbitNames(wiring.queue).dead_letter_exchange
    await wiring.publisher.publish(exchange, message.body, {**own_headers(message.headers), HEADER_REASON: reason[:500]}, message.timestamp)
    message.ack()
