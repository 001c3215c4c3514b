"""Who is struck when a process dies, and that a suspect is handled alone."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from mailslice.model.mail import EnqueueId
from mailslice.worker.dequeue.strikes import MAX_DEATHS, InHandlers, Isolation, Strikes, StrikeState


def an_id() -> EnqueueId:
    return EnqueueId(uuid4())


def test_what_is_in_handlers_is_read_from_memory_that_stays() -> None:
    cells = bytearray(InHandlers.size(2))
    written, one, other = InHandlers(cells), an_id(), an_id()
    assert InHandlers.ids(cells) == []
    first, _ = written.enter(one), written.enter(other)
    assert set(InHandlers.ids(cells)) == {one, other}
    written.leave(first)
    assert InHandlers.ids(cells) == [other]
    written.enter(one)
    assert set(InHandlers.ids(cells)) == {one, other}
    written.clear()
    assert InHandlers.ids(cells) == []


def test_three_deaths_condemn_and_fewer_make_a_suspect() -> None:
    strikes, one, neighbour = Strikes(), an_id(), an_id()
    assert strikes.died([one, neighbour]) == StrikeState(frozenset({one, neighbour}), frozenset())
    for _ in range(MAX_DEATHS - 1):
        struck = strikes.died([one])
    assert struck == StrikeState(frozenset({neighbour}), frozenset({one}))


def test_the_oldest_suspects_are_forgotten() -> None:
    strikes = Strikes()
    for number in range(2000):
        strikes.died([EnqueueId(UUID(int=number + 1))])
    assert len(strikes.state.suspects) == 1000
    assert EnqueueId(UUID(int=2000)) in strikes.state.suspects


async def test_a_suspect_is_handled_alone_and_others_beside_each_other() -> None:
    suspects = {an_id(), an_id()}
    isolation = Isolation(
        InHandlers(bytearray(InHandlers.size(8))), lambda: StrikeState(frozenset(suspects))
    )
    now: set[EnqueueId] = set()
    most = 0

    async def handle(enqueue_id: EnqueueId) -> None:
        nonlocal most
        async with isolation.admitted(enqueue_id):
            now.add(enqueue_id)
            assert not (now & suspects) or len(now) == 1
            most = max(most, len(now))
            await asyncio.sleep(0.01)
            now.remove(enqueue_id)

    others = [an_id() for _ in range(6)]
    async with asyncio.timeout(10):
        await asyncio.gather(*(handle(one) for one in [*others[:3], *suspects, *others[3:]]))
    assert most == 3


async def test_a_suspect_that_hangs_stops_neither_others_nor_the_next_suspect() -> None:
    hanging, deadly = an_id(), an_id()
    isolation = Isolation(struck=lambda: StrikeState(frozenset({hanging, deadly})), seconds=0.1)
    begun: list[EnqueueId] = []

    async def handle(enqueue_id: EnqueueId, seconds: float) -> None:
        async with isolation.admitted(enqueue_id):
            begun.append(enqueue_id)
            await asyncio.sleep(seconds)

    slow, other = an_id(), an_id()
    order = ((slow, 30), (hanging, 30), (deadly, 0), (other, 0))
    tasks = [asyncio.create_task(handle(*one)) for one in order]
    await asyncio.sleep(0.05)
    assert begun == [slow]
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks[2:])
    assert begun == [slow, hanging, deadly, other]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    async with asyncio.timeout(10):
        await handle(deadly, 0)


async def test_a_suspect_that_is_cancelled_as_it_waits_lets_others_go_on() -> None:
    suspect, other = an_id(), an_id()
    isolation = Isolation(
        InHandlers(bytearray(InHandlers.size(8))), lambda: StrikeState(frozenset({suspect}))
    )

    async def handle(enqueue_id: EnqueueId) -> None:
        async with isolation.admitted(enqueue_id):
            await asyncio.sleep(0)

    async with isolation.admitted(other):
        waiting = asyncio.create_task(handle(suspect))
        await asyncio.sleep(0.01)
        behind = asyncio.create_task(handle(an_id()))
        await asyncio.sleep(0.01)
        assert not behind.done()
        waiting.cancel()
        async with asyncio.timeout(10):
            await behind


def test_a_condemned_mail_that_is_a_dead_letter_begins_anew() -> None:
    strikes, poison, other = Strikes(), an_id(), an_id()
    for _ in range(MAX_DEATHS):
        strikes.died([poison, other])
    assert strikes.dead_lettered(poison) == StrikeState(condemned=frozenset({other}))
    assert strikes.died([poison]) == StrikeState(frozenset({poison}), frozenset({other}))
