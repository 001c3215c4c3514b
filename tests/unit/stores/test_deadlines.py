"""Time-outs by one timer: as asyncio.timeout's, a little later."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import repeat

import pytest

from mailslice.stores.deadlines import Deadlines

SECONDS = 0.1


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines(SECONDS)


async def waiting(deadlines: Deadlines, seconds: float = SECONDS) -> None:
    with deadlines.within(seconds):
        await asyncio.sleep(30)


async def test_a_wait_that_is_too_long_times_out_at_most_a_quarter_late(
    deadlines: Deadlines,
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await waiting(deadlines)
    assert 3 * SECONDS <= loop.time() - began < 3 * 1.25 * SECONDS + 0.5
    assert not deadlines.open
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_many_time_out_side_by_side_and_who_is_done_does_not(deadlines: Deadlines) -> None:
    async def quick() -> str:
        with deadlines.within(SECONDS):
            await asyncio.sleep(0)  # no longer: a busy machine pauses the loop for as long
        await asyncio.sleep(2 * SECONDS)
        return "done"

    found = await asyncio.gather(
        *(waiting(deadlines) for _ in range(50)),
        *(quick() for _ in range(50)),
        return_exceptions=True,
    )
    assert [type(each) for each in found[:50]] == list(repeat(TimeoutError, 50))
    assert found[50:] == ["done"] * 50
    assert not deadlines.open
    assert deadlines.loop is None


async def test_a_cancel_of_somebody_else_is_no_time_out(deadlines: Deadlines) -> None:
    task = asyncio.create_task(waiting(deadlines, 20))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not deadlines.open


@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_a_cancel_at_the_time_out_is_a_cancel(
    deadlines: Deadlines, *, cancelled_first: bool
) -> None:
    task = asyncio.create_task(waiting(deadlines, 20))
    await asyncio.sleep(0.01)
    (deadline,) = deadlines.open
    for cancel in (task.cancel, deadline.expire)[:: 1 if cancelled_first else -1]:
        cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_block_stays_what_it_is(deadlines: Deadlines) -> None:
    with pytest.raises(KeyError), deadlines.within(SECONDS):
        raise KeyError
    assert not deadlines.open


@pytest.mark.parametrize(("outer", "inner", "caught"), [(0.3, 0.05, "inner"), (0.05, 9, "outer")])
async def test_of_two_around_each_other_the_earlier_one_ends(
    deadlines: Deadlines, outer: float, inner: float, caught: str
) -> None:
    ended = []
    try:
        with deadlines.within(outer):
            try:
                await waiting(deadlines, inner)
            except TimeoutError:
                ended.append("inner")
    except TimeoutError:
        ended.append("outer")
    assert ended == [caught]
    assert not deadlines.open


async def test_within_a_time_out_of_asyncio_each_has_its_own(deadlines: Deadlines) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await waiting(deadlines, 9)
    async with asyncio.timeout(9):
        with pytest.raises(TimeoutError):
            await waiting(deadlines, 0.05)


def test_the_timer_of_a_loop_that_has_ended_holds_up_no_other_loop(deadlines: Deadlines) -> None:
    async def left_open() -> None:
        with deadlines.within(30):
            await asyncio.sleep(0)

    asyncio.run(left_open())
    with pytest.raises(TimeoutError):
        asyncio.run(waiting(deadlines))


async def test_a_call_is_made_in_time_and_not_after_it_is_cancelled(deadlines: Deadlines) -> None:
    called = []

    def fails() -> None:
        called.append("fails")
        raise KeyError

    deadlines.call(SECONDS, fails)
    calls = [deadlines.call(SECONDS, partial(called.append, name)) for name in ("late", "not")]
    calls[1].cancel()
    await asyncio.sleep(SECONDS / 2)
    assert not called
    with pytest.raises(TimeoutError):
        await waiting(deadlines, 3 * SECONDS)
    assert sorted(called) == ["fails", "late"]
    calls[0].cancel()
    assert not deadlines.open


def test_outside_of_a_task_there_is_none(deadlines: Deadlines) -> None:
    with pytest.raises(RuntimeError), deadlines.within(SECONDS):
        pass
