"""The own keyspace belongs to the queues of one keyspace of James."""

from types import SimpleNamespace

import pytest

from mailslice.model.errors import ConfigurationDiffers
from mailslice.model.settings import load_settings
from mailslice.stores.own.locks import LOCKS
from mailslice.view import sharing
from tests.unit.duties.stuck_mails_postal.world import MemoryRecords


@pytest.fixture
def stores_of(tmp_path, monkeypatch):
    """The stores of a deployment whose James has this keyspace. All have one own keyspace."""
    tables = {LOCKS.name: MemoryRecords(LOCKS)}
    monkeypatch.setattr(sharing, "workers_that_differ", lambda *_, **__: [])

    def stores(keyspace):
        env = {"MAILSLICE_CASSANDRA_KEYSPACE": keyspace, "MAILSLICE_OWN_KEYSPACE": "ours"}
        settings = load_settings(env, state_file=tmp_path / "none")
        existing = SimpleNamespace(tables=tables, settings=settings)
        existing.existing_records = lambda shape: tables.get(shape.name)
        return existing

    return stores


def test_a_second_deployment_may_not_use_the_own_keyspace_of_the_first(stores_of):
    """Rows there name a queue alone: the other's sample would drop marks, its flush end delays."""
    assert sharing.agree(stores_of("James_A")).queue.shared
    for use in (sharing.agree, lambda other: sharing.change(other, shared=False)):
        with pytest.raises(ConfigurationDiffers) as refused:
            use(stores_of("james_b"))
        for part in (
            "MAILSLICE_OWN_KEYSPACE=ours (",
            "is that of keyspace james_a of James, not of james_b",
            "DELETE FROM ours.locks WHERE name = 'james keyspace'",
        ):
            assert part in str(refused.value)
    assert sharing.agree(stores_of("james_a")).queue.shared


def test_without_an_own_keyspace_every_deployment_agrees_and_none_is_made(stores_of):
    for keyspace in ("james_a", "james_b"):
        stores = stores_of(keyspace)
        stores.tables.clear()
        assert sharing.agree(stores).queue.shared
        assert not stores.tables
