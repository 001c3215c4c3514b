"""Whose the own tables are: the first Postal's, wherever it moves, and no other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailslice.duties.stuck_mails_postal.identity import NAME, require_same
from mailslice.duties.stuck_mails_postal.releases import ReleaseRequest, open_releases
from mailslice.model.errors import ConfigurationDiffers
from mailslice.model.settings import PostalMode
from mailslice.stores.own.postal_quarantine import EntryState
from tests.unit.duties.stuck_mails_postal.world import CONTENT, World, fake

FIRST = "postal at db-1:3306"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    fake(monkeypatch)
    return World(tmp_path)


def stored(world: World) -> str | None:
    name: str | None = world.stores.records.locks.holder(NAME)
    return name


def release_all(world: World) -> None:
    request = ReleaseRequest("night shift")
    with open_releases(world.stores, world.run.clock, request) as releases:
        for entry in world.entries:
            releases.release(entry)


def test_the_first_that_changes_something_stores_it(world: World) -> None:
    world.stuck()
    world.planned(mode=PostalMode.SHADOW)
    assert stored(world) is None
    world.apply("r-2")
    assert stored(world) == FIRST


@pytest.mark.parametrize(
    ("database", "host"), [("postal_staging", "db-1"), ("postal", "db-2"), ("postal_2", "db-2")]
)
def test_another_postal_is_refused_and_nothing_is_changed(
    world: World, database: str, host: str
) -> None:
    world.stuck()
    world.apply()
    planned = world.planned("r-2")
    world.another(database, host)
    acts = (
        lambda: world.planned("r-3"),
        lambda: world.applied(*planned),
        lambda: release_all(world),
        lambda: require_same(world.stores),
    )
    for act in acts:
        with pytest.raises(ConfigurationDiffers, match="MAILSLICE_OWN_URL") as refused:
            act()
        assert f"{database} at {host}:3306" in str(refused.value)
        assert FIRST in str(refused.value)
    assert (list(world.queue), world.statuses(), world.copies) == ([20], [], [CONTENT])
    assert [one.state for one in world.entries] == [EntryState.KEPT]
    assert stored(world) == FIRST


def test_a_postal_that_moved_is_known_by_its_records(world: World) -> None:
    world.stuck()
    world.apply()
    world.host = "db-2"
    require_same(world.stores)
    assert stored(world) == FIRST
    release_all(world)
    assert (stored(world), world.entries) == ("postal at db-2:3306", [])


def test_it_is_known_by_the_row_of_a_closing_that_was_cut_off(world: World) -> None:
    world.apply()
    world.cut_off()
    world.host = "db-2"
    assert world.apply("r-2") == ({"closed": 1}, {})
    assert stored(world) == "postal at db-2:3306"


def test_with_nothing_in_quarantine_it_may_move_without_a_proof(world: World) -> None:
    world.apply()
    assert stored(world) == FIRST
    world.host = "db-2"
    world.apply("r-2")
    assert stored(world) == "postal at db-2:3306"


def recreated(world: World) -> None:
    """Its container has another name, and Postal's retention has dropped what was closed."""
    world.stuck()
    world.apply()
    world.records.clear()
    world.messages.clear()
    world.host = "db-2"


def test_own_tables_beside_postals_moved_with_it(world: World) -> None:
    world.url.address = "own:3306"
    recreated(world)
    require_same(world.stores)
    world.apply("r-2")
    assert stored(world) == "postal at db-2:3306"
    world.another("postal_2", "db-2")
    with pytest.raises(ConfigurationDiffers, match="Name another database"):
        world.planned("r-3")


def test_the_way_out_where_nothing_proves_it_is_said(world: World) -> None:
    recreated(world)
    with pytest.raises(ConfigurationDiffers, match=f"DELETE FROM locks WHERE name = '{NAME}'"):
        world.planned("r-2")
    world.unreadable = {1}
    with pytest.raises(ConfigurationDiffers, match="Postal cannot be asked") as refused:
        world.planned("r-2")
    assert "DELETE" not in str(refused.value)
    world.unreadable = set()
    world.stores.records.locks.release(NAME, FIRST)
    require_same(world.stores)
    world.apply("r-3")
    assert (stored(world), world.copies) == ("postal at db-2:3306", [CONTENT])
