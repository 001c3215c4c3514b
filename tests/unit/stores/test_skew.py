"""Whose clock counts: every node's that answers."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.model.clock import system_clock
from mailslice.model.errors import ClockSkew, StoreUnavailable
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
    skew, node = session(nodes).skews()[-1]
    assert (skew, node) == (timedelta(seconds=seconds), (node[0], seconds))


@pytest.mark.parametrize(
    ("skews", "share", "node"),
    [
        ([0, 0, 240], 1, "2"),
        ([0, 0, 240], 0.5, None),
        ([240, 0], 0.5, None),
        ([0, -240, 240, 0], 0.5, None),
        ([240, 0, -300], 0.5, "0"),
        ([240, None], 0.5, "0"),
        ([240, 241, 242], 0.5, "1"),
    ],
)
def test_a_node_whose_clock_is_wrong_stops_duties_and_half_of_them_workers(
    session, skews, share, node
):
    nodes = session([(str(number), skew) for number, skew in enumerate(skews)])
    allowed, clock = timedelta(seconds=225), system_clock
    if node is None:
        nodes.require_clock(clock, allowed, "the remedy", share=share)
        return
    words = (
        r"^Cassandra's clock is 24\d\.000 s ahead of this machine's \(node .*'{}'.*\); the remedy$"
    )
    with pytest.raises(ClockSkew, match=words.format(node)):
        nodes.require_clock(clock, allowed, "the remedy", share=share)


def test_none_that_answers_is_no_clock(session):
    with pytest.raises(StoreUnavailable, match="does not answer"):
        session([("a", None), ("b", None)]).skews()
    with pytest.raises(StoreUnavailable, match="a does not answer"):
        session([], known=[("a", None)]).skews()
    with pytest.raises(StoreUnavailable, match="no node is known"):
        session([]).skews()
