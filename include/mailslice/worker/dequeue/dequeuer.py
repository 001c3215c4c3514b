"""Deliveries: messages are fetched ahead, prepared (`preparer`), handed out (`prefetch_window`)."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta

from mailslice.model import crash
from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.mail import QueuedMail
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.link import Link
from mailslice.worker.dequeue.delivery import Delivery, WorkerState
from mailslice.worker.dequeue.expired_delay_consumer import ExpiredDelayConsumer
from mailslice.worker.dequeue.prefetch_window import Slots
from mailslice.worker.dequeue.preparer import Preparer
from mailslice.worker.io.hold_watch import HoldWatch

_TICK = 0.5


class Deliveries:
    """An async iterator of `Delivery`, for one task. Cancelling an `anext` loses nothing."""

    def __init__(
        self,
        state: WorkerState,
        prefetch: int,
        give_up_after: timedelta | None,
        *,
        on_disconnected: "Callable[[Deliveries], None]" = lambda _deliveries: None,
    ) -> None:
        context = state.context
        self._state = state
        self._on_disconnected = on_disconnected
        self._give_up_after = give_up_after
        self._slots = slots = Slots()
        self._preparer = Preparer(
            state, slots, prefetch, on_failure=self._set_failure, on_success=self._clear_failure
        )
        self._stopped = False
        self.connected = False
        """Whether the broker delivers to this worker now. False while it connects."""
        self._failure: tuple[float, MailsliceError] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._holds = state.holds
        self.held: bool | None = None
        """Whether the whole queue is held. None: not known yet."""
        self._obeying: asyncio.Task[None] | None = None
        self._hop = ExpiredDelayConsumer(context, state.delays)
        self._consumer = Consumer(
            context.settings.rabbitmq,
            context.names.work_queue,
            prefetch,
            on_message=self._arrived,
            on_lost=self._lost,
            on_ready=self._ready,
        )

    def __aiter__(self) -> "Deliveries":
        return self

    async def __anext__(self) -> Delivery:
        """The next mail. Raises StopAsyncIteration after `aclose`; BadSetting; StoreUnavailable."""
        if self._ticking is None and not self._stopped:
            self._start()
        while True:
            if self._stopped:  # `aclose` gives ready mails back
                raise StopAsyncIteration
            # A hold gives ready mails back: the worker's record already says that it is obeyed.
            if not self.held and (delivery := self._slots.next_ready()) is not None:
                delivery.hand_out()
                crash.point("dequeue:handed-out")
                return delivery
            self._raise_failure()
            self._slots.changed.clear()
            await self._slots.changed.wait()

    @property
    def idle_seconds(self) -> float:
        """Seconds since a mail came or was settled; 0: unconnected, messages waiting or parked."""
        if self._slots or not self.connected or self._preparer.park.is_expecting:
            return 0.0
        last = max(self._slots.last_moved, self._state.settled_at)
        return asyncio.get_running_loop().time() - last

    @property
    def has_expired_copies(self) -> bool:
        """Whether the hop consumer has a delayed mail that is not in the work queue yet."""
        return self._hop.busy

    def received(self) -> Iterator[tuple[QueuedMail, Message]]:
        """Messages that are being loaded, or wait for a store or for memory. Messages that wait for
        an older delivery of their mail are left out.
        """
        waiting = ((slot.item, slot.message) for slot in list(self._slots) if slot.item is not None)
        return (pair for pair in waiting if pair[0].enqueue_id not in self._state.in_hand)

    async def aclose(self) -> None:
        """Ends the deliveries. Mails that were not handed out go back to the broker; mails in hand
        can still be settled. A cancelled caller does not stop it: it releases mails and memory.
        """
        self._stopped = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="deliveries-close")
        await asyncio.wait({self._closing})
        if not self._closing.cancelled():
            self._closing.result()

    async def _close(self) -> None:
        if self._holds is not None:
            self._holds.leave(self._holds_changed)
        if self._obeying is not None:
            await asyncio.wait({self._obeying})
        if self._ticking is not None:
            self._ticking.cancel()
            await self._hop.close()
            await self._consumer.stop()
        await self._slots.requeue()
        self._slots.changed.set()

    async def disconnect(self) -> None:
        """Closes the connection. No mail in hand can be acknowledged after that."""
        await self.aclose()
        await self._consumer.close()
        # A mail that arrived after that would keep its entry in `in_hand` and its memory for ever.
        self._slots.lose(self._consumer.link)
        self._on_disconnected(self)

    def _start(self) -> None:
        self._slots.touch()
        self._ticking = asyncio.create_task(self._tick(), name="deliveries-tick")
        self._hop.start()
        if self._holds is None:
            self._consumer.start()
        else:
            self._holds.follow(self._holds_changed)

    def _holds_changed(self) -> None:
        """Called when the holds change, and after each read until the first one succeeds."""
        if self._holds is None or self._stopped:
            return
        if not self._holds.is_known:
            self._set_failure(self._holds.failure or StoreUnavailable("holds are not known yet"))
            self._slots.changed.set()
        elif self._obeying is None or self._obeying.done():
            self._obeying = asyncio.create_task(self._obey(self._holds), name="holds-obey")
        self._preparer.delay_mails_on_hold()

    async def _obey(self, holds: HoldWatch) -> None:
        """Pauses or resumes the consumer until it agrees with the holds."""
        while (is_held := holds.active.whole is not None) != self.held and not self._stopped:
            before, self.held = self.held, is_held
            if is_held:
                await self._consumer.pause()
                await self._slots.requeue()
            elif before is not None:
                await self._consumer.resume()
            if before is None:
                self._consumer.start()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self._slots.changed.set()
            self._preparer.park_overdue()

    def _raise_failure(self) -> None:
        for error in (self._consumer.error, self._hop.error):
            if error is not None:
                raise error
        if self._failure is not None and self._give_up_after is not None:
            since, why = self._failure
            if asyncio.get_running_loop().time() - since >= self._give_up_after.total_seconds():
                raise why

    def _set_failure(self, why: MailsliceError) -> None:
        since = self._failure[0] if self._failure is not None else asyncio.get_running_loop().time()
        self._failure = (since, why)

    def _clear_failure(self) -> None:
        self._failure = None

    def _ready(self) -> None:
        self.connected = True
        self._clear_failure()
        self._slots.touch()

    def _lost(self, link: Link | None, why: MailsliceError) -> None:
        """Forgets mails that were not handed out: the broker delivers them again, with new tags."""
        self.connected = False
        self._set_failure(why)
        self._slots.lose(link)

    def _arrived(self, message: Message) -> None:
        if self.held:  # the message was in transit when the consumer was cancelled
            message.requeue()
            return
        crash.point("dequeue:arrived")
        slot = self._slots.arrived(message)
        slot.task = asyncio.create_task(self._preparer.prepare(slot))
