"""A copy that waited for its time in the hop queue, and then met a store that does not answer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from mailslice.codec.message import encode
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.names import (
    HEADER_DELAY_TOKEN,
    HEADER_DELIVERY_COUNT,
    HEADER_FAULTS,
    RabbitNames,
    queue_name,
)
from mailslice.worker.dequeue import park
from mailslice.worker.dequeue.expired_delay_consumer import ExpiredDelayConsumer
from mailslice.worker.dequeue.park import FAULT_ROUNDS, Park, RetryPauses
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.context import Tuning
from mailslice.worker.io.statistics import WorkerStatistics


def context_of_hop() -> Any:
    return SimpleNamespace(
        settings=SimpleNamespace(rabbitmq=None),
        names=RabbitNames(queue_name("spool")),
        statistics=WorkerStatistics(),
        tuning=Tuning(),
    )


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
    context = context_of_hop()
    delays: Any = SimpleNamespace(on_expired=away, has_published=lambda _: published)
    waited = asyncio.get_running_loop().time() - 600
    message: Any = SimpleNamespace(headers={}, arrived=waited)
    surfacing = asyncio.create_task(ExpiredDelayConsumer(context, delays)._handle(message))
    await asyncio.wait({surfacing}, timeout=0.5)
    assert bool(parked) is not published
    surfacing.cancel()


@pytest.mark.parametrize(("held", "others_pass"), [(200, True), (300, True), (300, False)])
async def test_copies_that_are_held_make_room_for_those_that_go_through(
    monkeypatch: pytest.MonkeyPatch, held: int, *, others_pass: bool
) -> None:
    parked: list[object] = []

    async def on_expired(message: Any) -> None:
        if not message.passes:
            raise StoreUnavailable("a shard of Cassandra does not answer")

    async def put(*given: object, **_: object) -> bool:
        parked.append(given)
        return True

    monkeypatch.setattr(Park, "put", put)
    monkeypatch.setattr(RetryPauses, "pause", lambda _: 0.01)
    delays: Any = SimpleNamespace(on_expired=on_expired, has_published=lambda _: False)
    hop = ExpiredDelayConsumer(context_of_hop(), delays)
    now = asyncio.get_running_loop().time()
    copies: list[Any] = [
        SimpleNamespace(headers={}, arrived=now, passes=False) for _ in range(held)
    ]
    if others_pass:
        copies.append(SimpleNamespace(headers={}, arrived=now, passes=True))
    surfacing = {asyncio.create_task(hop._handle(copy)) for copy in copies}
    await asyncio.wait(surfacing, timeout=0.3)
    assert bool(parked) is (held > 256 and others_pass)
    assert held - len(parked) <= 256 or not others_pass
    for one in surfacing:
        one.cancel()


@pytest.mark.parametrize(("is_true", "away"), [(True, False), (True, True), (False, False)])
async def test_a_copy_that_is_a_dead_letter_closes_its_delay_and_no_other(
    caplog: pytest.LogCaptureFixture, *, is_true: bool, away: bool
) -> None:
    """Another copy is true by the row's token, and comes yet. A delay that stays open is logged:
    `queue retry` calls it overdue.
    """
    asked: list[str] = []

    async def published(_letter: object) -> None:
        asked.append("dead letter")

    async def fails(_message: object) -> None:
        raise TypeError("a fault of its own")

    token, context = uuid4(), context_of_hop()
    context.queue, context.clock = queue_name("spool"), lambda: datetime.now(UTC)
    context.events = SimpleNamespace(emit=lambda *_, **__: None)
    context.publish_dead_letter = published
    row = SimpleNamespace(published=False, leased=False, token=token if is_true else uuid4())

    async def answered(answer: object = None) -> Any:
        return answer

    async def close(_row: object) -> None:
        asked.append("closed")
        if away:
            raise StoreUnavailable("Cassandra does not answer a@b.example")

    delays: Any = Delays(context)
    delays.on_expired, delays.rows = fails, SimpleNamespace(close=close)
    delays.rows.table_exists, delays.rows.load = lambda: answered(True), lambda _: answered(row)
    item = QueuedMail(
        EnqueueId(UUID(int=1)), Mail("m", None, ("a@b.example",)), BlobId("h"), BlobId("b")
    )
    message: Any = SimpleNamespace(
        body=encode(item),
        headers={
            HEADER_DELAY_TOKEN: str(token),
            HEADER_FAULTS: FAULT_ROUNDS,
            HEADER_DELIVERY_COUNT: 1,
        },
        arrived=0.0,
        timestamp=None,
        ack=lambda: asked.append("ack"),
        link=SimpleNamespace(flushed=lambda: asyncio.sleep(0)),
    )
    await ExpiredDelayConsumer(context, delays)._handle(message)
    assert asked == ["dead letter", "ack", *(["closed"] if is_true else [])]
    warnings = [one for one in caplog.records if getattr(one, "action", "") == "delay_open"]
    text = "the delay of a dead letter is open still: StoreUnavailable"
    assert [one.message for one in warnings] == [text] * away
    assert [getattr(one, "enqueue_id", None) for one in warnings] == [str(UUID(int=1))] * away
