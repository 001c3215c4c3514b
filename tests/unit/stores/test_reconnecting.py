"""Contact points are looked up anew while no node is connected, and hold nothing else up."""

import socket
import threading
import time
from itertools import islice
from types import SimpleNamespace

import pytest

from mailslice.stores.cassandra.connection import Reconnection


class Looked:
    """Look-ups, each of which takes until `answered`."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.answered = threading.Event()

    def __call__(self, host: str, *_: object, **__: object) -> list[object]:
        self.hosts.append(host)
        assert self.answered.wait(20)
        return []


@pytest.fixture
def looked(monkeypatch):
    looked = Looked()
    monkeypatch.setattr(socket, "getaddrinfo", looked)
    yield looked
    looked.answered.set()


def reconnection(**of_cluster):
    policy = Reconnection(0.5, 5.0, max_attempts=None)
    usual = {"is_shutdown": False, "sessions": (), "contact_points": [("one.test", 9042)]}
    policy.cluster = SimpleNamespace(**usual | of_cluster)
    return policy


def attempts(policy, count=2):
    """That many attempts of one node; names are looked up between two."""
    return list(islice(policy.new_schedule(), count))


def until(looked, times):
    end = time.monotonic() + 10
    while len(looked.hosts) < times and time.monotonic() < end:
        time.sleep(0.01)
    return looked.hosts == ["one.test"] * times


def test_no_attempt_waits_for_names_and_one_thread_alone_looks_them_up(looked):
    policy = reconnection()
    attempting = threading.Thread(target=lambda: [attempts(policy) for _ in range(3)], daemon=True)
    attempting.start()
    attempting.join(5)
    assert not attempting.is_alive()
    assert until(looked, 1)
    looked.answered.set()
    end = time.monotonic() + 10
    while len(looked.hosts) < 2 and time.monotonic() < end:
        attempts(policy)
    assert looked.hosts[:2] == ["one.test"] * 2


def test_a_cluster_that_ends_waits_for_no_further_name(looked):
    points = [("one.test", 9042), ("two.test", 9042)]
    policy = reconnection(contact_points=points)
    looker = threading.Thread(target=attempts, args=(policy,), daemon=True)
    looker.start()
    assert until(looked, 1)
    policy.cluster.is_shutdown = True
    looked.answered.set()
    looker.join(5)
    attempts(policy)
    time.sleep(0.1)
    assert looked.hosts == ["one.test"]


def test_no_error_ends_the_attempts(looked, monkeypatch):
    looked.answered.set()
    unreadable = SimpleNamespace(get_pool_state=lambda: 1 / 0)
    assert len(attempts(reconnection(sessions=(unreadable,)), 5)) == 5
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: 1 / 0)
    assert len(attempts(reconnection(), 5)) == 5
