"""The prefetch window: what the broker has delivered and nobody has taken yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from mailslice.model.mail import QueuedMail
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.stores.rabbitmq.link import Link
from mailslice.worker.delivery import Delivery
from mailslice.worker.stages import Doubt


class SlotState(Enum):
    """How far a message is."""

    LOADING = auto()
    HELD = auto()
    """Waits for a store, for room in the budget, or for an older delivery of the same mail: others may pass."""
    READY = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class Slot:
    """One message of the window."""

    message: Message
    item: QueuedMail | None = None
    state: SlotState = SlotState.LOADING
    ready: Delivery | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    doubt: Doubt | None = None
    copied: bool = False
    """A copy was published in its place, or may have been: another one could double the mail."""
    faults: int = 0
    """Attempts at it that ended in a fault of ours (`poison`)."""
    others: int = 0
    """How many mails had got through before the first of those."""


class Slots:
    """Handed out in the broker's order, as James does, but for those that are held. `changed` is set whenever there may be something to hand out."""

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()
        self.changed = asyncio.Event()
        self.last_moved = 0.0
        """When a message last came or went, by the event loop's clock."""

    def __bool__(self) -> bool:
        return bool(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def arrived(self, message: Message) -> Slot:
        """A slot for a new message."""
        slot = Slot(message)
        self._slots.append(slot)
        self.touch()
        return slot

    def next_ready(self) -> Delivery | None:
        """Takes out the one whose turn it is."""
        for slot in self._slots:
            if slot.state is SlotState.READY:
                self._slots.remove(slot)
                return slot.ready
            if slot.state is SlotState.LOADING:
                return None
        return None

    def hold(self, slot: Slot) -> None:
        """Others may pass it."""
        slot.state = SlotState.HELD
        self.changed.set()

    def remove(self, slot: Slot) -> None:
        """It will not be handed out."""
        slot.state = SlotState.GONE
        if slot in self._slots:
            self._slots.remove(slot)
        self.touch()
        self.changed.set()

    def lose(self, link: Link | None) -> None:
        """Forgets what came by a connection that is gone: the broker hands it out again, under new tags."""
        for slot in [slot for slot in self._slots if slot.message.link is link]:
            if slot.task is not None:
                slot.task.cancel()
            if slot.ready is not None:
                slot.ready.abandon()
            self.remove(slot)

    async def give_back(self) -> None:
        """Empties the window: all that is in it goes back to the broker."""
        slots, self._slots = self._slots, deque()
        tasks = [slot.task for slot in slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for slot in slots:
            if slot.ready is not None:
                await slot.ready.give_back()
            elif slot.state is not SlotState.GONE:
                slot.message.give_back()
        if slots:
            await slots[0].message.link.flushed()

    def touch(self) -> None:
        """Something moved, now."""
        self.last_moved = asyncio.get_running_loop().time()
