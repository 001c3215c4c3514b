"""The lock of a duty: one run at a time, a dead owner delays, a lost lock stops."""

import threading
import time
from datetime import timedelta

import pytest

from mailslice.maintenance import lock as locks
from mailslice.maintenance.lock import LockHeld, LockLost, locked
from mailslice.model.errors import StoreUnavailable


class Table:
    """Locks without TTL; `gone` lets a renew fail, `down` makes it raise."""

    def __init__(self) -> None:
        self.owner: str | None = None
        self.gone = self.down = False
        self.renewed = threading.Event()
        self.tries = 0

    def acquire(self, name, owner, ttl):
        self.tries += 1
        self.owner = self.owner or owner
        return self.owner

    def renew(self, name, owner, ttl):
        self.renewed.set()
        if self.down:
            raise StoreUnavailable("no answer")
        return not self.gone and self.owner == owner

    def release(self, name, owner):
        if self.owner == owner:
            self.owner = None
            return True
        return False


def test_the_lock_is_held_inside_and_free_after():
    table = Table()
    with locked(table, "queue_cleanup/spool", "r1") as lock:
        assert table.owner is not None
        assert table.owner.startswith("r1/")
        lock.check()
    assert table.owner is None


def test_it_is_free_after_an_error_too():
    table = Table()
    with pytest.raises(RuntimeError), locked(table, "x", "r1"):
        raise RuntimeError
    assert table.owner is None


def test_two_tries_of_one_run_do_not_share_it():
    table = Table()
    with (
        locked(table, "x", "r1"),
        pytest.raises(LockHeld, match="locked by run r1"),
        locked(table, "x", "r1", patience=timedelta(0)),
    ):
        raise AssertionError("must not get in")


def test_the_next_run_waits_for_a_dead_owner_and_says_so_once(caplog):
    table = Table()
    table.owner = "dead/1"

    def sleep(_):
        if table.tries == 5:
            table.owner = None

    with caplog.at_level("WARNING", logger="mailslice"), locked(table, "x", "r2", sleep=sleep):
        assert table.owner.startswith("r2/")
    assert [record.getMessage() for record in caplog.records] == [
        "x is locked by run dead: waiting, at most 90 s"
    ]


def test_a_lock_that_another_took_over_is_lost(monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT", timedelta(milliseconds=5))
    table = Table()
    with locked(table, "x", "r1") as lock:
        table.gone = True
        table.renewed.clear()
        assert table.renewed.wait(5)
        lock._thread.join(5)
        with pytest.raises(LockLost, match="nothing more was changed"):
            lock.check()


def test_a_lock_that_could_not_be_renewed_in_time_is_as_good_as_lost(monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT", timedelta(milliseconds=5))
    monkeypatch.setattr(locks, "TTL", timedelta(milliseconds=50))
    monkeypatch.setattr(locks, "MARGIN", timedelta(milliseconds=10))
    table = Table()
    with locked(table, "x", "r1") as lock:
        table.down = True
        threading.Event().wait(0.2)
        with pytest.raises(LockLost):
            lock.check()
        table.down = False
        table.renewed.clear()
        assert table.renewed.wait(5)


def test_a_lock_whose_machine_was_suspended_is_as_good_as_lost(monkeypatch):
    """`time.monotonic` stands still meanwhile, and the heartbeat's next wait has only begun."""
    with locked(Table(), "x", "r1") as lock:
        lock.check()
        clock = time.clock_gettime
        suspended = locks.TTL.total_seconds()
        monkeypatch.setattr(
            time,
            "clock_gettime",
            lambda which: clock(which) + (suspended if which == time.CLOCK_BOOTTIME else 0),
        )
        with pytest.raises(LockLost):
            lock.check()


def test_the_patience_is_longer_than_a_dead_owners_ttl():
    assert locks.PATIENCE > locks.TTL
    assert locks.TTL >= 3 * locks.HEARTBEAT
