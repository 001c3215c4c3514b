"""Messages whose preparing fails by a fault of ours, or of a library, that nobody foresaw.

Held, such a message takes a place of the prefetch window for as long as the worker lives; a few of them, and nothing moves. So one that was tried often goes
to the dead letter queue, which keeps it with the reason, for `dead_letters` to redrive when the fault is mended. But only while others get through: if
nothing does, the fault is not this message's. And no more than one for so many others: a fault that many mails bring out must not empty a queue.
"""

from __future__ import annotations

from mailslice.worker.slots import Slot

TRIES = 8
"""With the pauses between them, about 20 seconds."""
OTHERS = 20
"""Mails that were prepared since this one first failed, and since the last one was given up."""


class PoisonWatch:
    """Counts for one prefetch window what fails, and what gets through."""

    def __init__(self) -> None:
        self._through = 0
        self._given_up = 0

    def got_through(self) -> None:
        """A mail was prepared."""
        self._through += 1

    def is_poison(self, slot: Slot) -> bool:
        """The slot's message failed once more: whether it is to be given up now. True uses up the others that got through."""
        if slot.faults == 0:
            slot.others = self._through
        slot.faults += 1
        if slot.faults < TRIES or self._through - max(slot.others, self._given_up) < OTHERS:
            return False
        self._given_up = self._through
        return True
