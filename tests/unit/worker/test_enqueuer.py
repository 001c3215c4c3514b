"""Row, then message; and what becomes of an enqueue that fails."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable, Unconfirmed
from mailslice.model.mail import Mail, QueuedMail, ViewRow
from mailslice.model.names import RabbitNames, queue_name
from mailslice.view.configuration import Shape
from mailslice.worker.enqueue.enqueue_undo import EnqueueUndo
from mailslice.worker.enqueue.enqueuer import Enqueuer
from mailslice.worker.events import MailEvents
from mailslice.worker.io.content_loader import ContentBudget
from mailslice.worker.io.statistics import WorkerStatistics

AWAY = StoreUnavailable("Cassandra at c:9042 does not answer")


class Stores:
    """Records what an enqueue asks of its stores, in order.

    Inserts end as a test says. All else succeeds at once.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.inserts: list[asyncio.Future[list[Any]]] = []
        self.away = self.unconfirmed = False
        self.fault: Exception | None = None
        self.hanging: asyncio.Event | None = None
        ids = iter(range(100))
        self.context = SimpleNamespace(
            queue=queue_name("spool"),
            names=RabbitNames(queue_name("spool")),
            clock=lambda: datetime(2026, 11, 22, tzinfo=UTC),
            shape=Shape(timedelta(hours=1), timedelta(hours=1), (1,)),
            settings=SimpleNamespace(queue=SimpleNamespace(max_mail_bytes=1000)),
            enqueue_budget=ContentBudget(1000),
            blobs=SimpleNamespace(put=self._nothing, delete_many=self._delete),
            blob_ids=SimpleNamespace(new=lambda _content: f"b-{next(ids)}"),
            tables=SimpleNamespace(
                written=SimpleNamespace(insert_future=self._insert),
                insert_starts=lambda *_: None,
            ),
            bridge=SimpleNamespace(rows=lambda future: future),
            publish=self._publish,
            mark=self._mark,
            events=MailEvents(queue_name("spool"), "", None),
            statistics=WorkerStatistics(),
        )

    async def _nothing(self, *_: object) -> None:
        return

    def _insert(self, _row: object) -> asyncio.Future[list[Any]]:
        self.asked.append("row")
        self.inserts.append(asyncio.get_running_loop().create_future())
        return self.inserts[-1]

    async def _publish(self, *_: object) -> None:
        self.asked.append("message")
        if self.unconfirmed:
            raise Unconfirmed("nobody confirms")

    async def _mark(self, *_: object) -> None:
        self.asked.append("mark")
        if self.fault is not None:
            raise self.fault
        if self.away:
            raise AWAY

    async def _delete(self, *_: object) -> None:
        self.asked.append("delete")
        if self.hanging is not None and self.asked.count("delete") > 2:
            await self.hanging.wait()


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def begun(request: pytest.FixtureRequest) -> Any:
    """`await begun()`: an enqueue that waits for its row.

    It has the future of that row, and what was asked of the stores.
    """
    stores = Stores()
    limits = getattr(request, "param", {})
    enqueuer = Enqueuer(stores.context, None, EnqueueUndo(stores.context, **limits))

    async def begin() -> tuple[asyncio.Task[QueuedMail], asyncio.Future[list[Any]], list[str]]:
        before, rows = len(stores.asked), len(stores.inserts)
        task = asyncio.create_task(enqueuer.enqueue(Mail("m", "a@b", ("c@d",)), b"A: b\r\n\r\nc"))
        while len(stores.inserts) == rows:  # noqa: ASYNC110 - the starts are written by a thread
            await asyncio.sleep(0)
        await turns()
        return task, stores.inserts[-1], stores.asked[before:]

    begin.stores = stores  # type: ignore[attr-defined]
    begin.enqueuer = enqueuer  # type: ignore[attr-defined]
    yield begin
    await enqueuer.close()


async def test_a_mail_goes_into_the_slice_of_the_time_at_which_its_row_is_written() -> None:
    """Many first mails wait for starts that Cassandra does not take. A cleanup of the time when it
    is back may have moved browseStart past the slice of the time when they began to wait.
    """
    stores, now = Stores(), [datetime(2026, 11, 22, 10, 50, tzinfo=UTC)]
    starts, all_wait = list[datetime](), threading.Event()

    def insert_starts(_queue: object, first: datetime) -> None:
        all_wait.wait(10)
        starts.append(first)
        now[0] += timedelta(minutes=15)
        if len(starts) < 3:
            raise AWAY

    stores.context.clock = lambda: now[0]
    stores.context.tables.insert_starts = insert_starts
    rows = list[ViewRow]()

    def insert(row: ViewRow) -> asyncio.Future[list[Any]]:
        rows.append(row)
        (done := asyncio.get_running_loop().create_future()).set_result([])
        return done

    stores.context.tables.written.insert_future = insert
    enqueuer, mail = Enqueuer(stores.context, None), Mail("m", "a@b", ("c@d",))
    enqueues = (enqueuer.enqueue(mail, b"A: b\r\n\r\nc") for _ in range(4))
    ended = asyncio.gather(*enqueues, return_exceptions=True)
    await turns()
    all_wait.set()
    await ended
    await enqueuer.close()
    assert [(row.partition.slice_start, row.enqueued_time) for row in rows] == 2 * [
        (datetime(2026, 11, 22, 11, tzinfo=UTC), datetime(2026, 11, 22, 11, 35, tzinfo=UTC))
    ]
    assert all(start <= row.partition.slice_start for start in starts for row in rows)


async def test_a_message_waits_for_its_row(begun: Any) -> None:
    task, row, asked = await begun()
    assert asked == ["row"]
    row.set_result([])
    await task
    assert begun.stores.asked == ["row", "message"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_row_that_failed_has_no_message_and_is_marked_and_then_its_blobs_go(
    begun: Any, *, cancelled: bool
) -> None:
    task, row, _ = await begun()
    if cancelled:
        task.cancel()
    else:
        row.set_exception(AWAY)
    with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
        await task
    assert begun.stores.asked == ["row", "mark", "delete"]


async def test_a_publish_without_its_confirm_says_that_the_mail_may_be_delivered(
    begun: Any,
) -> None:
    begun.stores.unconfirmed = True
    task, row, _ = await begun()
    row.set_result([])
    with pytest.raises(
        Unconfirmed, match=r"nobody confirms; the mail may be delivered all the same"
    ):
        await task
    assert begun.stores.asked == ["row", "message", "mark", "delete"]


@pytest.mark.parametrize("begun", [{"shortest_pause": 0.01}], indirect=True)
async def test_marks_outlive_their_callers_and_come_before_blobs_when_cassandra_is_back(
    begun: Any,
) -> None:
    statistics = begun.stores.context.statistics
    begun.stores.away = True
    for number in range(1, 4):
        task, row, _ = await begun()
        row.set_exception(AWAY)
        with pytest.raises(StoreUnavailable):
            await task
        assert (statistics.undoing, statistics.abandoned) == (number, 0)
    assert "delete" not in begun.stores.asked
    begun.stores.away = False
    async with asyncio.timeout(5):
        while statistics.undoing:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert begun.stores.asked.count("delete") == 3
    assert statistics.abandoned == 0


@pytest.mark.parametrize("begun", [{"max_pending": 2, "close_timeout": 0.1}], indirect=True)
async def test_the_oldest_is_given_up_where_there_is_no_room_and_the_rest_at_the_end(
    begun: Any,
) -> None:
    statistics = begun.stores.context.statistics
    begun.stores.away = True
    for _ in range(3):
        task, row, _ = await begun()
        row.set_exception(AWAY)
        with pytest.raises(StoreUnavailable):
            await task
    assert (statistics.undoing, statistics.abandoned) == (2, 1)
    await begun.enqueuer.close()
    assert (statistics.undoing, statistics.abandoned) == (0, 3)


@pytest.mark.parametrize("begun", [{"shortest_pause": 0.01}], indirect=True)
async def test_a_fault_of_ours_is_tried_again_too_and_ends_nothing_for_the_others(
    begun: Any,
) -> None:
    stores, statistics = begun.stores, begun.stores.context.statistics
    stores.fault = TypeError("no such thing")
    for _ in range(2):
        task, row, _ = await begun()
        row.set_exception(AWAY)
        with pytest.raises(StoreUnavailable):
            await task
    stores.fault = None
    async with asyncio.timeout(5):
        while statistics.undoing:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert stores.asked.count("delete") == 2


@pytest.mark.parametrize("begun", [{"shortest_pause": 0.01, "close_timeout": 0.3}], indirect=True)
async def test_what_was_taken_back_as_the_worker_closed_is_not_counted_as_left_behind(
    begun: Any,
) -> None:
    stores, statistics = begun.stores, begun.stores.context.statistics
    stores.away, stores.hanging = True, asyncio.Event()
    for _ in range(3):
        task, row, _ = await begun()
        row.set_exception(AWAY)
        with pytest.raises(StoreUnavailable):
            await task
    stores.away = False
    await begun.enqueuer.close()
    assert stores.asked.count("delete") == 3
    assert (statistics.undoing, statistics.abandoned) == (0, 1)
