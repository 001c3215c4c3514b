"""A delivery without a row counts as cleaned once its slice may be over by the current window.

A worker's clock may be behind Cassandra's by a quarter of the grace, here by 3m45s.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, ViewRow
from mailslice.model.names import QueueTable, queue_name
from mailslice.testing.memory import MemoryEnqueuedMails
from mailslice.view.configuration import Shape
from mailslice.worker.io import deleted_check
from mailslice.worker.io.context import Tuning
from mailslice.worker.io.deleted_check import DeliveryStatus, delivery_status, row_of

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ITEM = QueuedMail(
    EnqueueId(UUID(int=1)), Mail("m", None, ("a@b.example",)), BlobId("h"), BlobId("b")
)


def context(*, shared: bool = False) -> Any:
    """An own queue whose window was two hours once, and is one now."""

    async def unmarked(_: EnqueueId) -> bool:
        return False

    duty = SimpleNamespace(grace=timedelta(minutes=15))
    settings = SimpleNamespace(queue=SimpleNamespace(shared=shared), duty=duty)
    return SimpleNamespace(
        is_marked=unmarked,
        settings=settings,
        clock=lambda: NOW,
        shape=Shape(HOUR, 2 * HOUR, (1,)),
        tuning=Tuning(row_reads=(0.0,), recent_row_reads=(0.0,)),
    )


@pytest.mark.parametrize(
    ("minutes", "shared", "expected"),
    [
        (56, False, DeliveryStatus.LIVE),
        (57, False, DeliveryStatus.CLEANED),
        (60, False, DeliveryStatus.CLEANED),
        (119, False, DeliveryStatus.CLEANED),
        (120, False, DeliveryStatus.CLEANED),
        (None, False, DeliveryStatus.CLEANED),
        (600, True, DeliveryStatus.LIVE),
    ],
)
async def test_a_delivery_without_a_row(
    monkeypatch: pytest.MonkeyPatch, minutes: int | None, shared: bool, expected: DeliveryStatus
) -> None:
    async def none(*_: object) -> None:
        return None

    monkeypatch.setattr(deleted_check, "row_of", none)
    partition = None if minutes is None else Partition(NOW - timedelta(minutes=minutes), 0)
    assert await delivery_status(context(shared=shared), ITEM, partition) is expected


@pytest.mark.parametrize(
    ("row_in", "expected", "known"),
    [
        ("V3", DeliveryStatus.LIVE, ["V3"]),
        ("V4", DeliveryStatus.LIVE, ["V3", "V4"]),
        ("none", DeliveryStatus.CLEANED, ["V3", "V4"]),
    ],
)
async def test_the_schema_is_asked_only_after_no_known_table_had_the_row(
    monkeypatch: pytest.MonkeyPatch, row_in: str, expected: DeliveryStatus, known: list[str]
) -> None:
    """Of a worker that began before V4 was made."""
    old = context()
    old.tuning = Tuning(row_reads=(0.0, 0.001), recent_row_reads=())
    old.tables = SimpleNamespace(existing=["V3"])
    old.tables.extend = lambda: old.tables.existing.append("V4")

    async def row_of(asked: Any, *_: object) -> object | None:
        return "a row" if row_in in asked.tables.existing else None

    monkeypatch.setattr(deleted_check, "row_of", row_of)
    assert (await delivery_status(old, ITEM, None), old.tables.existing) == (expected, known)


@pytest.mark.parametrize("written", [True, False])
async def test_a_row_is_read_by_the_event_loop_and_holds_no_thread(
    monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    """As many threads would wait for a partition whose replicas are away."""
    partition, spool = Partition(NOW, 0), queue_name("spool")
    tables = [MemoryEnqueuedMails(one, lambda: 1) for one in (QueueTable.V3, QueueTable.V4)]
    row = ViewRow(spool, partition, NOW, ITEM)
    if written:
        tables[1].insert_future(row)
    asked: list[asyncio.Future[Any]] = []

    def rows(future: Any) -> asyncio.Future[Any]:
        asked.append(asyncio.get_running_loop().create_future())
        future.add_callbacks(asked[-1].set_result, None)
        return asked[-1]

    own = context()
    own.queue, own.tables = spool, SimpleNamespace(existing=tables)
    own.bridge = SimpleNamespace(rows=rows)
    monkeypatch.setattr(asyncio, "to_thread", None)
    assert await row_of(own, ITEM, partition) == (row if written else None)
    assert len(asked) == 2
