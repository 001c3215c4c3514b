"""Prepares a message before it is handed out: decode -> deleted check -> content.

A message with bad JSON or missing content becomes a dead letter. If a store does not answer for a
message, it is retried in place, then parked (`park`): a requeue would be a hot loop. The memory
budget bounds the loaded content.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

from mailslice.codec import message as codec
from mailslice.codec.headers import count_in, partition_in
from mailslice.model import crash
from mailslice.model.errors import ContentMissing, MailsliceError, StoreUnavailable, Undecodable
from mailslice.model.holds import Hold
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.model.names import HEADER_DOUBT, HEADER_PARKED, PARK_SECONDS
from mailslice.model.stages import Decision, DeliveryVerdict, MailStage
from mailslice.worker.dequeue import park, strikes
from mailslice.worker.dequeue.dead_letters import dead_letter
from mailslice.worker.dequeue.delivery import Delivery, WorkerState
from mailslice.worker.dequeue.lease import LAST_RESORT
from mailslice.worker.dequeue.prefetch_window import Slot, Slots
from mailslice.worker.dequeue.retry_message import narrowed, publish_retry
from mailslice.worker.io.deleted_check import REASON, DeliveryStatus, delivery_status, row_of
from mailslice.worker.io.message_copy import own_headers
from mailslice.worker.logs import about
from mailslice.worker.stages.stage_log import WAIT_SECONDS, Doubt

log = logging.getLogger(__name__)

_MARKED = "it was delivered or deleted before: it has a deleted mark"


class Preparer:
    """Prepares the messages of one window. Calls `on_failure(why)` when a store was away,
    `on_success()` when a message was prepared. `attempt` replaces the single try.
    """

    def __init__(
        self,
        state: WorkerState,
        slots: Slots,
        prefetch: int,
        *,
        on_failure: Callable[[MailsliceError], None],
        on_success: Callable[[], None],
        attempt: Callable[[Slot], Awaitable[None]] | None = None,
    ) -> None:
        self._state = state
        self._context = state.context
        self._slots = slots
        self._on_failure = on_failure
        self._on_success = on_success
        self._attempt = attempt or self._prepare_once
        self._rounds = park.FaultRounds(state.context.statistics, prefetch)
        self._turns = park.Turns(prefetch)
        self._deciding: dict[EnqueueId, asyncio.Event] = {}
        self.park = park.Park(state.context, state.delays)

    async def prepare(self, slot: Slot) -> None:
        """Returns when the message is ready, settled or parked."""
        before, headers = self._rounds.successes, slot.message.headers
        tried = self._try_in_turn if HEADER_PARKED in headers else self._try_once
        if (why := await tried(slot)) is None or slot not in self._slots:
            return
        if HEADER_PARKED not in headers:  # else each round is logged
            log.warning("a mail is held: %s", why, extra={"action": "held"})
        self._rounds.waiting += 1
        self._context.statistics.waiting += 1
        try:
            pauses = park.RetryPauses(slot.message, slot.trial, self._rounds, before)
            while why is not None and slot in self._slots:
                over = pauses.is_over(self._unacked)
                if over and slot.trial.claim_park() and await self._park_or_dead_letter(slot, why):
                    return
                await asyncio.sleep(pauses.pause())
                why = await tried(slot)
        finally:
            self._rounds.waiting -= 1
            self._context.statistics.waiting -= 1

    async def _try_once(self, slot: Slot) -> MailsliceError | None:
        """Tries once. Returns why the message has to wait; None if it is ready or settled."""
        why = await self._rounds.run_attempt(slot.trial, self._attempt(slot))
        if why is None:
            self._on_success()
            self._rounds.successes += slot.ready is not None
        elif slot in self._slots:
            self._on_failure(why)
        return why

    async def _try_in_turn(self, slot: Slot) -> MailsliceError | None:
        """As `_try_once`, for parked messages that are back, which take turns."""
        if slot.doubt is None and HEADER_DOUBT in slot.message.headers:
            slot.doubt = Doubt.of(slot.message.headers[HEADER_DOUBT], self._context.clock())
        try:
            attempt = partial(self._try_once, slot)
            return await self._turns.run_attempt(slot.message, self._unacked, attempt)
        except TimeoutError:
            with suppress(Exception):  # its event names the mail; a try reports what is wrong
                slot.item = codec.decode(slot.message.body)
            return StoreUnavailable("parked mails before it are still tried")

    @property
    def _unacked(self) -> int:
        """Unacknowledged messages: those in the window and those in handlers."""
        handed = (d for d in self._state.in_hand.values() if d.handed_at is not None)
        return len(self._slots) + sum(delivery.lease.has_message for delivery in handed)

    def park_overdue(self) -> None:
        """Parks messages that were in the window for too long. Each round may load for longer."""
        now = asyncio.get_running_loop().time()
        for slot in list(self._slots):
            rounds = count_in(slot.message.headers, HEADER_PARKED) if slot.ready is None else 0
            longest = min((1 + rounds) * park.LONGEST_UNACKNOWLEDGED, LAST_RESORT)
            if now < slot.message.arrived + longest or not slot.trial.claim_park():
                continue
            before = slot.task
            slot.task = asyncio.create_task(self._park_overdue_slot(slot, before))
            if before is not None:
                before.cancel()

    async def _park_overdue_slot(self, slot: Slot, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        if slot not in self._slots:
            return
        self._slots.withhold(slot)
        if await self._park_or_dead_letter(slot, "it was not handed out for long"):
            if slot.ready is not None:
                slot.ready.abandon()
        elif slot.ready is not None:
            self._slots.make_ready(slot, slot.ready)
            self.delay_mails_on_hold()  # a hold of its domain may have begun
        else:
            await self.prepare(slot)

    def delay_mails_on_hold(self) -> None:
        """Withdraws ready mails of held domains and prepares them again, which delays them."""
        for slot in list(self._slots):
            ready = slot.ready
            if ready is None or self._hold_of(ready.item.mail.recipients) is None:
                continue
            if not self._slots.withhold(slot):
                continue  # it is being parked
            ready.abandon()
            slot.ready = None
            slot.task = asyncio.create_task(self.prepare(slot))

    async def _park_or_dead_letter(self, slot: Slot, why: object) -> bool:
        """Parks it, or dead-letters it after faults of its own. Whether it left the window."""
        faults = self._rounds.after(slot.message, slot.trial)
        if faults >= park.FAULT_ROUNDS:
            return await self._give_up(slot, faults)
        doubt, clock = slot.doubt, self._context.clock
        headers = {} if doubt is None else {HEADER_DOUBT: doubt.header(clock())}
        if not await self.park.put(slot.message, why, faults=faults, headers=headers):
            return False
        back = clock() + timedelta(seconds=PARK_SECONDS)
        self._context.events.emit("deferred", slot.item, why=f"parked: {why}", next=back)
        self._slots.remove(slot)
        return True

    async def _give_up(self, slot: Slot, faults: int) -> bool:
        """Whether it is a dead letter. Names only the fault's type: its text may name addresses."""
        rounds = f"{slot.trial.fault}, {faults} rounds, while other mails could be"
        try:
            await self._dead_letter(slot, f"cannot be prepared: {rounds}")
        except MailsliceError:
            text = "it could not be dead-lettered either"
            log.exception(text, extra=about("prepare_fault", slot.item and slot.item.enqueue_id))
        return slot not in self._slots

    async def _dead_letter(self, slot: Slot, reason: str) -> None:
        settle = partial(self._slots.ack, slot)
        await dead_letter(self._context, slot.message, reason, slot.item, settle=settle)
        if slot.item is not None and slot.message.redelivered:
            with suppress(MailsliceError):  # a kill before the ack may have left an open row
                await self._state.delays.close_row(slot.item.enqueue_id)

    async def _prepare_once(self, slot: Slot) -> None:
        try:
            item = slot.item = codec.decode(slot.message.body)
        except Undecodable as error:
            await self._dead_letter(slot, f"not a mail: {error}")
            return
        while not await self._decide_in_turn(slot, item):
            pass

    async def _decide_in_turn(self, slot: Slot, item: QueuedMail) -> bool:
        """Calls `_decide` for one message of a mail at a time: each sees what the last one did."""
        if (other := self._deciding.get(item.enqueue_id)) is not None:
            await other.wait()
            return False
        ended = self._deciding[item.enqueue_id] = asyncio.Event()
        try:
            return await self._decide(slot, item)
        finally:
            del self._deciding[item.enqueue_id]
            ended.set()

    async def _decide(self, slot: Slot, item: QueuedMail) -> bool:
        """True: the message is ready or settled. False: decide again, another one came first."""
        message = slot.message
        if (older := self._state.in_hand.get(item.enqueue_id)) is not None:
            # A delivery in the window ends with its connection: it must not adopt this message.
            is_taken = older.handed_at is not None and await self._is_taken(older)
            if is_taken and await self._park_or_dead_letter(slot, "its handler here hangs"):
                return True
            is_here = older.handed_at is not None and not (is_taken or older.settled.is_set())
            if is_here and older.lease.adopt(message):
                self._slots.remove(slot)
                return True
            await older.settled.wait()
            return False
        now, decision = await self._read_status_and_stages(slot, item)
        crash.point("dequeue:checked")
        match now:
            case DeliveryStatus.DONE:
                await self._drop(slot, item)
            case DeliveryStatus.CLEANED:
                await self._dead_letter(slot, REASON)
            case DeliveryStatus.LIVE:
                return await self._prepare_live(slot, item, decision)
        return True

    async def _is_taken(self, older: Delivery) -> bool:
        """Whether stuck_mails took the mail from its handler: the message is for another worker."""
        in_doubt = self._state.in_doubt
        now = None if in_doubt is None else await in_doubt.stages.fetch(older.item.enqueue_id)
        return bool(now and now.attempt > older.attempt and now.owner != self._context.worker)

    async def _prepare_live(self, slot: Slot, item: QueuedMail, decision: Decision | None) -> bool:
        """As `_decide`, for a mail without a deleted mark."""
        message = slot.message
        if self._state.is_condemned(item.enqueue_id):
            await self._dead_letter(slot, strikes.REASON)
            self._state.on_buried(item.enqueue_id)
            return True
        defer = self._state.delays.defer_to_later_attempt
        if message.redelivered and await defer(item.enqueue_id, message):
            crash.point("overtaken:copied")
            self._slots.ack(slot)
            return True
        if decision is not None:
            return await self._prepare_by_stages(slot, item, decision)
        remaining = await self._remaining_recipients(slot, item) if message.redelivered else None
        return await self._load(slot, item, remaining=remaining)

    async def _remaining_recipients(self, slot: Slot, item: QueuedMail) -> tuple[str, ...] | None:
        """The row's recipients if they are fewer: a retry writes the row before its message."""
        partition = partition_in(slot.message.headers)
        row = None if partition is None else await row_of(self._context, item, partition)
        if row is None or not set(row.item.mail.recipients) < set(item.mail.recipients):
            return None
        return row.item.mail.recipients or None

    async def _read_status_and_stages(
        self, slot: Slot, item: QueuedMail
    ) -> tuple[DeliveryStatus, Decision | None]:
        """Does the deleted check and, in parallel, reads the stage record."""
        partition, in_doubt = partition_in(slot.message.headers), self._state.in_doubt
        if in_doubt is None:
            return await delivery_status(self._context, item, partition), None
        stages = in_doubt.stages
        reading = stages.ask(item.enqueue_id)
        try:
            now = await delivery_status(self._context, item, partition)
            record = stages.record_of(item.enqueue_id, await reading)
        finally:
            if not reading.cancel() and not reading.cancelled():
                reading.exception()  # retrieved, for asyncio, if the deleted check failed first
        if now is not DeliveryStatus.LIVE:
            return now, None
        decision, slot.doubt = await stages.decide(item, record, slot.doubt)
        return now, decision

    async def _prepare_by_stages(self, slot: Slot, item: QueuedMail, decision: Decision) -> bool:
        """As `_decide`, by the mail's stage marks."""
        if item.enqueue_id in self._state.in_hand:
            return False  # the record may be that of the delivery which is in hand here since
        record = decision.record
        match decision.verdict:
            case DeliveryVerdict.WAIT:
                await asyncio.sleep(WAIT_SECONDS)
                return False
            case DeliveryVerdict.FAIL:
                in_doubt = self._state.in_doubt
                if in_doubt is None or not await in_doubt.fail(item, decision):
                    return False
                record = decision.after
        if decision.verdict is DeliveryVerdict.COMPLETE or (decision.failed and not decision.left):
            await self._context.mark(item.enqueue_id)
            await self._drop(slot, item)
            return True
        return await self._load(slot, item, record)

    async def _drop(self, slot: Slot, item: QueuedMail) -> None:
        self._slots.ack(slot)
        self._context.events.emit("dropped", item, why=_MARKED)
        await self._context.discarder.add((item.header_blob_id, item.body_blob_id))

    async def _load(
        self,
        slot: Slot,
        item: QueuedMail,
        record: MailStage | None = None,
        remaining: tuple[str, ...] | None = None,
    ) -> bool:
        recipients = remaining or (item.mail.recipients if record is None else record.remaining)
        if (hold := self._hold_of(recipients)) is not None:
            narrow = narrowed(item, remaining or item.mail.recipients)
            return await self._delay_for_hold(slot, narrow, hold)
        try:
            content, reservation = await self._context.loader.load(item)
        except ContentMissing as error:
            if await self._context.is_marked(item.enqueue_id):
                return False  # another copy was completed meanwhile, and its blobs deleted
            await self._dead_letter(slot, f"content missing: {error}")
            return True
        if item.enqueue_id in self._state.in_hand or self._hold_of(recipients) is not None:
            reservation.release()
            return False  # another copy was faster, or a hold of its domain began
        crash.point("dequeue:loaded")
        delivery = Delivery(
            self._state,
            slot.message,
            item,
            content=content,
            reservation=reservation,
            record=record,
            remaining=remaining,
        )
        self._slots.make_ready(slot, delivery)
        return True

    def _hold_of(self, recipients: tuple[str, ...]) -> Hold | None:
        return None if self._state.holds is None else self._state.holds.of(recipients)

    async def _delay_for_hold(self, slot: Slot, item: QueuedMail, hold: Hold) -> bool:
        """Delays a mail of a held domain, as a retry that does not count as an attempt."""
        message, context, delays = slot.message, self._context, self._state.delays
        pause, headers = hold.pause(context.clock()), own_headers(message.headers)
        await publish_retry(context, delays, message, item, after=pause, headers=headers, held=True)
        crash.point("hold:copied")
        self._slots.ack(slot)
        self._context.statistics.set_aside += 1
        due = self._context.clock() + pause
        self._context.events.emit("deferred", item, why=f"domain {hold.domain} is held", next=due)
        return True
