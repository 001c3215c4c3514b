"""Runs of stuck_mails_postal over a Postal in memory: what each leaves, and what it does not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.stores.own.postal_quarantine import EntryState
from tests.unit.duties.stuck_mails_postal.world import CONTENT, MESSAGE, World, fake

OLDEST = timedelta(hours=5)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    fake(monkeypatch)
    return World(tmp_path)


def test_a_stuck_message_is_closed(world: World) -> None:
    world.stuck()
    assert world.apply() == ({"closed": 1}, {})
    assert (world.queue, world.statuses(), world.copies) == ({}, ["Held"], [CONTENT])
    assert [one.state for one in world.entries] == [EntryState.KEPT]


def test_a_half_closed_message_of_a_server_that_cannot_be_read_stops_no_other(
    world: World,
) -> None:
    row = world.cut_off()
    world.stuck(server=2)
    world.unreadable = {1}
    assert world.apply() == ({"closed": 1}, {"server unreadable": 1})
    assert list(world.queue) == [row.id]
    assert [(one.server, one.state) for one in world.entries] == [
        (1, EntryState.CLOSING),
        (2, EntryState.KEPT),
    ]
    assert world.copies == [CONTENT, CONTENT]
    world.unreadable = set()
    assert world.apply("r-2") == ({"closed": 1}, {})
