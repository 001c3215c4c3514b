"""RabbitMQ itself killed (-9) and started again, at every point: not a proxy that plays it.

Its disk has to bring back all that it confirmed.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.queues import create
from mailslice.model.clock import system_clock
from mailslice.model.names import RabbitNames
from mailslice.stores import open_stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.testing.faults.matrix import Break, Case, Fault, World, faults
from mailslice.testing.faults.operations import OPERATIONS
from mailslice.testing.faults.restarts import Restarts
from mailslice.worker import open_worker
from mailslice.worker.dequeue import park
from mailslice.worker.io.content_loader import Loader
from tests.own_broker import own_broker
from tests.services.faults.lanes import Lane, run_lanes
from tests.services.faults.test_kills import points_of_operations
from tests.services.faults.waiting import away
from tests.services.worker.conftest import mail, until
from tests.services.worker.test_faults import CONTENT, next_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]
AT_ONCE = 6
TWICE = 2
"""In how many operations, where so many come there, a point is restarted at."""


class Shares:
    """Deals the points out to the operations, as they come to them."""

    def __init__(self) -> None:
        self._dealt: Counter[str] = Counter()
        self._lock = threading.Lock()

    def cases(self, points: Sequence[str]) -> list[Case]:
        with self._lock:
            mine = [point for point in dict.fromkeys(points) if self._dealt[point] < TWICE]
            self._dealt.update(mine)
        return faults(mine, Fault("rabbitmq", Break.RESTART))


@pytest.fixture(scope="module")
def restarted(fresh_module: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with own_broker(tmp_path_factory.mktemp("broker")) as broker:
        fresh = fresh_module.but(
            MAILSLICE_RABBITMQ_URL=broker.settings.url.get_secret_value(),
            MAILSLICE_RABBITMQ_MANAGEMENT_URL=broker.management_url,
        )
        with open_stores(fresh.settings) as stores:
            yield World(stores, fresh.env, Restarts(broker.kill, broker.start))


async def test_a_mail_that_is_parked_is_there_after_a_restart(
    restarted: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = restarted.stores
    queue = create(stores, "parked")
    names = RabbitNames(queue)
    async with open_worker(stores.settings, queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        with monkeypatch.context() as patch:
            patch.setattr(park, "RETRY_SECONDS", 1.0)
            patch.setattr(Loader, "load", away)
            async with aclosing(worker.deliveries(4)) as deliveries:
                coming = asyncio.ensure_future(anext(deliveries))
                await until(lambda: stores.management.messages(names.park_queue), 60)
                coming.cancel()
                await asyncio.wait({coming})
    assert restarted.restarts is not None
    restarted.restarts.down()
    restarted.restarts.up()
    with blocking_connection(stores.settings.rabbitmq) as connection:
        channel = connection.channel()
        counts = [
            channel.queue_declare(name, passive=True).method.message_count
            for name in (names.park_queue, names.work_queue)
        ]
    assert sum(counts) == 1
    async with (
        open_worker(stores.settings, queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        delivery = await next_of(deliveries, 120)
        assert (delivery.item, delivery.content) == (item, CONTENT)
        await delivery.complete()
    assert list(MailQueue(stores, queue, system_clock).browse()) == []


def test_a_restart_of_rabbitmq_at_any_point_loses_and_doubles_nothing(restarted: World) -> None:
    shares = Shares()
    operations = random.Random("restart").sample(list(OPERATIONS), len(OPERATIONS))
    outcomes = run_lanes(
        restarted, {f"restart-{name}": Lane(name, shares.cases) for name in operations}, AT_ONCE
    )
    wrong = [
        f"{name}: {text}" for name, outcome in outcomes.items() for text in outcome.books.wrong
    ]
    assert not wrong, "\n".join(wrong)
    assert {name: outcome.missed for name, outcome in outcomes.items() if outcome.missed} == {}
    assert {
        case.stop.point for outcome in outcomes.values() for case in outcome.stopped if case.stop
    } == points_of_operations()
    assert restarted.restarts is not None
    assert restarted.restarts.count > 1
