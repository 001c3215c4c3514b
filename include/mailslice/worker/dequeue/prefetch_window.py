"""The prefetch window: messages that were delivered and not handed out yet."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from mailslice.model.mail import QueuedMail
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.stores.rabbitmq.link import Link
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.dequeue.park import Trial
from mailslice.worker.stages.stage_log import Doubt


@dataclass(slots=True, eq=False)
class Slot:
    """One message of the window."""

    message: Message
    item: QueuedMail | None = None
    ready: Delivery | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    doubt: Doubt | None = None
    trial: Trial = field(default_factory=Trial)


class Slots(set[Slot]):
    """Messages, handed out in the order they became ready. `changed`: set when one may be ready."""

    def __init__(self) -> None:
        super().__init__()
        self._ready: deque[Slot] = deque()
        self.changed = asyncio.Event()
        self.last_moved = 0.0
        """When a message last came or went, by the event loop's clock."""

    def arrived(self, message: Message) -> Slot:
        slot = Slot(message)
        self.add(slot)
        self.touch()
        return slot

    def make_ready(self, slot: Slot, delivery: Delivery) -> None:
        slot.ready = delivery
        self._ready.append(slot)
        self.changed.set()

    def withhold(self, slot: Slot) -> bool:
        """Takes it from the ready messages for now. Returns whether it was among them."""
        if slot not in self._ready:
            return False
        self._ready.remove(slot)
        return True

    def next_ready(self) -> Delivery | None:
        """Removes and returns the delivery that became ready first, if any."""
        if not self._ready:
            return None
        slot = self._ready.popleft()
        self.discard(slot)
        return slot.ready

    def remove(self, slot: Slot) -> None:
        self.withhold(slot)
        self.discard(slot)
        self.touch()
        self.changed.set()

    def ack(self, slot: Slot) -> None:
        slot.message.ack()
        self.remove(slot)

    def lose(self, link: Link | None) -> None:
        """Forgets the messages of a lost connection: the broker delivers them again."""
        for slot in [slot for slot in self if slot.message.link is link]:
            if slot.task is not None:
                slot.task.cancel()
            if slot.ready is not None:
                slot.ready.abandon()
            self.remove(slot)

    async def requeue(self) -> None:
        """Empties the window: every message goes back to the broker."""
        slots = list(self)
        tasks = [slot.task for slot in slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for slot in slots:
            if slot not in self:
                continue  # settled by its task as that ended
            self.remove(slot)
            if slot.ready is not None:
                await slot.ready.requeue()
            else:
                slot.message.requeue()
        if slots:
            await slots[0].message.link.flushed()

    def touch(self) -> None:
        self.last_moved = asyncio.get_running_loop().time()
