"""Mailboxes for counter_repair: a real Cassandra with James' tables, and the duty's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mailslice.duties.counter_repair import decide
from mailslice.maintenance.runner import Tools
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from tests.services.duties.counter_repair.making import Mailboxes, create_mailbox_tables


@pytest.fixture(scope="session")
def _partition(make_fresh: Callable) -> Iterator[tuple[Settings, Stores]]:
    settings = make_fresh().but(MAILSLICE_DUTY_SPARK_MASTER="local[2]").settings
    with open_stores(settings) as stores:
        create_mailbox_tables(stores)
        yield settings, stores


@pytest.fixture(scope="session")
def shared_james(_partition: tuple[Settings, Stores]) -> Mailboxes:
    """Mailboxes that tests share. A test limits its runs to its own by the param `mailboxes`."""
    return Mailboxes(*_partition)


@pytest.fixture
def james(shared_james: Mailboxes, request: pytest.FixtureRequest) -> Mailboxes:
    """The mailboxes of `shared_james`, for one test."""
    with_spark = "with_spark" in request.fixturenames
    return replace(shared_james, tools=Tools()) if with_spark else shared_james


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all writes of earlier runs count as long ago."""
    monkeypatch.setattr(decide, "SENT_FOR", decide.SENT_FOR * 0)
