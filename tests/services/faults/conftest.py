"""A place for lanes: stores of their own, open for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mailslice.faults.matrix import Place
from mailslice.stores import open_stores


@pytest.fixture(scope="module")
def place(fresh_module: Any) -> Iterator[Place]:
    with open_stores(fresh_module.settings) as stores:
        yield Place(stores, fresh_module.env)
