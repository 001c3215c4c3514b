"""RabbitMQ itself killed (-9) and started again, at every point: not a proxy that plays it. Its disk has to bring back all that it confirmed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mailslice.faults.matrix import Break, Case, Fault, Place, faults
from mailslice.faults.operations import OPERATIONS
from mailslice.faults.points import named
from mailslice.faults.restarts import Restarts
from mailslice.stores import open_stores
from tests.own_broker import own_broker
from tests.services.faults.lanes import Lane, run_lanes

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
def restarted(fresh_module: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with own_broker(tmp_path_factory.mktemp("broker")) as broker:
        fresh = fresh_module.but(
            MAILSLICE_RABBITMQ_URL=broker.settings.url.get_secret_value(),
            MAILSLICE_RABBITMQ_MANAGEMENT_URL=broker.management_url,
        )
        with open_stores(fresh.settings) as stores:
            yield Place(stores, fresh.env, Restarts(broker.kill, broker.start))


def test_a_restart_of_rabbitmq_at_any_point_loses_and_doubles_nothing(restarted: Place) -> None:
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
    } == named()
    assert restarted.restarts is not None
    assert restarted.restarts.count > 1
