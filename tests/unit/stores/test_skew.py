"""Whose clock counts: every node's that answers."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.stores.cassandra.session import CassandraSession


@pytest.fixture
def session():
    """A function: a session of nodes with these skews in seconds; None does not answer."""

    def make(connected, known=()):
        class Session(CassandraSession):
            def __init__(self):
                self.address = "here"
                metadata = SimpleNamespace(all_hosts=lambda: list(known))
                self.cluster = SimpleNamespace(metadata=metadata)

            def connected(self):
                return frozenset(connected)

            def skew_of(self, host, _clock):
                if host[1] is None:
                    raise StoreUnavailable(f"{host[0]} does not answer")
                return timedelta(seconds=host[1])

        return Session()

    return make


@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        ([("a", 1.0)], 1.0),
        ([("a", 1.0), ("b", -3.0), ("c", 2.0)], -3.0),
        ([("a", None), ("b", 0.5)], 0.5),
        ([("a", 0.0), ("b", None), ("c", None)], 0.0),
    ],
)
def test_the_largest_of_those_that_answer_counts(session, nodes, seconds):
    assert session(nodes).now_skew() == timedelta(seconds=seconds)


def test_none_that_answers_is_no_clock(session):
    with pytest.raises(StoreUnavailable, match="does not answer"):
        session([("a", None), ("b", None)]).now_skew()
    with pytest.raises(StoreUnavailable, match="a does not answer"):
        session([], known=[("a", None)]).now_skew()
    with pytest.raises(StoreUnavailable, match="no node is known"):
        session([]).now_skew()
