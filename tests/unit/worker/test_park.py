"""A delivery that cannot be prepared: when it is parked, and when its fault is its own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.codec.message import encode
from mailslice.codec.row import epoch_ms
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.names import HEADER_DOUBT, HEADER_FAULTS, HEADER_PARKED
from mailslice.stores.cassandra import connection
from mailslice.stores.rabbitmq import consumer, publisher
from mailslice.worker.dequeue import park, preparer
from mailslice.worker.dequeue.delivery import WorkerState
from mailslice.worker.dequeue.park import (
    FAULT_ROUNDS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    FaultRounds,
    Park,
    RetryPauses,
    Trial,
)
from mailslice.worker.dequeue.prefetch_window import Slot, Slots
from mailslice.worker.dequeue.preparer import Preparer
from mailslice.worker.io.statistics import WorkerStatistics


async def test_pauses_double_with_jitter_up_to_five_seconds() -> None:
    rounds = FaultRounds(WorkerStatistics(), 16)
    patience = RetryPauses(message("m"), Trial(), rounds, 0)
    pauses = [patience.pause() for _ in range(400)]
    for pause, most in zip(pauses, [0.5, 1, 2, 4, *[5] * 396], strict=True):
        assert 0.7 * most <= pause <= most
    assert len(set(pauses)) > 390


def test_a_mail_is_looked_at_within_ten_seconds_of_the_return_of_a_store() -> None:
    """Each store's client connects again first; then the mail's own pause ends."""
    assert FIRST_PAUSE < LONGEST_PAUSE
    for pause in (connection.LONGEST_PAUSE, consumer.LONGEST_PAUSE, publisher.LONGEST_PAUSE):
        assert pause + LONGEST_PAUSE <= 10


def message(name: str, **headers: int) -> Any:
    return SimpleNamespace(
        body=name.encode(),
        headers=headers,
        redelivered=False,
        link=None,
        arrived=0.0,
        ack=lambda: True,
    )


class Made:
    """A preparer whose attempts fail as the test says, and what became of the messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefetch: int = 16) -> None:
        self.tries = 0
        self.error: Exception | None = TypeError("bob@example.net has no len()")
        self.parked: list[tuple[str, int]] = []
        self.headers: dict[str, Any] = {}
        self.deferred: list[Any] = []
        self.troubles: list[str] = []
        self.dead: list[str] = []
        self.takes_copies = True
        self.puts = 0
        self.slots = Slots()
        self.statistics = WorkerStatistics()
        context: Any = SimpleNamespace(
            statistics=self.statistics,
            events=SimpleNamespace(emit=lambda _, item, **__: self.deferred.append(item)),
            clock=system_clock,
        )
        self.preparer = Preparer(
            WorkerState(context, None),  # type: ignore[arg-type]
            self.slots,
            prefetch,
            on_failure=lambda why: self.troubles.append(str(why)),
            on_success=lambda: None,
            attempt=self._attempt,
        )
        monkeypatch.setattr(preparer, "dead_letter", self._dead_letter)
        monkeypatch.setattr(Park, "put", self._put)
        monkeypatch.setattr(park, "RETRY_SECONDS", 0.5)
        monkeypatch.setattr(RetryPauses, "pause", lambda _: 0.01)

    @property
    def held(self) -> int:
        return self.statistics.waiting

    async def _attempt(self, slot: Slot) -> None:
        self.tries += 1
        if slot.message.body == b"hangs":
            await asyncio.Event().wait()
        elif slot.message.body == b"fine":
            self.slots.make_ready(slot, SimpleNamespace())  # type: ignore[arg-type]
        elif self.error is not None:
            raise self.error

    async def _put(self, message: Any, _why: object, *, faults: int, headers: Any) -> bool:
        self.puts += 1
        self.headers = headers
        if self.takes_copies:
            self.parked.append((message.body.decode(), faults))
        return self.takes_copies

    async def _dead_letter(
        self, _context: Any, _message: Any, reason: str, _item: None, *, settle: Any
    ) -> None:
        self.dead.append(reason)
        settle()

    async def round(self, *, faults: int = 0, others: bool) -> None:
        """A bad message comes once, parked before if it had `faults`, and is in place until it
        goes. Another one each time: the same one would rest for as long as its last try took.
        """
        self.tries = 0
        headers = {HEADER_FAULTS: faults, HEADER_PARKED: faults} if faults else {}
        slot = self.slots.arrived(message(f"bad {faults}", **headers))
        task = asyncio.create_task(self.preparer.prepare(slot))
        while not self.tries:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        if others:
            await self.preparer.prepare(self.slots.arrived(message("fine")))
        async with asyncio.timeout(10):
            await task
        assert slot not in self.slots


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


async def test_a_fault_while_others_get_through_counts_a_round_and_the_last_one_is_the_end(
    made: Made,
) -> None:
    for before in range(FAULT_ROUNDS - 1):
        await made.round(faults=before, others=True)
    assert made.parked == [(f"bad {faults - 1}", faults) for faults in range(1, FAULT_ROUNDS)]
    await made.round(faults=FAULT_ROUNDS - 1, others=True)
    (said,) = made.dead
    assert said.startswith(f"cannot be prepared: TypeError, {FAULT_ROUNDS} rounds, ")
    assert "@" not in said
    assert made.held == 0


async def test_a_fault_that_hits_everything_counts_nothing(made: Made) -> None:
    await made.round(faults=FAULT_ROUNDS - 1, others=False)
    assert (made.parked, made.dead) == ([(f"bad {FAULT_ROUNDS - 1}", FAULT_ROUNDS - 1)], [])


async def test_a_store_that_is_away_counts_nothing_whatever_gets_through(made: Made) -> None:
    made.error = StoreUnavailable("S3 at x")
    await made.round(faults=FAULT_ROUNDS - 1, others=True)
    assert (made.parked, made.dead) == ([(f"bad {FAULT_ROUNDS - 1}", FAULT_ROUNDS - 1)], [])


async def test_what_cannot_be_parked_is_held_and_tried_on(made: Made) -> None:
    made.error, made.takes_copies = StoreUnavailable("S3 at x"), False
    slot = made.slots.arrived(message("bad"))
    task = asyncio.create_task(made.preparer.prepare(slot))
    await asyncio.sleep(1.2)
    assert (slot in made.slots, made.held) == (True, 1)
    assert made.tries > 5
    assert 1 <= made.puts <= 2, "each try may have left a copy that was not confirmed"
    made.error = None
    async with asyncio.timeout(10):
        await task
    assert (made.parked, made.held) == ([], 0)


async def test_half_a_window_that_is_held_makes_room_while_others_get_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(monkeypatch, prefetch=4)
    monkeypatch.setattr(park, "RETRY_SECONDS", 3600.0)
    made.error = StoreUnavailable("S3 at x")
    tasks = [
        asyncio.create_task(made.preparer.prepare(made.slots.arrived(message("bad"))))
        for _ in range(2)
    ]
    await asyncio.sleep(0.1)
    assert made.parked == []
    await made.preparer.prepare(made.slots.arrived(message("fine")))
    done, _ = await asyncio.wait(tasks, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == len(made.parked) == 1, "whichever of them was looked at first"
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize(("arrived", "parked"), [(3, 0), (4, 1)])
async def test_a_full_window_that_is_held_makes_room_though_nothing_gets_through(
    monkeypatch: pytest.MonkeyPatch, arrived: int, parked: int
) -> None:
    """Whatever is behind it may be well, and cannot come."""
    made = Made(monkeypatch, prefetch=4)
    monkeypatch.setattr(park, "RETRY_SECONDS", 3600.0)
    monkeypatch.setattr(park, "MAX_BLOCKING_SECONDS", 0.5)
    made.error = StoreUnavailable("S3 at x")
    bad = message("bad")
    bad.arrived = asyncio.get_running_loop().time()
    tasks = [
        asyncio.create_task(made.preparer.prepare(made.slots.arrived(bad))) for _ in range(arrived)
    ]
    await asyncio.sleep(0.3)
    assert made.parked == []
    await asyncio.sleep(0.5)
    assert len(made.parked) == parked
    for task in tasks:
        task.cancel()


async def test_what_the_broker_counts_is_parked_at_once(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(park, "RETRY_SECONDS", 3600.0)
    made.error = StoreUnavailable("S3 at x")
    slot = made.slots.arrived(message("bad", **{"x-delivery-count": 1}))
    async with asyncio.timeout(10):
        await made.preparer.prepare(slot)
    assert made.parked == [("bad", 0)]


async def test_what_was_parked_before_is_parked_again_after_one_try(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(park, "RETRY_SECONDS", 3600.0)
    made.error = StoreUnavailable("S3 at x")
    slot = made.slots.arrived(message("bad", **{HEADER_PARKED: 1}))
    async with asyncio.timeout(10):
        await made.preparer.prepare(slot)
    assert (made.parked, made.tries, slot in made.slots) == ([("bad", 0)], 1, False)


async def test_tries_of_what_was_parked_before_have_a_quarter_of_the_window(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next is parked again at once, until a try ends or has lasted for half a minute."""
    monkeypatch.setattr(park, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(park, "RETRY_SECONDS", 2.0)

    async def tried(name: str) -> None:
        slot = made.slots.arrived(message(name, **{HEADER_PARKED: 1}))
        tasks.append(asyncio.create_task(made.preparer.prepare(slot)))
        await asyncio.wait(tasks[-1:], timeout=0.02 if name == "hangs" else 1.0)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(4):
        await tried("hangs")
    await tried("fine")
    assert (made.tries, made.parked) == (4, [("fine", 0)])
    tasks[0].cancel()
    await tried("fine")
    assert (made.tries, len(made.parked)) == (5, 1)
    await tried("hangs")
    await tried("fine")
    assert (made.tries, len(made.parked)) == (6, 2)
    await asyncio.sleep(2.0)
    await tried("fine")
    assert (made.tries, len(made.parked)) == (7, 2)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert made.preparer._turns._free._value == 4


async def test_a_mail_that_gets_no_turn_keeps_its_doubt_and_is_no_trouble_of_a_store(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have the turns may wait for another worker, or for memory."""
    monkeypatch.setattr(park, "TURN_SECONDS", 0.1)
    hanging = [made.slots.arrived(message("hangs", **{HEADER_PARKED: 1})) for _ in range(4)]
    tasks = [asyncio.create_task(made.preparer.prepare(slot)) for slot in hanging]
    await asyncio.sleep(0.01)
    mail = QueuedMail(EnqueueId(UUID(int=1)), Mail("m", None, ("a@b",)), BlobId("h"), BlobId("b"))
    began = epoch_ms(system_clock()) - 60_000
    for body in (encode(mail), b"not a mail"):
        one = message("", **{HEADER_PARKED: 2})
        one.body, one.headers[HEADER_DOUBT] = body, f"{began} 4 other"
        await made.preparer.prepare(made.slots.arrived(one))
        since, *record = made.headers[HEADER_DOUBT].split(" ")
        assert (abs(int(since) - began) <= 5, record) == (True, ["4", "other"])
    assert (len(made.parked), made.tries, made.troubles) == (2, 4, [])
    assert made.deferred == [mail, None]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_series_of_own_faults_goes_on_where_a_mail_gets_no_turn(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get through meanwhile: this round is one that counts."""
    monkeypatch.setattr(park, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(RetryPauses, "pause", lambda _: 0.1)
    monkeypatch.setattr(park, "RETRY_SECONDS", 1.0)
    slot = made.slots.arrived(message("bad", **{HEADER_PARKED: 1, HEADER_FAULTS: 1}))
    bad = asyncio.create_task(made.preparer.prepare(slot))
    await asyncio.sleep(0.05)
    await made.preparer.prepare(made.slots.arrived(message("fine", **{HEADER_PARKED: 1})))
    hanging = [made.slots.arrived(message("hangs", **{HEADER_PARKED: 1})) for _ in range(4)]
    tasks = [asyncio.create_task(made.preparer.prepare(slot)) for slot in hanging]
    async with asyncio.timeout(10):
        await bad
    assert made.parked == [("bad", 2)]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_an_error_of_a_try_is_trouble_of_a_store_while_its_message_is_here(
    made: Made,
) -> None:
    made.error = StoreUnavailable("S3 at x")
    await made.preparer.prepare(made.slots.arrived(message("bad", **{HEADER_PARKED: 1})))
    assert made.troubles == ["S3 at x"]
    slot = made.slots.arrived(message("bad"))
    made.slots.remove(slot)
    await made.preparer.prepare(slot)
    assert made.troubles == ["S3 at x"]


@pytest.mark.parametrize(("leased", "parked"), [(0, 1), (1, 0)])
async def test_a_mail_with_a_lease_takes_no_place_of_the_window(
    monkeypatch: pytest.MonkeyPatch, leased: int, parked: int
) -> None:
    """Its message is acknowledged."""
    made = Made(monkeypatch, prefetch=4)
    monkeypatch.setattr(park, "RETRY_SECONDS", 3600.0)
    monkeypatch.setattr(park, "MAX_BLOCKING_SECONDS", 0.1)
    made.error = StoreUnavailable("S3 at x")
    for number in range(3):
        lease = SimpleNamespace(has_message=number >= leased)
        one: Any = SimpleNamespace(handed_at=1.0, lease=lease)
        made.preparer._state.in_hand[EnqueueId(UUID(int=number))] = one
    bad = message("bad")
    bad.arrived = asyncio.get_running_loop().time()
    task = asyncio.create_task(made.preparer.prepare(made.slots.arrived(bad)))
    await asyncio.sleep(0.3)
    assert len(made.parked) == parked
    task.cancel()


async def test_what_was_parked_before_waits_for_its_turn_while_the_store_answers(
    made: Made,
) -> None:
    slots = [made.slots.arrived(message("fine", **{HEADER_PARKED: 1})) for _ in range(100)]
    await asyncio.gather(*map(made.preparer.prepare, slots))
    assert (made.tries, made.parked) == (100, [])


async def test_a_content_that_takes_long_to_load_has_more_time_in_each_round(made: Made) -> None:
    now = asyncio.get_running_loop().time()
    for rounds, parked_after in ((0, 240), (1, 480), (9, 900)):
        slow = message("slow", **{HEADER_PARKED: rounds})
        for seconds, expected in ((parked_after - 1, []), (parked_after + 1, [("slow", 0)])):
            made.parked.clear()
            slow.arrived = now - seconds
            slot = made.slots.arrived(slow)
            made.preparer.park_overdue()
            await asyncio.sleep(0.05)
            assert made.parked == expected, (rounds, seconds)
            if not expected:
                made.slots.remove(slot)


async def test_what_waits_for_a_handler_has_no_more_time_in_later_rounds(made: Made) -> None:
    ready = message("ready", **{HEADER_PARKED: 5})
    ready.arrived = asyncio.get_running_loop().time() - 241
    slot = made.slots.arrived(ready)
    made.slots.make_ready(slot, SimpleNamespace(abandon=lambda: None))  # type: ignore[arg-type]
    made.preparer.park_overdue()
    await asyncio.sleep(0.05)
    assert made.parked == [("ready", 0)]


async def test_a_message_is_not_adopted_by_a_delivery_that_goes_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has that one in hand yet: two windows of one worker, and the first lost its link."""
    made = Made(monkeypatch)
    lease: Any = SimpleNamespace(adopt=lambda _: pytest.fail("adopted"))
    item: Any = SimpleNamespace(enqueue_id="one")
    older: Any = SimpleNamespace(handed_at=None, lease=lease, settled=asyncio.Event())
    made.preparer._state.in_hand[item.enqueue_id] = older
    slot = made.slots.arrived(message("one"))
    deciding = asyncio.create_task(made.preparer._decide(slot, item))
    await asyncio.sleep(0)
    older.settled.set()
    assert not await deciding
    assert slot in made.slots


@pytest.mark.parametrize("takes_copies", [True, False])
async def test_what_stuck_mails_took_from_a_handler_here_is_parked_for_another_worker(
    monkeypatch: pytest.MonkeyPatch, *, takes_copies: bool
) -> None:
    """It would fill a place of the window for as long as the handler hangs."""
    made = Made(monkeypatch)
    made.takes_copies = takes_copies
    state: Any = made.preparer._state
    state.context.worker = "me"

    async def fetch(_: object) -> Any:
        return SimpleNamespace(attempt=2, owner="run-1")

    state.in_doubt = SimpleNamespace(stages=SimpleNamespace(fetch=fetch))
    lease: Any = SimpleNamespace(adopt=lambda _: pytest.fail("adopted"))
    item: Any = SimpleNamespace(enqueue_id="one")
    settled = asyncio.Event()
    state.in_hand["one"] = SimpleNamespace(
        handed_at=1.0, attempt=1, lease=lease, settled=settled, item=item
    )
    slot = made.slots.arrived(message("one"))
    deciding = asyncio.create_task(made.preparer._decide(slot, item))
    await asyncio.wait({deciding}, timeout=0.2)
    assert made.puts == 1
    assert (slot in made.slots, deciding.done()) == (not takes_copies, takes_copies)
    settled.set()
    assert await deciding is takes_copies
