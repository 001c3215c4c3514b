"""Throttling by destination: workers that know nothing of each other share the books of a queue, in
Cassandra.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import psutil
import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.throttling import Load
from mailslice.stores.cassandra.own import Destinations
from mailslice.worker import consume, open_worker
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.io.destination_throttle import BlockingThrottle, DestinationThrottle
from mailslice.worker.queue_worker import QueueWorker
from tests.services.worker.conftest import mail
from tests.services.worker_process.sink import Sink, running

CONTENT = b"Subject: x\r\n\r\nbody\r\n"
SLOW = ("slow.example",)
BUSY_PERCENT = 80
"""Of the cores: above it a pause of seconds may be the machine's."""


def limited(spool: Any, port: int = 25, **given: Any) -> Any:
    given = {"host": "127.0.0.1", "port": port, **given}
    return type(spool.settings).model_validate(
        spool.settings.model_dump() | {"relay": spool.settings.relay.model_dump() | given}
    )


def throttle_of(worker: QueueWorker) -> DestinationThrottle:
    assert worker.state.throttle is not None
    return worker.state.throttle


def book(spool: Any, domain: str = "slow.example") -> Load:
    return (
        Destinations.created(spool.stores.cassandra, spool.settings)
        .books(spool.queue, [domain])
        .get(domain, Load())
    )


async def until(wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not wanted():  # noqa: ASYNC110 - what others write into a store sets no event here
            await asyncio.sleep(0.02)


def fails_for(monkeypatch: pytest.MonkeyPatch, domain: str, error: Exception) -> None:
    """From now on the row of this domain cannot be read."""
    original = Destinations.read_future

    def read(self: Destinations, queue: Any, asked: str) -> Any:
        if asked == domain:
            raise error
        return original(self, queue, asked)

    monkeypatch.setattr(Destinations, "read_future", read)


async def test_two_workers_share_a_rate_and_what_comes_in_one_moment_is_granted_once(
    spool: Any,
) -> None:
    settings = limited(spool, rates="slow.example=600")
    async with open_worker(settings, spool.queue) as one, open_worker(settings, spool.queue) as two:
        began = time.monotonic()
        asked = [
            throttle_of(worker).enter(f"{worker.context.worker}-{n}", SLOW, waited=False)
            for worker in (one, two)
            for n in range(60)
        ]
        answers = await asyncio.gather(*asked)
        took = time.monotonic() - began
    granted = sum(not answer for answer in answers)
    assert 31 <= granted <= 31 + took * 10 + 1
    waits = sorted(answer["slow.example"] for answer in answers if answer)
    assert all(timedelta(0) < wait <= timedelta(seconds=12) for wait in waits)
    assert book(spool).line_us > time.time() * 1e6


async def test_connections_at_once_are_counted_over_all_workers_and_come_back(spool: Any) -> None:
    settings = limited(spool, connections="*=3")
    async with open_worker(settings, spool.queue) as one, open_worker(settings, spool.queue) as two:
        first = [await throttle_of(one).enter(str(n), SLOW, waited=True) for n in range(2)]
        second = [await throttle_of(two).enter(str(n), SLOW, waited=True) for n in range(2, 4)]
        assert [bool(waits) for waits in (*first, *second)] == [False, False, False, True]
        assert set(book(spool).holders) == {"0", "1", "2"}
        throttle_of(one).leave("0", SLOW)
        await until(lambda: "0" not in book(spool).holders)
        assert not await throttle_of(two).enter("4", SLOW, waited=True)
        assert await throttle_of(two).enter("5", ("other.example",), waited=False) == {}


async def test_the_forms_of_a_domain_share_its_book_and_each_is_told_how_long_it_waits(
    spool: Any,
) -> None:
    forms = ("Bücher.example.", "xn--bcher-kva.example", "bücher.example")
    async with open_worker(
        limited(spool, connections="*=1,bücher.example.=1"), spool.queue
    ) as worker:
        throttle = throttle_of(worker)
        assert await throttle.enter("first", ("xn--bcher-kva.example",), waited=False) == {}
        asking = BlockingThrottle(throttle, loop=asyncio.get_running_loop())

        def ask() -> set[str]:
            with asking.entering(forms) as waits:
                return set(waits)

        assert await asyncio.to_thread(ask) == set(forms)
        throttle.leave("first", ("xn--bcher-kva.example",))
        await until(lambda: not book(spool, "xn--bcher-kva.example").holders)
    assert book(spool, "bücher.example") == Load()


async def test_domains_without_a_limit_ask_nobody(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Destinations, "created", lambda *_: pytest.fail("asked"))
    async with open_worker(
        limited(spool, rates="slow.example=1,free.example=0"), spool.queue
    ) as worker:
        assert (
            await throttle_of(worker).enter("a", ("other.example", "free.example"), waited=False)
            == {}
        )
    async with open_worker(spool.settings, spool.queue) as worker:
        assert worker.state.throttle is None


async def test_a_domain_whose_row_does_not_answer_waits_and_the_others_are_granted(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(limited(spool, connections="*=1,free.example=0"), spool.queue) as worker:
        throttle = throttle_of(worker)
        assert await throttle.enter("a", SLOW, waited=False) == {}
        throttle.leave("a", SLOW)
        await until(lambda: not book(spool).holders)
        fails_for(monkeypatch, "bad.example", RuntimeError("a fault"))
        away = {"bad.example": timedelta(seconds=30)}
        assert await throttle.enter("b", ("bad.example", *SLOW), waited=False) == away
        assert set(book(spool).holders) == {"b"}
        throttle.leave("b", ("bad.example", *SLOW))
        await until(lambda: not book(spool).holders)
        assert await throttle.enter("c", ("bad.example", "free.example"), waited=False) == away
        assert await throttle.enter("d", ("bad.example",), waited=False) == away
        counted = worker.context.statistics.destinations
        assert counted == {("*", "granted"): 2, ("*", "unavailable"): 3}


async def test_an_error_that_is_no_stores_grants_nothing_and_frees_what_others_gave(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_worker(limited(spool, connections="*=1"), spool.queue) as worker:
        throttle = throttle_of(worker)
        fails_for(monkeypatch, "bad.example", BadSetting("another password"))
        with pytest.raises(BadSetting, match="another password"):
            await throttle.enter("b", ("bad.example", *SLOW), waited=False)
        await until(lambda: not book(spool).holders)


async def relayed(settings: Any, queue: Any, workers: int, seconds: float) -> None:
    """So many workers relay the queue for so long, each with stores of its own."""
    stop = asyncio.Event()
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
        for _ in range(workers):
            worker = await opened.enter_async_context(open_worker(settings, queue))
            group.create_task(consume(worker, Relay(settings), prefetch=32, stop=stop))
        await asyncio.sleep(seconds)
        stop.set()


async def test_what_is_over_the_limit_waits_in_the_levels_and_the_rest_of_the_mail_is_sent(
    spool: Any,
) -> None:
    with running(Sink()) as sink:
        settings = limited(spool, sink.port, rates="slow.example=1")
        async with open_worker(settings, spool.queue) as worker:
            items = [
                await worker.enqueue(
                    mail(f"m-{n}", recipients=("a@Slow.example", "b@fast.example")), CONTENT
                )
                for n in range(3)
            ]
            stop = asyncio.Event()
            consuming = asyncio.create_task(consume(worker, Relay(settings), stop=stop))
            await until(lambda: sum(len(got[1]) for got in sink.got) == 4)
            stop.set()
            done = await consuming
            assert worker.context.statistics.count == 1
    assert (done.completed, done.retried, done.failures) == (1, 2, 0)
    assert sorted(recipient for got in sink.got for recipient in got[1]) == [
        "a@Slow.example",
        *["b@fast.example"] * 3,
    ]
    rows = [spool.stores.own.delayed_mails.get(spool.queue, item.enqueue_id) for item in items]
    waiting = [row for row in rows if row is not None]
    assert [(row.throttled, row.failures, row.published) for row in waiting] == [
        (True, 0, False)
    ] * 2
    assert sorted(live.item.mail.recipients for live in spool.live()) == [("a@Slow.example",)] * 2


@pytest.mark.soak
@pytest.mark.parametrize(("rate", "workers"), [(300, 1), (300, 3), (60, 3)])
async def test_a_minute_of_more_mail_than_it_takes_is_used_to_within_a_tenth(
    spool: Any, rate: int, workers: int
) -> None:
    with running(Sink()) as sink:
        settings = limited(spool, sink.port, rates=f"slow.example={rate}")
        async with open_worker(settings, spool.queue) as worker:
            await asyncio.gather(
                *(
                    worker.enqueue(mail(f"m-{n}", recipients=("a@slow.example",)), CONTENT)
                    for n in range(rate * 2)
                )
            )
        psutil.cpu_percent()
        await relayed(settings, spool.queue, workers, 60)
        busy = psutil.cpu_percent()
        assert len(sink.got) <= rate * 1.1 + 1
        if len(sink.got) < rate * 0.9 and busy > BUSY_PERCENT:
            pytest.skip(f"{len(sink.got)} of {rate} on a busy machine: the fewest are no figure")
        assert len(sink.got) >= rate * 0.9
