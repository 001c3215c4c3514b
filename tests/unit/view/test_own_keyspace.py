"""Queues of one name in two keyspaces of James do not share an own keyspace."""

from types import SimpleNamespace

import pytest

from mailslice.model.errors import ConfigurationDiffers
from mailslice.model.settings import load_settings
from mailslice.stores.own.locks import LOCKS
from mailslice.view import sharing
from tests.unit.duties.stuck_mails_postal.world import MemoryRecords


@pytest.fixture
def stores_of(tmp_path):
    """The stores of a deployment whose James has this keyspace. All have one own keyspace."""
    tables = {LOCKS.name: MemoryRecords(LOCKS)}

    def stores(keyspace):
        env = {"MAILSLICE_CASSANDRA_KEYSPACE": keyspace, "MAILSLICE_OWN_KEYSPACE": "ours"}
        settings = load_settings(env, state_file=tmp_path / "none")
        existing = SimpleNamespace(tables=tables, settings=settings)
        existing.existing_records = lambda shape: tables.get(shape.name)
        return existing

    return stores


def test_the_second_of_two_namesakes_is_refused(stores_of):
    """Rows there name a queue alone: the other's sample would drop marks, its flush end delays."""
    assert sharing.agree(stores_of("James_A"), "spool").queue.shared
    with pytest.raises(ConfigurationDiffers) as refused:
        sharing.agree(stores_of("james_b"), "spool")
    for part in (
        "MAILSLICE_OWN_KEYSPACE=ours (",
        "has records of queue 'spool' in keyspace james_a, not james_b",
        "DELETE FROM ours.locks WHERE name = 'keyspace of spool'",
    ):
        assert part in str(refused.value)
    assert sharing.agree(stores_of("james_a"), "spool").queue.shared


def test_queues_of_other_names_may_share_it(stores_of):
    assert sharing.agree(stores_of("james_a"), "spool").queue.shared
    assert sharing.agree(stores_of("james_b"), "outgoing").queue.shared


def test_without_an_own_keyspace_every_deployment_agrees_and_none_is_made(stores_of):
    for keyspace in ("james_a", "james_b"):
        stores = stores_of(keyspace)
        stores.tables.clear()
        assert sharing.agree(stores, "spool").queue.shared
        assert not stores.tables
