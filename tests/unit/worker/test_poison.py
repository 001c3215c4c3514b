"""A delivery that cannot be prepared for a reason nobody foresaw: held while nothing gets through, given up while others do, never wholesale."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.worker import preparing
from mailslice.worker.poison import OTHERS, TRIES, PoisonWatch
from mailslice.worker.preparing import Preparer
from mailslice.worker.slots import Slot, Slots, SlotState


def message(name: str) -> Any:
    return SimpleNamespace(body=name.encode(), headers={}, redelivered=False, link=None)


def test_one_that_failed_often_while_others_got_through_is_poison() -> None:
    watch, slot = PoisonWatch(), Slot(message("m"))
    for _ in range(100):
        watch.got_through()
    assert not any(watch.is_poison(slot) for _ in range(TRIES * 3)), (
        "nothing got through since it failed first"
    )
    for _ in range(OTHERS - 1):
        watch.got_through()
    assert not watch.is_poison(slot)
    watch.got_through()
    assert watch.is_poison(slot)


def test_one_that_failed_a_few_times_is_tried_again_whatever_gets_through() -> None:
    watch, slot = PoisonWatch(), Slot(message("m"))
    for attempt in range(1, TRIES + 1):
        assert watch.is_poison(slot) is (attempt == TRIES)
        for _ in range(1000):
            watch.got_through()


def test_a_fault_that_many_mails_bring_out_gives_up_one_for_so_many_others() -> None:
    watch, slots = PoisonWatch(), [Slot(message(str(number))) for number in range(10)]
    held = list(slots)
    for _ in range(5 * OTHERS + 1):
        held = [slot for slot in held if not watch.is_poison(slot)]
        watch.got_through()
    assert len(held) == 5
    for _ in range(OTHERS - 2):
        watch.got_through()
    assert not any(watch.is_poison(slot) for _ in range(100) for slot in held)


class Made:
    """A preparer whose attempts fail as the test says, and what became of the messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults = self.tries = 0
        self.dead: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.troubles: list[str] = []
        self.slots = Slots()
        wiring: Any = SimpleNamespace(on_fault=self._fault)
        self.preparer = Preparer(
            wiring,
            None,
            self.slots,
            on_trouble=lambda why: self.troubles.append(str(why)),
            on_fine=lambda: None,
        )  # type: ignore[arg-type]
        monkeypatch.setattr(Preparer, "_attempt", self._attempt)
        monkeypatch.setattr(preparing, "dead_letter", self._dead_letter)
        monkeypatch.setattr(preparing.Patience, "pause", lambda _self: (0.0, False))

    def _fault(self) -> None:
        self.faults += 1

    async def _attempt(self, slot: Slot) -> None:
        self.tries += 1
        if slot.message.body != b"fine":
            raise TypeError("bob@example.net has no len()")
        slot.state = SlotState.READY

    async def _dead_letter(
        self, _wiring: Any, message: Any, reason: str, what: str, *, sent: Any
    ) -> None:
        if self.error is not None:
            raise self.error
        self.dead.append((message.body.decode(), f"{what}: {reason}"))
        sent()

    async def others(self, count: int) -> None:
        for _ in range(count):
            await self.preparer.prepare(self.slots.arrived(message("fine")))

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


async def test_a_poison_message_is_held_counted_and_dead_lettered_once_others_got_through(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    slot = made.slots.arrived(message("poison"))
    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(made.preparer.prepare(slot))
        await made.until(lambda: made.tries > 3 * TRIES)
        assert (slot.state, made.dead, made.faults) == (SlotState.HELD, [], made.tries)
        assert (
            made.troubles[0]
            == "a delivery could not be prepared: TypeError: bob@example.net has no len()"
        )
        await made.others(OTHERS)
        async with asyncio.timeout(30):
            await task
    [(body, said)] = made.dead
    assert body == "poison"
    assert said.startswith("a message: cannot be prepared: TypeError, ")
    assert "@" not in said
    assert slot.state is SlotState.GONE
    assert slot not in set(made.slots)
    assert sum(record.exc_info not in (None, False) for record in caplog.records) == 1, (
        "one traceback is enough"
    )


async def test_what_cannot_be_dead_lettered_now_is_held_on(made: Made) -> None:
    made.error = StoreUnavailable("RabbitMQ at x")
    slot = made.slots.arrived(message("poison"))
    task = asyncio.create_task(made.preparer.prepare(slot))
    await made.until(lambda: slot.faults)
    await made.others(OTHERS)
    await made.until(lambda: made.tries > 3 * TRIES + OTHERS)
    assert (slot.state, made.dead) == (SlotState.HELD, [])
    made.error = None
    await made.others(OTHERS)
    async with asyncio.timeout(30):
        await task
    assert [body for body, _ in made.dead] == ["poison"]


async def test_a_message_that_is_settled_already_is_left_alone_whatever_fails_after_it(
    made: Made,
) -> None:
    slot = made.slots.arrived(message("poison"))
    made.slots.remove(slot)
    async with asyncio.timeout(30):
        await made.preparer.prepare(slot)
    assert (made.tries, made.dead) == (1, [])
