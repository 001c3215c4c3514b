"""Fixtures of the tests of all duties."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mailslice.engine import worker_stores


@pytest.fixture
def with_spark() -> None:
    """Makes a test use real Spark jobs and rendered Data Docs, as in production."""


@pytest.fixture(scope="session", autouse=True)
def _close_what_in_process_workers_opened() -> Iterator[None]:
    yield
    worker_stores.close_all()
