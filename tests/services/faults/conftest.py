"""Worlds for lanes: open stores that only these lanes use."""

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
    """A world for one test. Each lane leaves fifteen RabbitMQ queues, and thousands of queues
    would exhaust the broker's memory.
    """
    with open_stores(fresh.settings) as stores:
        yield World(stores, fresh.env)
