"""The consuming process, with deliveries that end as the broker makes them end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.worker import queue_worker
from mailslice.worker.dequeue.strikes import InHandlers, StrikeState
from mailslice.worker.io.statistics import WorkerStatistics
from mailslice.worker.process import child
from mailslice.worker.process.consumer_task import ConsumerTask
from tests.unit.worker_process.test_handler_pool import FakeDelivery

HANDLER = """
import multiprocessing, time

def slow(mail, content):
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1,))
    forked.start()
    time.sleep(0.2)
    forked.terminate()
    forked.join()
    time.sleep(0.1)
    assert forked.exitcode == -15, forked.exitcode
"""


class Refused:
    """One delivery, and then a broker that refuses us for good."""

    connected = True
    held = False

    def __init__(self, delivery: FakeDelivery) -> None:
        self._left = [delivery]
        self.closed = False

    def __aiter__(self) -> Refused:
        return self

    async def __anext__(self) -> Any:
        if self._left:
            return self._left.pop()
        await asyncio.sleep(0.05)  # the handler has begun
        raise BadSetting("RabbitMQ at rabbit:5672 refuses user 'u'")

    async def aclose(self) -> None:
        self.closed = True


async def test_a_broker_that_refuses_us_in_the_middle_does_not_cost_what_handlers_have_done(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_handler.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(str(tmp_path))
    delivery = FakeDelivery()
    deliveries = Refused(delivery)

    @asynccontextmanager
    async def opened(*_: Any, **_options: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(
            context=SimpleNamespace(statistics=WorkerStatistics()),
            state=SimpleNamespace(in_doubt=None),
            reaches_cassandra=True,
            deliveries=lambda _prefetch: deliveries,
        )

    monkeypatch.setattr(queue_worker, "open_worker", opened)
    link = SimpleNamespace(
        start=lambda *_: None,
        turned=0.0,
        struck=StrikeState(),
        buried=[],
    )
    task = ConsumerTask(
        Settings(),
        QueueName("refused"),
        "slow_handler:slow",
        prefetch=2,
        concurrency=2,
        drain=timedelta(seconds=5),
    )
    cells: Any = bytearray(InHandlers.size(2))
    with pytest.raises(BadSetting, match="refuses user 'u'"):
        await child._consume(task, link, InHandlers(cells))
    assert delivery.told == [("complete",)], "it would be handled again else"
    assert deliveries.closed
