"""A deployment that names a Postal, and no Cassandra."""

from pathlib import Path

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.settings import load_settings
from mailslice.stores import Stores, has_cassandra

POSTAL = {"MAILSLICE_POSTAL_URL": "mysql://guest:se%40cret@127.0.0.1:3306/postal"}
BOTH = {**POSTAL, "MAILSLICE_CASSANDRA_CONTACT_POINTS": "127.0.0.1"}


def settings_of(variables):
    return load_settings(variables, state_file=Path("/nonexistent"))


def test_cassandra_is_there_unless_a_postal_alone_is_named():
    assert has_cassandra(settings_of({}))
    assert has_cassandra(settings_of(BOTH))
    assert not has_cassandra(settings_of(POSTAL))


@pytest.mark.parametrize("store", ["cassandra", "rabbitmq", "management", "blobs", "own_blobs"])
def test_no_store_of_james_is_asked_in_a_deployment_of_postal_alone(store):
    with pytest.raises(BadSetting, match="MAILSLICE_CASSANDRA_CONTACT_POINTS") as raised:
        getattr(Stores(settings_of(POSTAL)), store)
    assert "cret" not in str(raised.value)


def test_the_state_file_of_a_clone_is_not_read_beside_a_postal(tmp_path):
    state = tmp_path / "settings.env"
    state.write_text("MAILSLICE_CASSANDRA_CONTACT_POINTS=10.0.0.1\n")
    assert not has_cassandra(load_settings(POSTAL, state_file=state))
    assert has_cassandra(load_settings({}, state_file=state))
