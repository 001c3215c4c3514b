"""The row of a lease, where no copy is known to be out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from mailslice.model.errors import StoreUnavailable, Unconfirmed
from mailslice.model.names import HEADER_FAILURES
from mailslice.worker.dequeue.lease import LAST_RESORT, Lease
from mailslice.worker.enqueue import delayed_mails
from mailslice.worker.enqueue.delayed_mails import DelayedRows
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.io.statistics import WorkerStatistics


class Stores:
    """A mail without a mark, whose lease's copy is not confirmed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.context: Any = SimpleNamespace(is_marked=self._unmarked, clock=lambda: 0)

    async def _unmarked(self, _one: object) -> bool:
        return False

    async def schedule(self, *_: object, leased: bool, done: bool, has_message: bool) -> None:
        assert (leased, done) == (True, False)
        assert has_message
        self.asked.append("row, and perhaps a copy")
        raise Unconfirmed("nobody confirms")

    async def close_row(self, _one: object, *, only_lease: bool) -> None:
        assert only_lease
        self.asked.append("closed")


@pytest.mark.parametrize("lost", [False, True])
async def test_a_message_that_goes_back_ends_a_lease_that_was_not_confirmed(
    monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """A lost one does not go back: the row may be that of the worker which has it now."""
    monkeypatch.setattr("mailslice.worker.dequeue.lease.LENGTH", 0)
    stores, now = Stores(), asyncio.get_running_loop().time()
    link = SimpleNamespace(is_open=True)
    message: Any = SimpleNamespace(arrived=now, headers={}, body=b"m", timestamp=None, link=link)
    lease = Lease(stores.context, stores, message, uuid4())  # type: ignore[arg-type]
    await lease._extend()
    assert not lease.is_out
    link.is_open = not lost
    await lease.republish()
    assert stores.asked == ["row, and perhaps a copy", *([] if lost else ["closed"])]


async def test_a_copy_that_is_brought_back_says_that_the_mail_was_in_a_handler() -> None:
    brought: list[MessageCopy] = []

    async def publish(copy: MessageCopy) -> None:
        brought.append(copy)

    context: Any = SimpleNamespace(publish=publish)
    link = SimpleNamespace(is_open=True)
    for headers, said in (({}, 0), ({HEADER_FAILURES: 2}, 2)):
        message: Any = SimpleNamespace(
            arrived=0, headers=headers, body=b"m", timestamp=None, link=link
        )
        lease = Lease(context, None, message, uuid4())  # type: ignore[arg-type]
        lease.is_out = True
        await lease.republish()
        assert brought.pop().headers == {HEADER_FAILURES: said}


async def test_a_message_that_is_adopted_while_the_lost_one_is_parked_is_acknowledged() -> None:
    now, acknowledged = asyncio.get_running_loop().time(), []

    def message(name: str, *, is_open: bool, arrived: float) -> Any:
        return SimpleNamespace(
            arrived=arrived,
            headers={},
            body=b"m",
            timestamp=None,
            redelivered=is_open,
            link=SimpleNamespace(is_open=is_open),
            ack=lambda: acknowledged.append(name) or is_open,
        )

    again = message("again", is_open=True, arrived=now)

    async def away(*_: object, **__: object) -> bool:
        raise StoreUnavailable("Cassandra at x")

    async def put(*_: object) -> None:
        assert lease.adopt(again)

    context: Any = SimpleNamespace(
        is_marked=away, statistics=WorkerStatistics(), clock=lambda: datetime.now(UTC)
    )
    lost = message("lost", is_open=False, arrived=now - 2 * LAST_RESORT)
    delays: Any = SimpleNamespace(put=put, schedule=away)
    lease = Lease(context, delays, lost, uuid4())  # type: ignore[arg-type]
    await lease._extend()
    assert lease.ack()
    assert acknowledged == ["lost", "again"], "it would stay unacknowledged until RabbitMQ closes"


async def test_a_mail_whose_mark_cannot_be_looked_up_gets_its_lease() -> None:
    """Two of three replicas of the mark are away: neither would its completion be stored."""
    scheduled: list[object] = []

    async def away(_: object) -> bool:
        raise StoreUnavailable("too few replicas")

    async def schedule(*_: object, **how: object) -> None:
        scheduled.append(how)

    context: Any = SimpleNamespace(is_marked=away, clock=lambda: datetime.now(UTC))
    link = SimpleNamespace(is_open=True)
    now = asyncio.get_running_loop().time()
    message: Any = SimpleNamespace(
        arrived=now, headers={}, body=b"m", timestamp=None, link=link, ack=lambda: True
    )
    delays: Any = SimpleNamespace(schedule=schedule)
    lease = Lease(context, delays, message, uuid4())  # type: ignore[arg-type]
    await lease.replace_message()
    assert scheduled == [{"leased": True, "done": False, "has_message": True}]
    assert (lease.is_out, lease.is_closed) == (True, False)


@pytest.mark.parametrize("taken", [False, True])
async def test_a_parked_mail_is_anothers_by_a_row_that_is_younger_than_its_message(
    *, taken: bool
) -> None:
    """An older row is that of a delay that ended: Cassandra was away when it was to be closed."""
    loop, scheduled = asyncio.get_running_loop(), []
    is_away = True

    async def is_marked(_: object) -> bool:
        return False

    async def put(*_: object) -> None:
        pass

    async def load(_: object) -> object:
        hours = 1 if taken else -1
        due = datetime.now(UTC) + timedelta(hours=hours)
        return SimpleNamespace(leased=False, published=False, due=due)

    async def schedule(*_: object, **how: object) -> None:
        if is_away:
            raise StoreUnavailable("Cassandra at x")
        scheduled.append(how)

    context: Any = SimpleNamespace(
        is_marked=is_marked, statistics=WorkerStatistics(), clock=lambda: datetime.now(UTC)
    )
    message: Any = SimpleNamespace(
        arrived=loop.time() - 2 * LAST_RESORT,
        headers={},
        body=b"m",
        timestamp=None,
        link=SimpleNamespace(is_open=True),
        ack=lambda: True,
    )
    delays: Any = SimpleNamespace(put=put, rows=SimpleNamespace(load=load), schedule=schedule)
    lease = Lease(context, delays, message, uuid4())  # type: ignore[arg-type]
    await lease._extend()
    assert lease.is_out
    is_away = False
    await lease._extend()
    assert lease.is_closed == taken
    assert scheduled == ([] if taken else [{"leased": True, "done": False, "has_message": False}])


async def test_a_look_for_the_table_of_delays_that_failed_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([StoreUnavailable("Cassandra at x"), "the table"])

    def look(*_: object) -> object:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(delayed_mails.DelayedMails, "prepared", look)
    context: Any = SimpleNamespace(stores=SimpleNamespace(cassandra=None), settings=None)
    context.open_table = partial(QueueContext.open_table, context)
    rows = DelayedRows(context)
    with pytest.raises(StoreUnavailable):
        await rows.table_exists()
    assert await rows.table_exists()


async def test_a_lease_is_written_again_when_its_mail_is_done() -> None:
    """If the worker ended before the mark is written, its handler would get the mail again."""
    scheduled: list[tuple[object, object]] = []

    async def unmarked(_: object) -> bool:
        return False

    async def schedule(*_: object, **how: object) -> None:
        scheduled.append((how["done"], how["has_message"]))

    context: Any = SimpleNamespace(is_marked=unmarked, clock=lambda: datetime.now(UTC))
    message: Any = SimpleNamespace(
        arrived=asyncio.get_running_loop().time(),
        headers={},
        body=b"m",
        timestamp=None,
        link=SimpleNamespace(is_open=True),
        ack=lambda: True,
    )
    rows = SimpleNamespace(load=lambda _: asyncio.sleep(0))
    delays: Any = SimpleNamespace(schedule=schedule, rows=rows)
    lease = Lease(context, delays, message, uuid4())  # type: ignore[arg-type]
    await lease.replace_message()
    await lease.replace_message()
    lease.is_done = True
    for _ in range(2):
        await lease.replace_message()
    assert scheduled == [(False, True), (True, False)]
    assert lease.says_done
