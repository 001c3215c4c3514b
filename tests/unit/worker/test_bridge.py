"""The driver's callbacks on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.settings import CassandraSettings
from mailslice.worker.io.cassandra_bridge import Bridge


class Response:
    """A driver's future that is answered by the test, on a thread."""

    def __init__(self) -> None:
        self._answer: tuple[Callable[..., None], Callable[..., None]] | None = None
        self._event = threading.Event()
        self.ended = 0

    def add_callbacks(self, callback: Any, errback: Any) -> None:
        self._answer = (callback, errback)

    def _on_timeout(self) -> None:
        self.ended += 1
        self.answer(error=RuntimeError("timed out"))

    def answer(self, rows: Any = None, error: Exception | None = None) -> None:
        assert self._answer is not None
        self._event.set()
        callback, errback = self._answer
        if error is None:
            callback(rows)
        else:
            errback(error)


class Session:
    """Translates errors."""

    settings = CassandraSettings(contact_points=("c",), timeout=timedelta(seconds=1))

    def error(self, error: BaseException) -> BaseException:
        return StoreUnavailable(f"Cassandra at c:9042 does not answer: {error}")


def on_a_thread(action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


async def test_many_answers_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = Bridge(Session())  # type: ignore[arg-type]
    responses = [Response() for _ in range(50)]
    waiting = [bridge.rows(response) for response in responses]  # type: ignore[arg-type]
    wakes = 0
    original = bridge._loop.call_soon_threadsafe

    def counted(*args: Any) -> Any:
        nonlocal wakes
        wakes += 1
        return original(*args)

    monkeypatch.setattr(bridge._loop, "call_soon_threadsafe", counted)
    answers = [(response, [(number,)]) for number, response in enumerate(responses)]
    on_a_thread(lambda: [response.answer(rows) for response, rows in answers])
    assert await asyncio.gather(*waiting) == [[(number,)] for number in range(50)]
    assert wakes == 1


async def test_a_write_has_no_rows_and_an_error_is_translated() -> None:
    bridge = Bridge(Session())  # type: ignore[arg-type]
    written, failed, cancelled = Response(), Response(), Response()
    responses: Any = (written, failed, cancelled)
    waiting = [bridge.rows(response) for response in responses]
    waiting[2].cancel()
    on_a_thread(
        lambda: (
            written.answer(None),
            failed.answer(error=RuntimeError("boom")),
            cancelled.answer([(1,)]),
        )
    )  # type: ignore[func-returns-value,arg-type,return-value]
    assert await waiting[0] == []
    with pytest.raises(StoreUnavailable, match="c:9042 does not answer: boom"):
        await waiting[1]
    later = Response()
    again = bridge.rows(later)  # type: ignore[arg-type]
    on_a_thread(lambda: later.answer([(2,)]))
    assert await again == [(2,)]


async def test_one_that_is_not_answered_in_time_is_ended_and_an_answered_one_is_not() -> None:
    bridge = Bridge(Session())  # type: ignore[arg-type]
    answered, silent, cancelled = Response(), Response(), Response()
    responses: Any = (answered, silent, cancelled)
    waiting = [bridge.rows(response) for response in responses]
    waiting[2].cancel()
    on_a_thread(lambda: answered.answer([(1,)]))
    assert await waiting[0] == [(1,)]
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable, match="timed out"):
        await waiting[1]
    assert 0.5 < asyncio.get_running_loop().time() - began < 1.25 + 0.5
    await asyncio.sleep(0.3)
    assert not bridge._deadlines.open


async def test_one_that_is_answered_at_its_time_out_is_not_ended() -> None:
    """Its id may be another request's already, which would never be answered."""
    bridge = Bridge(Session())  # type: ignore[arg-type]
    response: Any = Response()
    waiting = bridge.rows(response)
    (timeout,) = bridge._deadlines.open
    on_a_thread(lambda: response.answer([(1,)]))
    timeout.expire()
    assert await waiting == [(1,)]
    assert response.ended == 0
