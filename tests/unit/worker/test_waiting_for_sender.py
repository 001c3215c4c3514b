"""How long a delivery waits for the worker that may be sending its mail, as clocks change."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.stages import DeliveryVerdict, MailStage, Stage
from mailslice.worker.stages.stage_log import Doubt, Stages

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORD = MailStage(EnqueueId(UUID(int=1)), "other", 1, 2, (), {"a@x": Stage.SENDING})
ITEM: Any = SimpleNamespace(enqueue_id=RECORD.enqueue_id, mail=SimpleNamespace(recipients=("a@x",)))
FAIL, WAIT = DeliveryVerdict.FAIL, DeliveryVerdict.WAIT


@dataclass
class Waiting:
    """A delivery whose mail another worker began to send. Its wall clock and its time are apart."""

    is_alive: bool = True
    wall: datetime = NOON
    seconds: float = 1000.0
    doubt: Doubt | None = None
    stages: Stages = field(init=False)

    def __post_init__(self) -> None:
        own = SimpleNamespace(
            mail_stages=None, worker_records=SimpleNamespace(alive=lambda *_: self.is_alive)
        )
        context: Any = SimpleNamespace(
            worker="me",
            clock=lambda: self.wall,
            stores=SimpleNamespace(own=own),
            queue=QueueName("spool"),
            bridge=None,
            settings=SimpleNamespace(worker=SimpleNamespace(record_every=timedelta(seconds=3))),
        )
        self.stages = Stages(context)

    def passes(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += timedelta(seconds=seconds)

    async def verdict(self) -> DeliveryVerdict:
        decision, self.doubt = await self.stages.decide(ITEM, RECORD, self.doubt)
        return decision.verdict

    def parked(self, reader_is_ahead: timedelta = timedelta(0)) -> None:
        """The message is parked for a minute, and then read by a worker with this clock."""
        assert self.doubt is not None
        header = self.doubt.header(self.wall)
        self.passes(60)
        self.wall += reader_is_ahead
        self.doubt = Doubt.of(header, self.wall)


@pytest.fixture
async def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    made = Waiting()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: made.seconds)
    return made


async def test_a_living_sender_is_waited_for_a_quarter_of_an_hour(waiting: Waiting) -> None:
    assert await waiting.verdict() is WAIT
    waiting.passes(14 * 60)
    assert await waiting.verdict() is WAIT
    waiting.passes(60)
    assert await waiting.verdict() is FAIL


@pytest.mark.parametrize("step", [timedelta(seconds=5), timedelta(hours=1), timedelta(days=-1)])
async def test_a_wall_clock_that_is_set_ends_no_wait_early(
    waiting: Waiting, step: timedelta
) -> None:
    """Before its first check, too: an idle sender has no record of the mail yet."""
    waiting.is_alive = False
    assert await waiting.verdict() is WAIT
    waiting.wall += step
    waiting.passes(1)
    assert await waiting.verdict() is WAIT
    waiting.is_alive = True
    waiting.passes(10)
    assert await waiting.verdict() is WAIT


async def test_a_wall_clock_that_is_set_back_makes_no_wait_longer(waiting: Waiting) -> None:
    assert await waiting.verdict() is WAIT
    waiting.wall -= timedelta(days=1)
    waiting.passes(4)
    waiting.is_alive = False
    assert await waiting.verdict() is FAIL


@pytest.mark.parametrize("minutes", [9.9, 10])
async def test_a_wait_goes_on_after_its_message_was_parked(
    waiting: Waiting, minutes: float
) -> None:
    assert await waiting.verdict() is WAIT
    waiting.passes(4 * 60)
    waiting.parked()
    waiting.passes(minutes * 60)
    assert await waiting.verdict() is (WAIT if minutes < 10 else FAIL)


async def test_a_reader_whose_clock_is_behind_asks_soon_whether_the_sender_lives(
    waiting: Waiting,
) -> None:
    """Its record may be from the future, by that clock."""
    assert await waiting.verdict() is WAIT
    waiting.parked(reader_is_ahead=timedelta(days=-1))
    waiting.passes(4)
    assert await waiting.verdict() is WAIT
    waiting.is_alive = False
    assert await waiting.verdict() is FAIL


async def test_a_header_that_is_none_begins_no_wait() -> None:
    for header in (None, 7, "", "1 2", "x 2 other", "1 x other", f"{10**18} 2 other"):
        assert Doubt.of(header, NOON) is None
