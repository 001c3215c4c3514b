"""An event loop on a thread of its own, at its end."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mailslice.model.errors import BadInput
from mailslice.stores.loop_thread import LoopThread


async def nothing() -> None:
    """Ends at once."""


@pytest.fixture
def _switching_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_switching_often")
def test_a_call_beside_the_end_is_done_or_told_that_it_is_closed() -> None:
    ends: Counter[str] = Counter()

    def call_on(loop: LoopThread, go: threading.Event) -> None:
        go.set()
        try:
            while True:
                loop.call(nothing())
        except BadInput:
            ends["closed"] += 1
        except BaseException as error:  # noqa: BLE001 - whatever the caller is told
            ends[repr(error)] += 1

    for _ in range(300):
        loop, go = LoopThread("test"), threading.Event()
        loop.start()
        callers = [threading.Thread(target=call_on, args=(loop, go)) for _ in range(4)]
        for caller in callers:
            caller.start()
        go.wait(10)
        loop.end(nothing())
        loop.stop()
        for caller in callers:
            caller.join(10)
            assert not caller.is_alive(), "it waits for ever"
    assert ends == {"closed": 1200}


def test_an_end_does_not_wait_for_callers_who_never_pause() -> None:
    loop, enough = LoopThread("test"), threading.Event()
    loop.start()

    def call(seconds: float) -> None:
        with suppress(BadInput):
            while not enough.is_set():
                loop.call(asyncio.sleep(seconds))

    callers = [threading.Thread(target=call, args=(0.05 + n / 100,)) for n in range(16)]
    for caller in callers:
        caller.start()
    ending = threading.Thread(target=loop.end, args=(nothing(),))
    ending.start()
    ending.join(10)
    ended = not ending.is_alive()
    enough.set()
    loop.stop()
    for thread in (ending, *callers):
        thread.join(10)
    assert ended


def test_what_runs_may_call_until_it_has_ended() -> None:
    loop, begun = LoopThread("test"), threading.Event()
    loop.start()

    async def handler() -> None:
        begun.set()
        await asyncio.sleep(0.2)
        await asyncio.to_thread(loop.call, nothing())

    running = loop.submit(handler())
    assert begun.wait(10)
    loop.end(nothing())
    loop.stop()
    assert running.result(0) is None
