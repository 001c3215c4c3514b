"""`consume` at its end: refused by the broker, stopped without a store, cancelled while it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.mail import Mail
from mailslice.model.settings import Settings
from mailslice.worker.outcome import Disposition
from mailslice.worker.process import consume_loop
from mailslice.worker.process import handler_pool as handling
from mailslice.worker.process.consume_loop import consume
from mailslice.worker.process.handler_pool import Policy
from tests.unit.worker_process.test_handler_pool import FakeDelivery

IMPATIENT = Policy(settle_pauses=(0.01,))
SOON = 20
"""Seconds for what ends at once, on a machine that is busy."""


class Held(FakeDelivery):
    """A delivery whose outcome no store takes; what goes back to the broker goes."""

    __hash__ = object.__hash__

    async def complete(self) -> Disposition:
        if self.away:
            raise StoreUnavailable("Cassandra at c:9042 does not answer")
        return await super().complete()

    def abandon(self) -> None:
        self.told.append(("abandoned",))

    async def retry(self, *_: Any, **__: Any) -> Disposition:
        self.told.append(("given back",))
        self.settled.set()
        return Disposition.RETRIED


class Given:
    """Deliveries that are ready at once; then `then`: wait until they are closed, or raise."""

    idle_seconds = 0.0

    def __init__(self, *deliveries: Held, then: Exception | None = None) -> None:
        self._left = list(deliveries)
        self._then = then
        self.closing = asyncio.Event()
        self.disconnected = False

    async def __anext__(self) -> Any:
        if self.closing.is_set():
            raise StopAsyncIteration
        if self._left:
            return self._left.pop(0)
        if self._then is not None:
            raise self._then
        await self.closing.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closing.set()

    async def disconnect(self) -> None:
        self.disconnected = True


def worker(given: Given) -> Any:
    return SimpleNamespace(
        context=SimpleNamespace(settings=Settings()),
        deliveries=lambda _prefetch, give_up_after: given,
    )


async def reached(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_a_broker_that_refuses_us_does_not_cost_what_handlers_are_at() -> None:
    delivery = Held()
    given = Given(delivery, then=BadSetting("RabbitMQ at rabbit:5672 refuses user 'u'"))

    def slow(_mail: Mail, _content: bytes) -> None:
        time.sleep(0.3)

    with pytest.raises(BadSetting, match="refuses user 'u'"):
        await consume(worker(given), slow, policy=IMPATIENT)
    assert delivery.told == [("complete",)], "it would be handled again else"
    assert given.disconnected


async def test_but_handlers_that_hang_are_not_waited_for_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consume_loop, "DRAIN_SECONDS", 0.1)
    delivery = Held()
    given = Given(delivery, then=StoreUnavailable("RabbitMQ at rabbit:5672 does not answer"))

    async def hangs(_mail: Mail, _content: bytes) -> None:
        await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(consume(worker(given), hangs, policy=IMPATIENT), SOON)
    assert (delivery.told, given.disconnected) == ([("given back",)], True)


@pytest.mark.parametrize("ending", ["stop", "most"])
async def test_an_end_does_not_wait_for_as_long_as_a_store_is_away(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(handling, "DRAIN_SECONDS", 0.1)
    stop, delivery, never = asyncio.Event(), Held(away=1), Held(2)
    given = Given(delivery, never)
    consuming_ = asyncio.create_task(
        consume(
            worker(given),
            lambda *_: None,
            concurrency=1,
            stop=stop,
            most=1 if ending == "most" else None,
        )
    )
    if ending == "stop":
        await reached(lambda: consuming_.done() or handling_is_told(delivery))
        stop.set()  # its one place is taken by what cannot be told
    done = await asyncio.wait_for(consuming_, SOON)
    assert (delivery.told, never.told) == ([("given back",)], [])
    assert (done.total, given.disconnected) == (0, True)


class Marked(Held):
    """A retry writes stage marks, which no store takes either."""

    async def retry(self, *_: Any, **__: Any) -> Disposition:
        raise self.fault

    async def requeue(self) -> Disposition:
        return await super().retry()


async def test_what_cannot_be_retried_at_the_end_goes_back_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handling, "DRAIN_SECONDS", 0.1)
    delivery = Marked(away=1)
    consuming_ = consume(worker(Given(delivery)), lambda *_: None, most=1, policy=IMPATIENT)
    await asyncio.wait_for(consuming_, SOON)
    assert delivery.told == [("given back",)], "it would stay in hand, and be handed out no more"


async def test_a_mail_that_is_done_is_left_to_its_lease_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its copy writes the mark that no store took here."""
    monkeypatch.setattr(handling, "DRAIN_SECONDS", 0.1)
    delivery = Held(away=1, lease=SimpleNamespace(is_out=True, says_done=True))
    consuming_ = consume(worker(Given(delivery)), lambda *_: None, most=1, policy=IMPATIENT)
    await asyncio.wait_for(consuming_, SOON)
    assert delivery.told == [("abandoned",)]


async def test_the_last_of_so_many_mails_is_not_told_of_an_end() -> None:
    saw: list[bool] = []

    def handle(_mail: Mail, _content: bytes, *, stopping: threading.Event) -> None:
        saw.append(stopping.wait(0.3))

    await asyncio.wait_for(consume(worker(Given(Held())), handle, most=1), SOON)
    assert saw == [False], "it would return its mail: each call takes one, and sends none"


def handling_is_told(delivery: Held) -> bool:
    """Whether its handler has ended, and the outcome is being told."""
    return any(
        task.get_name() == f"handle-{delivery.item.enqueue_id}" for task in asyncio.all_tasks()
    )


async def test_a_handler_has_its_time_and_its_outcome_is_told_when_the_stores_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handling, "DRAIN_SECONDS", 0.1)
    stop, begun, leave = asyncio.Event(), asyncio.Event(), asyncio.Event()
    delivery = Held()

    async def handle(_mail: Mail, _content: bytes) -> None:
        begun.set()
        await leave.wait()

    running = asyncio.create_task(
        consume(worker(Given(delivery)), handle, stop=stop, policy=IMPATIENT)
    )
    await asyncio.wait_for(begun.wait(), SOON)
    stop.set()
    await asyncio.sleep(0.3)
    assert not running.done()
    leave.set()
    assert (await asyncio.wait_for(running, SOON)).completed == 1
    assert delivery.told == [("complete",)]


async def test_cancelled_while_it_ends_it_still_cancels_handlers_and_gives_back() -> None:
    stop, begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    delivery = Held()
    given = Given(delivery)

    async def handle(_mail: Mail, _content: bytes) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(consume(worker(given), handle, stop=stop, policy=IMPATIENT))
    await asyncio.wait_for(begun.wait(), SOON)
    stop.set()
    await reached(given.closing.is_set)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(running, SOON)
    assert (ended.is_set(), delivery.told, given.disconnected) == (True, [("given back",)], True)
