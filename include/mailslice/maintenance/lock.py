"""One run at a time on one queue: an LWT row with a TTL, renewed by a heartbeat thread.

The row of a killed owner expires, and a run that waits for it then takes the lock. Call `check`
before each change: it stops a step that lost its lock before the next change.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from mailslice.model.clock import elapsed_seconds
from mailslice.model.errors import MailsliceError, Refused, TryAgain
from mailslice.stores.own.locks import Locks

log = logging.getLogger(__name__)

TTL = timedelta(seconds=60)
HEARTBEAT = timedelta(seconds=15)
PATIENCE = timedelta(seconds=90)
"""How long a run waits: longer than the TTL, so that a killed owner never refuses a successor."""
MARGIN = timedelta(seconds=15)
"""A lock counts as lost this long before its TTL ends, so that pending requests end in time."""


class LockHeld(Refused):
    """Another run that is alive holds the lock."""


class LockLost(TryAgain):
    """The lock was not renewed in time. The next run does what remains."""


class Lock:
    """A lock that this process holds."""

    def __init__(self, table: Locks, name: str, owner: str, since: float) -> None:
        self.name = name
        self.owner = owner
        self._table = table
        self._renewed_at = since
        self._lost = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._heartbeat, name=f"lock {name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises LockLost when somebody else may have the lock. Call it before each change."""
        if self._lost or elapsed_seconds() - self._renewed_at > (TTL - MARGIN).total_seconds():
            why = "it was not renewed in time; nothing more was changed, run it again"
            raise LockLost(f"the lock {self.name} could not be kept: {why}")

    def release(self) -> None:
        """Delete the lock's row. If that fails, the row expires by its TTL."""
        self._stop.set()
        self._thread.join(timeout=HEARTBEAT.total_seconds())
        try:
            self._table.release(self.name, self.owner)
        except MailsliceError as error:
            log.warning("lock %s is left to its TTL: %s", self.name, error)

    def _heartbeat(self) -> None:
        while not self._stop.wait(HEARTBEAT.total_seconds()):
            asked_at = elapsed_seconds()
            try:
                renewed = self._table.renew(self.name, self.owner, TTL)
            except MailsliceError as error:
                log.warning("lock %s was not renewed: %s", self.name, error)
                continue
            if not renewed:
                self._lost = True
                return
            self._renewed_at = asked_at


@contextmanager
def locked(
    table: Locks,
    name: str,
    run: str,
    *,
    patience: timedelta = PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lock]:
    """Hold the lock `name`. Waits up to `patience` for its owner, then raises LockHeld.

    The owner is this process, not the run: a retry by Airflow must wait while the first try lives.
    """
    owner = f"{run}/{uuid.uuid4()}"
    deadline = elapsed_seconds() + patience.total_seconds()
    reported = False
    while True:
        asked_at = elapsed_seconds()
        holder = table.acquire(name, owner, TTL)
        if holder == owner:
            break
        held_by = f"{name} is locked by run {holder.rpartition('/')[0] or holder}"
        if asked_at >= deadline:
            raise LockHeld(f"{held_by}, which still works; waited {patience.total_seconds():.0f} s")
        if not reported:
            log.warning("%s: waiting, at most %d s", held_by, patience.total_seconds())
            reported = True
        sleep(1.0)
    lock = Lock(table, name, owner, asked_at)
    try:
        yield lock
    finally:
        lock.release()
