"""Mailboxes for counter_repair: a real Cassandra with James' tables, and the duty's steps over it, in this process with one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mailslice.duties.counter_repair import decide
from mailslice.engine import worker_stores
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from tests.services.duties.counter_repair.in_process import without_spark
from tests.services.duties.counter_repair.making import Mailboxes, create_mailbox_tables


@pytest.fixture(autouse=True)
def _without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleavings are about stores. `with_spark` has Spark and Data Docs, as in production."""
    if "with_spark" not in request.fixturenames:
        without_spark(monkeypatch)


@pytest.fixture
def with_spark() -> None:
    """Real Spark jobs and rendered Data Docs."""


@pytest.fixture(scope="module")
def module_without_spark() -> Iterator[None]:
    """For what a module's tests share."""
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _close_what_in_process_workers_opened() -> Iterator[None]:
    yield
    worker_stores.close_all()


@pytest.fixture(scope="session")
def _partition(make_fresh: Callable) -> Iterator[tuple[Settings, Stores]]:
    settings = make_fresh().but(MAILSLICE_DUTY_SPARK_MASTER="local[2]").settings
    with open_stores(settings) as stores:
        create_mailbox_tables(stores)
        yield settings, stores


@pytest.fixture(scope="session")
def shared_james(_partition: tuple[Settings, Stores]) -> Mailboxes:
    """Mailboxes that tests share: a test names its own by the param `mailboxes`."""
    return Mailboxes(*_partition)


@pytest.fixture
def james(shared_james: Mailboxes) -> Mailboxes:
    """As `shared_james`."""
    return shared_james


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an earlier run sent was sent long ago."""
    monkeypatch.setattr(decide, "SENT_FOR", decide.SENT_FOR * 0)
