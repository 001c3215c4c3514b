"""Deleted checks that share a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import EnqueueId
from mailslice.worker.io.cassandra_bridge import MAX_IDS, DeletedChecks, Rows


class Table:
    """Marks; what was asked for in one request; what fails."""

    def __init__(self) -> None:
        self.marked: set[EnqueueId] = set()
        self.requests: list[int] = []
        self.refuses_many = False
        self.away: set[EnqueueId] = set()

    def ask_one(self, enqueue_id: EnqueueId) -> asyncio.Future[Rows]:
        return self.ask([enqueue_id])

    def ask_batch(self, ids: Sequence[EnqueueId]) -> asyncio.Future[Rows]:
        return self.ask(ids, refused=self.refuses_many)

    def ask(self, ids: Sequence[EnqueueId], *, refused: bool = False) -> asyncio.Future[Rows]:
        self.requests.append(len(ids))
        answer: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()
        if refused or self.away & set(ids):
            answer.set_exception(StoreUnavailable("Cassandra at c:9042 does not answer"))
        else:
            answer.set_result([(one,) for one in ids if one in self.marked])
        return answer

    def checks(self) -> DeletedChecks:
        return DeletedChecks(self.ask_one, self.ask_batch)


def ids(count: int) -> list[EnqueueId]:
    return [EnqueueId(uuid4()) for _ in range(count)]


async def test_what_is_asked_in_one_turn_shares_requests_and_each_has_its_own_answer() -> None:
    table, asked = Table(), ids(2 * MAX_IDS + 1)
    table.marked = set(asked[::3])
    checks = table.checks()
    found = await asyncio.gather(*(checks.is_marked(one) for one in asked))
    assert found == [one in table.marked for one in asked]
    assert table.requests == [MAX_IDS, MAX_IDS, 1]


async def test_a_later_turn_asks_anew_so_that_a_mark_written_meanwhile_is_seen() -> None:
    table, (one,) = Table(), ids(1)
    checks = table.checks()
    assert not await checks.is_marked(one)
    table.marked.add(one)
    assert await checks.is_marked(one)
    assert table.requests == [1, 1]


async def test_one_mail_that_cannot_be_asked_about_holds_up_no_other() -> None:
    table, asked = Table(), ids(4)
    table.away, table.marked = {asked[1]}, {asked[2]}
    checks = table.checks()
    found = await asyncio.gather(*(checks.is_marked(one) for one in asked), return_exceptions=True)
    assert [isinstance(one, StoreUnavailable) for one in found] == [False, True, False, False]
    assert (found[0], found[2], found[3]) == (False, True, False)


async def test_a_server_that_takes_one_partition_a_request_is_asked_one_by_one() -> None:
    table, asked = Table(), ids(3)
    table.refuses_many, table.marked = True, set(asked)
    checks = table.checks()
    assert await asyncio.gather(*(checks.is_marked(one) for one in asked)) == [True] * 3
    assert table.requests == [3, 1, 1, 1]


async def test_who_was_cancelled_is_not_asked_for_and_the_others_are_answered() -> None:
    table, asked = Table(), ids(3)
    checks = table.checks()
    waiting = [asyncio.create_task(checks.is_marked(one)) for one in asked]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert waiting[0].cancelled()
    assert [task.result() for task in waiting[1:]] == [False, False]
    assert sum(table.requests) == 2


async def test_a_request_that_cannot_even_be_sent_fails_for_those_who_wait() -> None:
    def broken(_: object) -> asyncio.Future[Rows]:
        raise StoreUnavailable("no host")

    checks = DeletedChecks(broken, broken)
    with pytest.raises(StoreUnavailable, match="no host"):
        await checks.is_marked(ids(1)[0])
    found = await asyncio.gather(*(checks.is_marked(one) for one in ids(3)), return_exceptions=True)
    assert all(isinstance(one, StoreUnavailable) for one in found)
