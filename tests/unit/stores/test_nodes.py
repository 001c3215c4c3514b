"""Which nodes of the cluster can be asked, by a session that has just been opened."""

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

from mailslice.stores.cassandra.nodes import Nodes


@dataclass(frozen=True)
class Host:
    address: str
    is_up: bool | None = True
    datacenter: str = "dc1"


@dataclass
class Session:
    """Reaches one node more each time that it is asked."""

    hosts: list[Host]
    reached: int = 0
    settings: object = field(
        default_factory=lambda: SimpleNamespace(timeout=timedelta(seconds=0.3))
    )

    def __post_init__(self):
        self.cluster = SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: self.hosts))

    def connected(self):
        self.reached += 1
        return frozenset(self.hosts[: self.reached])


def asked(hosts):
    return [(node.address, node.up, node.asked) for node in Nodes(Session(hosts)).all()]


def test_a_node_that_is_reached_later_than_the_first_is_waited_for():
    hosts = [Host("1"), Host("2", is_up=None), Host("3")]
    assert asked(hosts) == [("1", True, True), ("2", True, True), ("3", True, True)]


def test_a_node_that_is_down_or_elsewhere_is_not_waited_for():
    hosts = [Host("1"), Host("2", is_up=False), Host("3", datacenter="dc2")]
    session = Session(hosts)
    nodes = [(node.up, node.asked) for node in Nodes(session).all()]
    assert nodes == [(True, True), (False, False), (True, False)]
    assert session.reached == 1


def test_a_node_that_is_never_reached_ends_the_wait_with_the_time_of_a_request():
    hosts = [Host("1")]
    session = Session([*hosts, Host("2")])
    session.connected = lambda: frozenset(hosts)
    nodes = [(node.up, node.asked) for node in Nodes(session).all()]
    assert nodes == [(True, True), (False, False)]
