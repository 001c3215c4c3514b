"""A copy that waited for its time in the hop queue, and then met a store that does not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.names import RabbitNames, queue_name
from mailslice.worker.dequeue import park
from mailslice.worker.dequeue.expired_delay_consumer import ExpiredDelayConsumer
from mailslice.worker.dequeue.park import Park, RetryPauses
from mailslice.worker.io.context import Tuning
from mailslice.worker.io.statistics import WorkerStatistics


@pytest.mark.parametrize("published", [True, False])
async def test_a_copy_that_waited_long_and_was_published_here_is_shown_to_no_other_worker(
    monkeypatch: pytest.MonkeyPatch, *, published: bool
) -> None:
    parked: list[object] = []

    async def away(_message: object) -> None:
        raise StoreUnavailable("Cassandra does not answer")

    async def put(*given: object, **_: object) -> bool:
        parked.append(given)
        return True

    monkeypatch.setattr(Park, "put", put)
    monkeypatch.setattr(park, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(RetryPauses, "pause", lambda _: 0.01)
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(rabbitmq=None),
        names=RabbitNames(queue_name("spool")),
        statistics=WorkerStatistics(),
        tuning=Tuning(),
    )
    delays: Any = SimpleNamespace(on_expired=away, has_published=lambda _: published)
    waited = asyncio.get_running_loop().time() - 600
    message: Any = SimpleNamespace(headers={}, arrived=waited)
    surfacing = asyncio.create_task(ExpiredDelayConsumer(context, delays)._surface(message))
    await asyncio.wait({surfacing}, timeout=0.5)
    assert bool(parked) is not published
    surfacing.cancel()
