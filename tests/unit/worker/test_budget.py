"""The budget of bytes."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from mailslice.worker.io.content_loader import ContentBudget


async def test_holds_are_had_at_once_while_there_is_room() -> None:
    budget = ContentBudget(10)
    first = budget.try_acquire(6)
    assert first is not None
    assert budget.try_acquire(5) is None
    assert budget.try_acquire(4) is not None
    first.release()
    first.release()
    assert budget.try_acquire(6) is not None
    assert budget.try_acquire(1) is None


async def test_a_content_larger_than_the_budget_has_it_alone() -> None:
    budget = ContentBudget(10)
    small = await budget.acquire(1)
    large = asyncio.create_task(budget.acquire(1000))
    await asyncio.sleep(0)
    assert not large.done()
    small.release()
    (await large).release()
    assert budget.try_acquire(10) is not None


async def test_turns_are_first_come_first_served_so_that_a_large_one_is_not_starved() -> None:
    budget = ContentBudget(10)
    reservation = await budget.acquire(8)
    large = asyncio.create_task(budget.acquire(9))
    await asyncio.sleep(0)
    small = asyncio.create_task(budget.acquire(1))
    await asyncio.sleep(0)
    assert not small.done()
    reservation.release()
    (await large).release()
    (await small).release()


async def test_a_waiter_that_is_cancelled_lets_the_next_one_pass() -> None:
    budget = ContentBudget(10)
    reservation = await budget.acquire(8)
    large = asyncio.create_task(budget.acquire(9))
    await asyncio.sleep(0)
    small = asyncio.create_task(budget.acquire(2))
    await asyncio.sleep(0)
    large.cancel()
    (await asyncio.wait_for(small, 1)).release()
    reservation.release()
    assert budget.try_acquire(10) is not None


async def test_a_waiter_cancelled_at_its_very_turn_gives_it_back() -> None:
    budget = ContentBudget(10)
    reservation = await budget.acquire(10)
    waiting = asyncio.create_task(budget.acquire(10))
    await asyncio.sleep(0)
    reservation.release()
    waiting.cancel()
    await asyncio.wait({waiting})
    if not waiting.cancelled():
        waiting.result().release()
    assert budget.try_acquire(10) is not None


async def test_a_waiter_cancelled_just_before_room_comes_is_cancelled_and_nothing_else() -> None:
    budget = ContentBudget(10)
    reservation = await budget.acquire(10)
    waiting = asyncio.create_task(budget.acquire(10))
    await asyncio.sleep(0)
    waiting.cancel()
    reservation.release()  # its turn is cancelled already, and it does not know yet
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert budget.try_acquire(10) is not None


@given(sizes=st.lists(st.integers(0, 15), max_size=30), drops=st.sets(st.integers(0, 29)))
@settings(deadline=None)
def test_whatever_is_asked_for_never_more_than_the_budget_is_held_and_all_get_their_turn(
    sizes: list[int], drops: set[int]
) -> None:
    async def run() -> tuple[int, int]:
        budget = ContentBudget(10)
        held = most = done = 0

        async def one(size: int) -> None:
            nonlocal held, most, done
            reservation = await budget.acquire(size)
            held += min(size, 10)
            most = max(most, held)
            try:
                await asyncio.sleep(0)
                done += 1
            finally:
                held -= min(size, 10)
                reservation.release()

        tasks = [asyncio.create_task(one(size)) for size in sizes]
        await asyncio.sleep(0)
        dropped = {number for number in drops if number < len(tasks) and not tasks[number].done()}
        for number in dropped:
            tasks[number].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert budget.try_acquire(10) is not None
        return most, done

    most, done = asyncio.run(run())
    assert most <= 10
    assert done + len(drops) >= len(sizes)
