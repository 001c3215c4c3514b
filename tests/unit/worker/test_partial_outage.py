"""A store that is away for a fifth of the mails, for an hour: how late the others are.

The time is that of a simulation: the loop's clock jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import selectors
from collections import Counter, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.names import HEADER_PARKED, PARK_SECONDS, queue_name
from mailslice.worker.dequeue.delivery import WorkerState
from mailslice.worker.dequeue.prefetch_window import Slot, Slots
from mailslice.worker.dequeue.preparer import Preparer
from mailslice.worker.events import MailEvents
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.io.statistics import WorkerStatistics

AT_ONCE, TIME_OUT = 0.002, 10.0
"""Seconds until a store that is away has refused a request, or has not answered it."""
PREFETCH, HANDLERS = 16, 8


class JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait: adds the time-out to the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        assert events or timeout is not None, "nothing will ever happen"
        self.now += timeout if timeout and not events else 0.0
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


@dataclass
class Outage:
    """One worker of one queue. Every fifth mail is bad: its store is away for `lasts` seconds."""

    refusal: float
    rate: float
    lasts: float = 3600.0
    burst: int = 0
    """Parked mails that come back together at the end of the outage."""
    late: dict[int, float] = field(default_factory=dict)
    """Seconds from the enqueue of each mail to its handler."""
    tries: Counter[int] = field(default_factory=Counter)
    most_returned: int = 0
    """Most tries at once of mails that had been parked."""

    def __post_init__(self) -> None:
        self.work: deque[Any] = deque()
        self.sent: dict[int, float] = {}
        self.unacknowledged = self.in_handlers = self._returned = 0
        self.slots = Slots()
        context: Any = SimpleNamespace(
            statistics=WorkerStatistics(),
            events=MailEvents(queue_name("q"), "", None),
            clock=system_clock,
        )
        delays: Any = SimpleNamespace(put=self._park)
        self.state = WorkerState(context, delays)
        self.preparer = Preparer(
            self.state,
            self.slots,
            PREFETCH,
            on_failure=lambda _: None,
            on_success=lambda: None,
            attempt=self._attempt,
        )

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def run(self) -> Outage:
        random.seed(5)
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.run(self._run())
        return self

    async def _run(self) -> None:
        clearing = asyncio.create_task(self._clear_out())
        number = 0
        while self.now < self.lasts:
            self.sent[number] = self.now
            self._queue(number, {})
            number += 1
            await asyncio.sleep(1 / self.rate)
        for returned in range(number, number + self.burst):
            self.sent[returned] = self.now
            self._queue(returned, {HEADER_PARKED: 1})
        while len(self.late) < len(self.sent):
            await asyncio.sleep(1)
            assert self.now < self.lasts + 3600, "a mail is lost"
        clearing.cancel()

    async def _clear_out(self) -> None:
        while True:
            await asyncio.sleep(5)
            self.preparer.park_overdue()

    def _queue(self, number: int, headers: dict[str, Any]) -> None:
        self.work.append((number, headers))
        self._deliver()

    def _deliver(self) -> None:
        while self.work and self.unacknowledged < PREFETCH:
            number, headers = self.work.popleft()
            self.unacknowledged += 1
            message: Any = SimpleNamespace(
                body=str(number).encode(),
                headers=headers,
                redelivered=HEADER_PARKED in headers,
                timestamp=None,
                link=None,
                arrived=self.now,
                ack=self._acknowledged,
            )
            slot = self.slots.arrived(message)
            slot.task = asyncio.create_task(self.preparer.prepare(slot))

    def is_away(self, number: int) -> bool:
        return number % 5 == 0 and self.now < self.lasts

    def _acknowledged(self) -> bool:
        self.unacknowledged -= 1
        asyncio.get_running_loop().call_soon(self._deliver)
        return True

    async def _attempt(self, slot: Slot) -> None:
        number, is_returned = int(slot.message.body), HEADER_PARKED in slot.message.headers
        self.tries[number] += 1
        self._returned += is_returned
        self.most_returned = max(self.most_returned, self._returned)
        try:
            if self.is_away(number):
                await asyncio.sleep(self.refusal)
                raise StoreUnavailable("a shard of Cassandra does not answer")
            await asyncio.sleep(0.005)
        finally:
            self._returned -= is_returned
        ready: Any = SimpleNamespace(number=number, message=slot.message)
        self.slots.make_ready(slot, ready)
        self._hand_out()

    def _hand_out(self) -> None:
        while self.in_handlers < HANDLERS and (ready := self.slots.next_ready()) is not None:
            delivery: Any = ready
            self.in_handlers += 1
            assert delivery.number not in self.late, "a mail is handled twice"
            self.late[delivery.number] = self.now - self.sent[delivery.number]
            in_hand: dict[Any, Any] = self.state.in_hand  # type: ignore[assignment]
            lease = SimpleNamespace(has_message=True)
            in_hand[delivery.number] = SimpleNamespace(handed_at=self.now, lease=lease)
            asyncio.get_running_loop().call_later(0.05, self._handled, delivery)

    def _handled(self, delivery: Any) -> None:
        self.in_handlers -= 1
        del self.state.in_hand[delivery.number]
        delivery.message.ack()
        self._hand_out()

    async def _park(self, copy: MessageCopy, level: int | None) -> None:
        assert level is None
        await asyncio.sleep(0.005)
        number, headers = int(copy.body), dict(copy.headers)
        asyncio.get_running_loop().call_later(PARK_SECONDS, self._queue, number, headers)

    @property
    def good_late(self) -> float:
        """Most seconds that a mail was late whose store answered all the time."""
        return max(late for number, late in self.late.items() if number % 5)

    @property
    def bad_late(self) -> float:
        """Seconds after the outage in which the last of the others came."""
        return max(self.sent[number] + late for number, late in self.late.items()) - self.lasts


@pytest.mark.parametrize(
    ("refusal", "rate", "minutes"), [(AT_ONCE, 1, 30), (TIME_OUT, 1, 30), (TIME_OUT, 5, 10)]
)
def test_other_mails_are_on_time_and_those_come_soon_after_the_outage(
    caplog: pytest.LogCaptureFixture, refusal: float, rate: float, minutes: int
) -> None:
    """With half a minute of tries for each return the others were 2, 4 and 5 minutes late."""
    caplog.set_level(logging.ERROR, logger="mailslice")
    outage = Outage(refusal, rate, lasts=60.0 * minutes).run()
    assert len(outage.late) == len(outage.sent) >= 60 * minutes * rate
    assert outage.good_late < 10
    assert outage.bad_late < PARK_SECONDS + 15
    assert outage.most_returned <= PREFETCH // 4


def test_mails_that_come_back_together_are_handled_at_once_if_their_store_answers() -> None:
    outage = Outage(AT_ONCE, rate=1, lasts=0.0, burst=500).run()
    assert len(outage.late) == 500
    assert max(outage.late.values()) < 5
    assert outage.state.context.statistics.parked == 0


class PartlyBack(Outage):
    """Parked mails come back together. The stores of every second one answer again."""

    def is_away(self, number: int) -> bool:
        return number % 2 == 0

    async def _run(self) -> None:
        clearing = asyncio.create_task(self._clear_out())
        for number in range(self.burst):
            self.sent[number] = self.now
            self._queue(number, {HEADER_PARKED: 1})
        while len(self.late) < self.burst // 2:
            await asyncio.sleep(1)
            assert self.now < self.lasts, f"{self.burst // 2 - len(self.late)} mails still wait"
        clearing.cancel()


@pytest.mark.parametrize("burst", [180, 450])
def test_parked_mails_whose_stores_are_back_come_although_those_of_others_time_out(
    burst: int,
) -> None:
    """Of messages that took turns by chance, the last one came after 83 and 78 minutes."""
    outage = PartlyBack(TIME_OUT, rate=1, lasts=60.0 * 30, burst=burst).run()
    assert outage.most_returned == PREFETCH // 4
