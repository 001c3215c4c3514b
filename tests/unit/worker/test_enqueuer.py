"""Row and message of one enqueue: beside each other, but for the time after a row that failed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import Mail, QueuedMail
from mailslice.model.names import RabbitNames, queue_name
from mailslice.worker import enqueuer as module
from mailslice.worker.budget import ContentBudget
from mailslice.worker.enqueuer import Enqueuer

AWAY = StoreUnavailable("Cassandra at c:9042 does not answer")


class Stores:
    """What an enqueue asks of its stores, in order. Inserts end as a test says; all else succeeds at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.inserts: list[asyncio.Future[list[Any]]] = []
        ids = iter(range(100))
        self.wiring = SimpleNamespace(
            queue=queue_name("spool"),
            names=RabbitNames(queue_name("spool")),
            clock=lambda: datetime(2026, 11, 22, tzinfo=UTC),
            shape=SimpleNamespace(window=timedelta(hours=1), bucket_counts=(1,)),
            settings=SimpleNamespace(queue=SimpleNamespace(max_mail_bytes=1000)),
            enqueue_budget=ContentBudget(1000),
            blobs=SimpleNamespace(put=self._nothing, delete_many=self._nothing),
            blob_ids=SimpleNamespace(new=lambda _content: f"b-{next(ids)}"),
            tables=SimpleNamespace(
                written=SimpleNamespace(insert_future=self._insert),
                content_starts=SimpleNamespace(insert_first=lambda *_: None),
                browse_starts=SimpleNamespace(insert_first=lambda *_: None),
            ),
            bridge=SimpleNamespace(rows=lambda future: future),
            publisher=SimpleNamespace(publish=self._publish),
            mark=self._nothing,
        )

    async def _nothing(self, *_: object) -> None:
        return

    def _insert(self, _row: object) -> asyncio.Future[list[Any]]:
        self.asked.append("row")
        self.inserts.append(asyncio.get_running_loop().create_future())
        return self.inserts[-1]

    async def _publish(self, *_: object) -> None:
        self.asked.append("message")


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def begun() -> Any:
    """`await begun()`: an enqueue that waits for its row, the future of that row, and what was asked of the stores for it."""
    stores = Stores()
    enqueuer = Enqueuer(stores.wiring, None)  # type: ignore[arg-type]
    enqueuer._starts_written = True

    async def begin() -> tuple[asyncio.Task[QueuedMail], asyncio.Future[list[Any]], list[str]]:
        before = len(stores.asked)
        task = asyncio.create_task(enqueuer.enqueue(Mail("m", "a@b", ("c@d",)), b"A: b\r\n\r\nc"))
        await turns()
        return task, stores.inserts[-1], stores.asked[before:]

    begin.stores = stores  # type: ignore[attr-defined]
    yield begin
    await enqueuer.close()


async def test_row_and_message_go_beside_each_other(begun: Any) -> None:
    task, row, asked = await begun()
    assert asked == ["row", "message"]
    row.set_result([])
    await task


@pytest.mark.parametrize("cancelled", [False, True])
async def test_after_a_row_that_failed_messages_wait_for_their_rows_until_one_succeeds(
    begun: Any, monkeypatch: pytest.MonkeyPatch, *, cancelled: bool
) -> None:
    monkeypatch.setattr(module, "_UNDO_PAUSES", (0.0,))
    task, row, _ = await begun()
    if cancelled:
        task.cancel()
    else:
        row.set_exception(AWAY)
    with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
        await task

    again, row, asked = await begun()
    assert asked == ["row"]
    row.set_exception(AWAY)
    with pytest.raises(StoreUnavailable):
        await again
    assert begun.stores.asked.count("message") == 1

    back, row, asked = await begun()
    assert asked == ["row"]
    row.set_result([])
    await back
    assert begun.stores.asked[-1] == "message"

    later, row, asked = await begun()
    assert asked == ["row", "message"]
    row.set_result([])
    await later


async def test_a_row_that_began_before_another_one_failed_proves_nothing(begun: Any) -> None:
    early, early_row, _ = await begun()
    failing, row, _ = await begun()
    row.set_exception(AWAY)
    with pytest.raises(StoreUnavailable):
        await failing
    early_row.set_result([])
    await early
    last, row, asked = await begun()
    assert asked == ["row"]
    row.set_result([])
    await last
