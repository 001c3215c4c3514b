"""One run at a time on one queue: an LWT row with a TTL, renewed by a heartbeat thread.

A killed owner's row expires, so the next run waits and goes on. Call `check` before each change: a
lost heartbeat stops the step before its next deletion.
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
"""A lock counts as lost this long before its TTL: pending requests must end before the TTL does."""


class LockHeld(Refused):
    """Another run, which is alive, works on this queue."""


class LockLost(TryAgain):
    """The lock could not be kept alive; what was not done yet is left to the next run."""


class Lock:
    """A lock that this process holds."""

    def __init__(self, table: Locks, name: str, owner: str, since: float) -> None:
        self.name = name
        self.owner = owner
        self._table = table
        self._good = since
        self._lost = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lock {name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises LockLost when the lock may be another's by now. Call it before each change."""
        if self._lost or elapsed_seconds() - self._good > (TTL - MARGIN).total_seconds():
            raise LockLost(
                f"the lock {self.name} could not be kept: it was not renewed in "
                "time; nothing more was changed, run it again"
            )

    def release(self) -> None:
        """Give it back; when that fails its TTL does."""
        self._end.set()
        self._thread.join(timeout=HEARTBEAT.total_seconds())
        try:
            self._table.release(self.name, self.owner)
        except MailsliceError as error:
            log.warning("lock %s is left to its TTL: %s", self.name, error)

    def _beat(self) -> None:
        while not self._end.wait(HEARTBEAT.total_seconds()):
            asked = elapsed_seconds()
            try:
                renewed = self._table.renew(self.name, self.owner, TTL)
            except MailsliceError as error:
                log.warning("lock %s was not renewed: %s", self.name, error)
                continue
            if not renewed:
                self._lost = True
                return
            self._good = asked


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

    The owner is this process, not the run: an Airflow retry must wait for a first try that lives.
    """
    owner = f"{run}/{uuid.uuid4()}"
    deadline = elapsed_seconds() + patience.total_seconds()
    reported = False
    while True:
        asked = elapsed_seconds()
        holder = table.acquire(name, owner, TTL)
        if holder == owner:
            break
        held_by = f"{name} is locked by run {holder.rpartition('/')[0] or holder}"
        if asked >= deadline:
            waited = f"waited {patience.total_seconds():.0f} s"
            raise LockHeld(f"{held_by}, which still works; {waited}")
        if not reported:
            log.warning("%s: waiting, at most %d s", held_by, patience.total_seconds())
            reported = True
        sleep(1.0)
    lock = Lock(table, name, owner, asked)
    try:
        yield lock
    finally:
        lock.release()
