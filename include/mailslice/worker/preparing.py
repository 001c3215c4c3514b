"""What a message goes through before it is handed out: decode -> deleted check -> content.

Bad JSON and missing content go to the dead letter queue. When a store is down the message is held, unacknowledged, and tried again in place with
back-off: a requeue would be a hot loop and would use up a quorum queue's delivery limit. Prefetch bounds what is held; the budget bounds what is loaded.
What makes the broker count all the same (a connection that goes, the end of a worker, its `consumer_timeout` of 30 minutes) does not add up over a long
outage: a message that waits and has a count is replaced by a copy without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mailslice.codec import message as codec
from mailslice.codec.headers import place_in
from mailslice.model import crash
from mailslice.model.errors import (
    ContentMissing,
    MailsliceError,
    StoreUnavailable,
    TryAgain,
    Undecodable,
)
from mailslice.model.mail import QueuedMail
from mailslice.model.names import HEADER_DELIVERY_COUNT, HEADER_REDRIVE_COUNT, HEADER_RENEWED
from mailslice.model.stages import Decision, MailStage, Verdict
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.cleaned import REASON, Standing, standing
from mailslice.worker.delays import Delays, own_headers
from mailslice.worker.delivery import Delivery, dead_letter
from mailslice.worker.failing import fail
from mailslice.worker.patience import Patience
from mailslice.worker.poison import PoisonWatch
from mailslice.worker.slots import Slot, Slots, SlotState
from mailslice.worker.stages import WAIT_SECONDS
from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)


class Preparer:
    """Prepares the messages of one window. `on_trouble(why)` is called when a store was away, `on_fine()` when a message got through."""

    def __init__(
        self,
        wiring: Wiring,
        delays: Delays,
        slots: Slots,
        *,
        on_trouble: Callable[[MailsliceError], None],
        on_fine: Callable[[], None],
    ) -> None:
        self._wiring = wiring
        self._delays = delays
        self._slots = slots
        self._on_trouble = on_trouble
        self._on_fine = on_fine
        self._poison = PoisonWatch()

    async def prepare(self, slot: Slot) -> None:
        """Until the message is ready or gone, whatever the stores do."""
        patience = Patience()
        while True:
            try:
                await self._attempt(slot)
            except MailsliceError as error:
                patience.end_if_cancelled()
                why = error
                self._slots.hold(slot)  # others may pass while it is replaced
                if isinstance(error, TryAgain) and await self._renewed(slot):
                    return
            except Exception as error:
                patience.end_if_cancelled()
                self._wiring.on_fault()
                log.exception(
                    "a delivery could not be prepared",
                    exc_info=slot.faults == 0,
                    extra={"action": "prepare_fault"},
                )
                if slot.state is SlotState.GONE or (
                    self._poison.is_poison(slot) and await self._given_up(slot, error)
                ):
                    return
                why = StoreUnavailable(
                    f"a delivery could not be prepared: {type(error).__name__}: {error}"
                )
            else:
                self._on_fine()
                if slot.state is SlotState.READY:
                    self._poison.got_through()
                self._slots.changed.set()
                return
            self._slots.hold(slot)
            self._on_trouble(why)
            pause, aloud = patience.pause()
            if aloud:
                log.warning(
                    "store unavailable, a mail is held for %.1f s: %s",
                    pause,
                    why,
                    extra={"action": "held"},
                )
            await asyncio.sleep(pause)

    async def _given_up(self, slot: Slot, error: Exception) -> bool:
        """Whether it is settled: it went to the dead letter queue. The reason names the fault's type alone, for its text may hold an address."""
        what = "a message" if slot.item is None else str(slot.item.enqueue_id)
        reason = f"cannot be prepared: {type(error).__name__}, {slot.faults} times, while other mails could be"
        try:
            await dead_letter(
                self._wiring, slot.message, reason, what, sent=lambda: self._slots.remove(slot)
            )
        except Exception:
            log.exception(
                "it could not be dead-lettered either",
                extra={"action": "prepare_fault", "enqueue_id": what},
            )
        return slot.state is SlotState.GONE

    async def _attempt(self, slot: Slot) -> None:
        message = slot.message
        try:
            item = codec.decode(message.body)
        except Undecodable as error:
            await dead_letter(
                self._wiring, message, f"not a mail: {error}", sent=lambda: self._slots.remove(slot)
            )
            return
        slot.item = item
        while not await self._decide(slot, item):
            pass

    async def _decide(self, slot: Slot, item: QueuedMail) -> bool:
        """Whether the message is ready or gone; False when it is to be looked at anew: another delivery of the same mail came before it, or may be at it."""
        message = slot.message
        if item.enqueue_id in self._wiring.in_hand and await self._renewed(slot, least=2):
            return True
        if await self._replaced(slot, item):
            log.info(
                "a message whose place another one has taken is dropped",
                extra={"action": "replaced", "enqueue_id": str(item.enqueue_id)},
            )
            message.ack()  # its content stays: the other one needs it
            self._slots.remove(slot)
            return True
        now, decision = await self._looked_up(slot, item)
        crash.point("dequeue:checked")
        match now:
            case Standing.DONE:
                await self._drop(slot, item)
            case Standing.CLEANED:
                await dead_letter(
                    self._wiring,
                    message,
                    REASON,
                    str(item.enqueue_id),
                    sent=lambda: self._slots.remove(slot),
                )
            case Standing.LIVE if decision is not None:
                return await self._staged(slot, item, decision)
            case Standing.LIVE:
                return await self._load(slot, item)
        return True

    async def _looked_up(self, slot: Slot, item: QueuedMail) -> tuple[Standing, Decision | None]:
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

    async def _staged(self, slot: Slot, item: QueuedMail, decision: Decision) -> bool:
        """As `_decide`, by the stage of the mail."""
        if item.enqueue_id in self._wiring.in_hand:
            return (
                False  # what was read may be the doing of the delivery that is in hand here since
            )
        record = decision.record
        match decision.verdict:
            case Verdict.WAIT:
                self._slots.hold(slot)
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

    async def _replaced(self, slot: Slot, item: QueuedMail) -> bool:
        """After a lost connection the broker hands out again what handlers here still work on: it waits for them, and is dropped if they complete.

        True when the handler ended in a retry instead, with a message of its own, or has done so before: the recipients that it served are done, and
        its pause is to be kept.
        """
        message, doings = slot.message, self._wiring.doings
        while not (message.redelivered and doings.is_outdated(item.enqueue_id, message.body)):
            if (older := self._wiring.in_hand.get(item.enqueue_id)) is None:
                return False
            self._slots.hold(slot)
            older.waiters += 1
            try:
                await older.settled.wait()
            finally:
                older.waiters -= 1
            if message.redelivered and older.stands_for(message):
                break
        return True

    async def _renewed(self, slot: Slot, least: int = 1) -> bool:
        """Whether a copy that the broker has not counted yet has taken the message's place: it has to wait, and that is no fault of the mail's.

        Only from a count of `least` on: a mail that is in a handler here is better left here the first time, where its copies wait for each other.
        """
        message = slot.message
        count = message.headers.get(HEADER_DELIVERY_COUNT)
        if slot.copied or slot.item is None or not isinstance(count, int) or count < least:
            return False
        slot.copied = True
        headers = {**own_headers(message.headers), HEADER_RENEWED: 1}
        try:
            await self._wiring.publisher.publish(
                self._wiring.names.exchange, message.body, headers, message.timestamp
            )
        except Exception as error:  # noqa: BLE001 - it is held on, whatever kept it from being replaced
            log.info(
                "a mail that waits keeps its delivery count: %s",
                error,
                extra={"action": "not_renewed", "enqueue_id": str(slot.item.enqueue_id)},
            )
            return False
        message.ack()
        self._slots.remove(slot)
        return True

    async def _drop(self, slot: Slot, item: QueuedMail) -> None:
        slot.message.ack()
        self._slots.remove(slot)
        await self._wiring.discarder.add((item.header_blob_id, item.body_blob_id))

    async def _load(self, slot: Slot, item: QueuedMail, record: MailStage | None = None) -> bool:
        try:
            content, hold = await self._wiring.loader.load(
                item, on_wait=lambda: self._slots.hold(slot)
            )
        except ContentMissing as error:
            if await self._wiring.is_marked(item.enqueue_id):
                return False  # done meanwhile, by whoever had another copy: its blobs went with it
            await dead_letter(
                self._wiring,
                slot.message,
                f"content missing: {error}",
                str(item.enqueue_id),
                sent=lambda: self._slots.remove(slot),
            )
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
        slot.ready = Delivery(
            self._wiring,
            self._delays,
            slot.message,
            item,
            content=content,
            hold=hold,
            record=record,
        )
        slot.state = SlotState.READY
        return True

    async def _outrun(self, slot: Slot, item: QueuedMail) -> bool:
        """Whether another copy was done here while this one was loaded, or is in hand."""
        doings = self._wiring.doings
        if item.enqueue_id in doings.recent or _may_be_double(slot.message):
            finished = doings.finished
            if await self._wiring.is_marked(item.enqueue_id) or (
                doings.finished != finished and item.enqueue_id in doings.recent
            ):
                return True
        return item.enqueue_id in self._wiring.in_hand


def _may_be_double(message: Message) -> bool:
    """Whether another copy may be under way beside it: after a lost connection, or a redrive that was cut short."""
    return message.redelivered or HEADER_REDRIVE_COUNT in message.headers
