"""Places for lanes: stores of their own, open for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mailslice.stores import open_stores
from mailslice.testing.faults.matrix import World


@pytest.fixture(scope="module")
def world(fresh_module: Any) -> Iterator[World]:
    with open_stores(fresh_module.settings) as stores:
        yield World(stores, fresh_module.env)


@pytest.fixture
def own_place(fresh: Any) -> Iterator[World]:
    """For one test: each lane leaves fifteen queues in RabbitMQ, and a broker with thousands of
    them is short of memory.
    """
    with open_stores(fresh.settings) as stores:
        yield World(stores, fresh.env)
