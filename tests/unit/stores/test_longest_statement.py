"""How long a statement may be on its way: with several nodes it is asked again of others."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra.coordinator_retry import CONVICTION_SECONDS
from mailslice.stores.cassandra.session import CassandraSession


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 7.0), (3, 7.0 + CONVICTION_SECONDS + 7.0)])
def test_it_is_the_time_of_all_tries(nodes: int, seconds: float) -> None:
    session = object.__new__(CassandraSession)
    session.settings = CassandraSettings(timeout=timedelta(seconds=7))
    session.cluster = SimpleNamespace(
        metadata=SimpleNamespace(all_hosts=lambda: [object()] * nodes)
    )
    assert session.longest_statement == timedelta(seconds=seconds)
