"""Killed (-9) before every effect that an operation has on a store, and what the next worker then finds (I1, I2)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mailslice.model.mail import QueuedMail
from mailslice.worker import Delivery, open_worker
from tests.services.worker.conftest import at, mail
from tests.services.worker.crashing import CONTENT

SCRIPT = Path(__file__).with_name("crashing.py")


@dataclass
class Round:
    """One kill: whether it came, what the process had said, whether the mail was marked then, and what was delivered afterwards (and completed)."""

    killed: bool
    said: str
    item: QueuedMail | None
    marked: bool
    found: list[Delivery]
    after_completion: list[Delivery]


async def drained(spool: Any, idle: float) -> list[Delivery]:
    """Completes whatever comes until the queue is idle."""
    found: list[Delivery] = []
    async with open_worker(spool.settings, spool.queue) as worker, aclosing(worker.deliveries(8)) as deliveries, asyncio.timeout(60):
        while deliveries.idle_seconds < idle:
            try:
                delivery = await asyncio.wait_for(anext(deliveries), 0.2)
            except TimeoutError:
                continue
            await delivery.complete()
            found.append(delivery)
    return found


async def enqueued(spool: Any, delay: float | None) -> QueuedMail:
    async with open_worker(spool.settings, spool.queue) as worker:
        later = None if delay is None else timedelta(seconds=delay)
        return await worker.enqueue(mail("m", recipients=("d@e.f", "g@h.i")), CONTENT, delay=later)


def killed_at(place: Any, scenario: str, *, effects: int, prepare: Callable[[Any], QueuedMail] | None, idle: float) -> list[Round]:
    """The scenario killed before its 1st effect, its 2nd... each time on a queue of its own, which is then drained twice."""

    def one(effect: int) -> Round:
        with contextmanager(at)(place.settings, f"{scenario}-{effect}") as spool:
            item = prepare(spool) if prepare else None
            command = [sys.executable, str(SCRIPT), scenario, str(effect), spool.queue]
            done = subprocess.run(command, env=place.environ, capture_output=True, text=True, timeout=90, check=False)
            assert done.returncode in (0, -signal.SIGKILL), done.stderr
            marked = item is not None and item.enqueue_id in spool.marks()
            found = asyncio.run(drained(spool, idle))
            return Round(done.returncode != 0, done.stdout, item, marked, found, asyncio.run(drained(spool, 0.5)))

    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(one, range(1, effects + 1)))


def now(spool: Any) -> QueuedMail:
    return asyncio.run(enqueued(spool, None))


def later(seconds: float) -> Callable[[Any], QueuedMail]:
    return lambda spool: asyncio.run(enqueued(spool, seconds))


@pytest.fixture(scope="module")
def place(fresh_module: Any) -> Any:
    return fresh_module


def test_an_enqueue_that_was_killed_is_delivered_whole_or_not_at_all_and_always_when_it_had_returned(place: Any) -> None:
    rounds = killed_at(place, "enqueue", effects=5, prepare=None, idle=0.7)
    assert [one.killed for one in rounds] == [True, True, True, True, False]  # two puts, row, publish
    assert all(delivery.content == CONTENT for one in rounds for delivery in one.found)
    assert [len(one.found) for one in rounds] == [0, 0, 0, 0, 1]


def test_an_enqueue_with_a_delay_that_was_killed_is_delivered_when_it_had_returned(place: Any) -> None:
    rounds = killed_at(place, "enqueue_later", effects=6, prepare=None, idle=3.5)
    assert [one.killed for one in rounds] == [True, True, True, True, True, False]  # two puts, view row, delay row, publish
    assert [len(one.found) for one in rounds] == [0, 0, 0, 0, 0, 1]


def test_a_mail_whose_completion_was_killed_is_delivered_again_unless_it_was_marked(place: Any) -> None:
    rounds = killed_at(place, "complete", effects=4, prepare=now, idle=0.7)
    assert [one.killed for one in rounds] == [True, True, True, False]
    assert [one.marked for one in rounds] == [False, True, True, True]  # mark, then ack, then blobs
    assert [len(one.found) for one in rounds] == [1, 0, 0, 0]


@pytest.mark.parametrize(("scenario", "effects"), [("retry_later", 5), ("retry_fewer", 4)])
def test_a_retry_that_was_killed_loses_nothing_and_is_not_delivered_after_its_completion(place: Any, scenario: str, effects: int) -> None:
    rounds = killed_at(place, scenario, effects=effects, prepare=now, idle=2.5)
    assert rounds[0].killed
    assert rounds[1].killed
    assert not rounds[-1].killed  # the last effect but one may be a give-back of the copy that came at once
    for one in rounds:
        assert [delivery.item.enqueue_id for delivery in one.found] == [one.item.enqueue_id]
        assert one.after_completion == []
    assert rounds[-1].found[0].item.mail.recipients == ("g@h.i",)
    assert rounds[0].found[0].item.mail.recipients == ("d@e.f", "g@h.i")


def test_a_delayed_mail_survives_a_kill_at_every_step_of_its_way(place: Any) -> None:
    # Rounds of publish and ack, then publish, close, ack; how many rounds are left when the process is up depends on the machine.
    rounds = killed_at(place, "surface", effects=8, prepare=later(5.4), idle=4.5)
    assert sum(one.killed for one in rounds) >= 3
    for one in rounds:
        assert [delivery.item.enqueue_id for delivery in one.found] == [one.item.enqueue_id]
        assert one.after_completion == []


def test_a_flush_that_was_killed_loses_nothing(place: Any) -> None:
    rounds = killed_at(place, "flush", effects=3, prepare=later(5.4), idle=4.5)
    assert [one.killed for one in rounds] == [True, True, False]  # publish, close
    for one in rounds:
        assert [delivery.item.enqueue_id for delivery in one.found] == [one.item.enqueue_id]
        assert one.after_completion == []
