"""Deliveries: prefetch -> decode -> deleted check -> content -> the caller's hands.

Bad JSON and missing content go to the dead letter queue. When a store is down the message is held, unacknowledged, and tried again in place with
back-off: a requeue would be a hot loop and would use up a quorum queue's delivery limit. Prefetch bounds what is held; the budget bounds what is loaded.
What makes the broker count all the same (a connection that goes, the end of a worker, its `consumer_timeout` of 30 minutes) does not add up over a long
outage: a message that waits and has a count is replaced by a copy without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto

from mailslice.codec import message as codec
from mailslice.codec.headers import place_in
from mailslice.model import crash
from mailslice.model.errors import ContentMissing, MailsliceError, StoreUnavailable, TryAgain, Undecodable
from mailslice.model.mail import QueuedMail
from mailslice.model.names import HEADER_REDRIVE_COUNT, HEADER_RENEWED
from mailslice.model.stages import Decision, MailStage, Verdict
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.link import Link
from mailslice.worker.cleaned import REASON, Standing, standing
from mailslice.worker.delays import Delays, own_headers
from mailslice.worker.delivery import Delivery, dead_letter
from mailslice.worker.failing import fail
from mailslice.worker.hop import HopConsumer
from mailslice.worker.patience import Patience
from mailslice.worker.stages import WAIT_SECONDS, Doubt
from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)
_TICK = 0.5
_DELIVERY_COUNT = "x-delivery-count"
"""RabbitMQ's header on messages of quorum queues: how often it came back. Past the limit it is dead-lettered."""


class _State(Enum):
    LOADING = auto()
    HELD = auto()
    """Waits for a store, for room in the budget, or for an older delivery of the same mail: others may pass."""
    READY = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class _Slot:
    """One message of the prefetch window. They are handed out in the broker's order, as James does, but for those that are held."""

    message: Message
    item: QueuedMail | None = None
    state: _State = _State.LOADING
    ready: Delivery | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    doubt: Doubt | None = None
    copied: bool = False
    """A copy was published in its place, or may have been: another one could double the mail."""


class Deliveries:
    """An async iterator of `Delivery`, for one task to iterate; cancelling an `anext` loses nothing."""

    def __init__(self, wiring: Wiring, delays: Delays, prefetch: int, give_up_after: timedelta | None) -> None:
        self._wiring = wiring
        self._delays = delays
        self._give_up_after = give_up_after
        self._slots: deque[_Slot] = deque()
        self._changed = asyncio.Event()
        self._stopped = False
        self._connected = False
        self._trouble: tuple[float, MailsliceError] | None = None
        self._last_message = 0.0
        self._ticking: asyncio.Task[None] | None = None
        self._hop = HopConsumer(wiring, delays)
        self._consumer = Consumer(
            wiring.settings.rabbitmq, wiring.names.work_queue, prefetch, on_message=self._arrived, on_lost=self._lost, on_ready=self._ready
        )

    def __aiter__(self) -> Deliveries:
        return self

    async def __anext__(self) -> Delivery:
        """The next mail. Raises StopAsyncIteration after `aclose`.

        Raises BadSetting when the broker refuses us, StoreUnavailable after `give_up_after` without a store.
        """
        if self._ticking is None and not self._stopped:
            self._start()
        while True:
            if (slot := self._next_ready()) is not None and slot.ready is not None:
                slot.ready.hand_out()
                crash.point("dequeue:handed-out")
                return slot.ready
            if self._stopped:
                raise StopAsyncIteration
            self._raise_trouble()
            self._changed.clear()
            await self._changed.wait()

    @property
    def idle_seconds(self) -> float:
        """Since the broker gave something, or since it was connected; 0 while something is being loaded or held, or there is no connection."""
        if self._slots or not self._connected:
            return 0.0
        return asyncio.get_running_loop().time() - self._last_message

    @property
    def connected(self) -> bool:
        """Whether the broker gives us mail now; False while it is being connected to, at first or again."""
        return self._connected

    def received(self) -> Iterator[tuple[QueuedMail, Message]]:
        """What the broker delivered and is still being loaded, or waits for a store or for room. Those that wait for an older delivery are left out."""
        in_hand = self._wiring.in_hand
        return ((slot.item, slot.message) for slot in self._slots if slot.item is not None and slot.item.enqueue_id not in in_hand)

    async def aclose(self) -> None:
        """No more deliveries. What was not handed out goes back to the broker; deliveries in hand can still be settled until the worker closes."""
        if self._stopped:
            return
        self._stopped = True
        if self._ticking is not None:
            self._ticking.cancel()
            await self._hop.close()
            await self._consumer.stop()
        slots, self._slots = self._slots, deque()
        await _ended(slots)
        for slot in slots:
            if slot.ready is not None:
                await slot.ready.give_back()
            elif slot.state is not _State.GONE:
                slot.message.give_back()
        if slots:
            await slots[0].message.link.flushed()
        self._changed.set()

    async def disconnect(self) -> None:
        """Closes the connection, after which nothing in hand can be acknowledged."""
        await self.aclose()
        await self._consumer.close()

    def _start(self) -> None:
        self._last_message = asyncio.get_running_loop().time()
        self._ticking = asyncio.create_task(self._tick(), name="deliveries-tick")
        self._consumer.start()
        self._hop.start()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self._changed.set()

    def _next_ready(self) -> _Slot | None:
        for slot in self._slots:
            if slot.state is _State.READY:
                self._slots.remove(slot)
                return slot
            if slot.state is _State.LOADING:
                return None
        return None

    def _raise_trouble(self) -> None:
        for error in (self._consumer.error, self._hop.error):
            if error is not None:
                raise error
        if self._trouble is not None and self._give_up_after is not None:
            since, why = self._trouble
            if asyncio.get_running_loop().time() - since >= self._give_up_after.total_seconds():
                raise why

    def _troubled(self, why: MailsliceError) -> None:
        since = self._trouble[0] if self._trouble is not None else asyncio.get_running_loop().time()
        self._trouble = (since, why)

    def _ready(self) -> None:
        self._connected = True
        self._trouble = None
        self._last_message = max(self._last_message, asyncio.get_running_loop().time())

    def _lost(self, link: Link | None, why: MailsliceError) -> None:
        """What was not handed out is forgotten: the broker hands it out again, under new tags."""
        self._connected = False
        self._troubled(why)
        for slot in [slot for slot in self._slots if slot.message.link is link]:
            if slot.task is not None:
                slot.task.cancel()
            if slot.ready is not None:
                slot.ready.abandon()
            self._remove(slot)

    def _arrived(self, message: Message) -> None:
        crash.point("dequeue:arrived")
        slot = _Slot(message)
        self._slots.append(slot)
        self._last_message = asyncio.get_running_loop().time()
        slot.task = asyncio.create_task(self._prepare(slot))

    def _remove(self, slot: _Slot) -> None:
        slot.state = _State.GONE
        if slot in self._slots:
            self._slots.remove(slot)
        self._last_message = asyncio.get_running_loop().time()
        self._changed.set()

    async def _prepare(self, slot: _Slot) -> None:
        """Until the message is ready or gone, whatever the stores do."""
        patience = Patience()
        while True:
            try:
                await self._attempt(slot)
            except MailsliceError as error:
                why = error
                self._hold(slot)  # others may pass while it is replaced
                if isinstance(error, TryAgain) and await self._renewed(slot):
                    return
            except Exception as error:
                log.exception("a delivery could not be prepared; it is held", extra={"action": "prepare_fault"})
                why = StoreUnavailable(f"a delivery could not be prepared: {type(error).__name__}: {error}")
            else:
                self._trouble = None
                self._changed.set()
                return
            self._hold(slot)
            self._troubled(why)
            pause, aloud = patience.pause()
            if aloud:
                log.warning("store unavailable, a mail is held for %.1f s: %s", pause, why, extra={"action": "held"})
            await asyncio.sleep(pause)

    def _hold(self, slot: _Slot) -> None:
        slot.state = _State.HELD
        self._changed.set()

    async def _attempt(self, slot: _Slot) -> None:
        message = slot.message
        try:
            item = codec.decode(message.body)
        except Undecodable as error:
            await dead_letter(self._wiring, message, f"not a mail: {error}", sent=lambda: self._remove(slot))
            return
        slot.item = item
        while not await self._decide(slot, item):
            pass

    async def _decide(self, slot: _Slot, item: QueuedMail) -> bool:
        """Whether the message is ready or gone; False when it is to be looked at anew: another delivery of the same mail came before it, or may be at it."""
        message = slot.message
        if item.enqueue_id in self._wiring.in_hand and await self._renewed(slot, least=2):
            return True
        await self._older_settled(slot, item)
        now, decision = await self._looked_up(slot, item)
        crash.point("dequeue:checked")
        match now:
            case Standing.DONE:
                await self._drop(slot, item)
            case Standing.CLEANED:
                await dead_letter(self._wiring, message, REASON, str(item.enqueue_id), sent=lambda: self._remove(slot))
            case Standing.LIVE if decision is not None:
                return await self._staged(slot, item, decision)
            case Standing.LIVE:
                return await self._load(slot, item)
        return True

    async def _looked_up(self, slot: _Slot, item: QueuedMail) -> tuple[Standing, Decision | None]:
        """The deleted check and, beside it, the stage."""
        place, stages = place_in(slot.message.headers), self._wiring.stages
        if stages is None:
            return await standing(self._wiring, item, place), None
        reading = stages.ask(item.enqueue_id)
        try:
            now = await standing(self._wiring, item, place)
            record = stages.told(item.enqueue_id, await reading)
        finally:
            if not reading.cancel() and not reading.cancelled():
                reading.exception()  # looked at, also when the check beside it has failed first
        if now is not Standing.LIVE:
            return now, None
        decision, slot.doubt = await stages.decide(item, record, slot.doubt)
        return now, decision

    async def _staged(self, slot: _Slot, item: QueuedMail, decision: Decision) -> bool:
        """As `_decide`, by the stage of the mail."""
        if item.enqueue_id in self._wiring.in_hand:
            return False  # what was read may be the doing of the delivery that is in hand here since
        record = decision.record
        match decision.verdict:
            case Verdict.WAIT:
                self._hold(slot)
                await asyncio.sleep(WAIT_SECONDS)
                return False
            case Verdict.FAIL:
                if not await fail(self._wiring, item, decision):
                    return False
                record = decision.after
        if decision.verdict is Verdict.COMPLETE or (decision.failed and not decision.left):
            await self._wiring.mark(item.enqueue_id)
            await self._drop(slot, item)
            return True
        return await self._load(slot, item, record)

    async def _older_settled(self, slot: _Slot, item: QueuedMail) -> None:
        """After a lost connection the broker hands out again what handlers here still work on: it waits for them, and is dropped if they complete."""
        while (older := self._wiring.in_hand.get(item.enqueue_id)) is not None:
            self._hold(slot)
            older.waiters += 1
            try:
                await older.settled.wait()
            finally:
                older.waiters -= 1

    async def _renewed(self, slot: _Slot, least: int = 1) -> bool:
        """Whether a copy that the broker has not counted yet has taken the message's place: it has to wait, and that is no fault of the mail's.

        Only from a count of `least` on: a mail that is in a handler here is better left here the first time, where its copies wait for each other.
        """
        message = slot.message
        count = message.headers.get(_DELIVERY_COUNT)
        if slot.copied or slot.item is None or not isinstance(count, int) or count < least:
            return False
        slot.copied = True
        headers = {**own_headers(message.headers), HEADER_RENEWED: 1}
        try:
            await self._wiring.publisher.publish(self._wiring.names.exchange, message.body, headers, message.timestamp)
        except Exception as error:  # noqa: BLE001 - it is held on, whatever kept it from being replaced
            log.info("a mail that waits keeps its delivery count: %s", error, extra={"action": "not_renewed", "enqueue_id": str(slot.item.enqueue_id)})
            return False
        message.ack()
        self._remove(slot)
        return True

    async def _drop(self, slot: _Slot, item: QueuedMail) -> None:
        slot.message.ack()
        self._remove(slot)
        await self._wiring.discarder.add((item.header_blob_id, item.body_blob_id))

    async def _load(self, slot: _Slot, item: QueuedMail, record: MailStage | None = None) -> bool:
        try:
            content, hold = await self._wiring.loader.load(item, on_wait=lambda: self._hold(slot))
        except ContentMissing as error:
            if await self._wiring.is_marked(item.enqueue_id):
                return False  # done meanwhile, by whoever had another copy: its blobs went with it
            await dead_letter(self._wiring, slot.message, f"content missing: {error}", str(item.enqueue_id), sent=lambda: self._remove(slot))
            return True
        try:
            outrun = await self._outrun(slot, item)
        except BaseException:
            hold.release()
            raise
        if outrun:
            hold.release()
            return False
        crash.point("dequeue:loaded")
        slot.ready = Delivery(self._wiring, self._delays, slot.message, item, content=content, hold=hold, record=record)
        slot.state = _State.READY
        return True

    async def _outrun(self, slot: _Slot, item: QueuedMail) -> bool:
        """Whether another copy was done here while this one was loaded, or is in hand."""
        doings = self._wiring.doings
        if item.enqueue_id in doings.recent or _may_be_double(slot.message):
            finished = doings.finished
            if await self._wiring.is_marked(item.enqueue_id) or (doings.finished != finished and item.enqueue_id in doings.recent):
                return True
        return item.enqueue_id in self._wiring.in_hand


def _may_be_double(message: Message) -> bool:
    """Whether another copy may be under way beside it: after a lost connection, or a redrive that was cut short."""
    return message.redelivered or HEADER_REDRIVE_COUNT in message.headers


async def _ended(slots: deque[_Slot]) -> None:
    tasks = [slot.task for slot in slots if slot.task is not None]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
