"""A restart comes when every lane that is under way waits for it, and never under one that does
not.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mailslice.testing.faults.restarts import Restarts


class Server:
    """Up or not, and how often it went down while somebody worked with it in peace."""

    def __init__(self) -> None:
        self.is_up = True
        self.at_peace = 0
        self.disturbed = 0
        self.lock = threading.Lock()

    def stop(self) -> None:
        self.disturbed += self.at_peace
        self.is_up = False

    def start(self) -> None:
        self.is_up = True


def test_lanes_of_different_lengths_all_get_theirs_and_none_is_hit_at_peace() -> None:
    server = Server()
    restarts = Restarts(server.stop, server.start, away=0.01)
    seen: list[int] = []

    def lane(cases: int) -> None:
        with restarts.lane():
            assert server.is_up
            for _ in range(cases):
                with server.lock:
                    server.at_peace += 1
                time.sleep(0.002)
                with server.lock:
                    server.at_peace -= 1
                restarts.down()
                seen.append(cases)
                restarts.up()
                assert server.is_up

    with ThreadPoolExecutor(5) as threads:
        for done in [threads.submit(lane, cases) for cases in (1, 4, 0, 7, 3)]:
            done.result(30)
    assert len(seen) == 15
    assert server.disturbed == 0
    assert 7 <= restarts.count <= 15


def test_a_server_that_does_not_start_ends_the_lanes_that_wait_for_it() -> None:
    def broken() -> None:
        raise OSError("no such server")

    restarts = Restarts(lambda: None, broken, away=0.01)
    with restarts.lane():
        restarts.down()
        with pytest.raises(OSError, match="no such server"):
            restarts.up()
