"""The right to change something, for half a minute at a time: who is killed gives it up."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

from mailslice.model.clock import elapsed_seconds
from mailslice.model.errors import Refused, StoreUnavailable, TryAgain
from mailslice.stores import Stores

log = logging.getLogger(__name__)
LEASE = timedelta(seconds=30)
_PART = 0.7
"""Of the lease, after which nothing new is begun under it."""
_TICK = 1.0


class LeasedLock:
    """A lock by its name. `doing` is what its holder does, for messages."""

    def __init__(
        self,
        stores: Stores,
        name: str,
        doing: str,
        sleep: Callable[[float], None] = time.sleep,
        lease: timedelta = LEASE,
    ) -> None:
        self._locks = stores.own.locks
        self._name = name
        self._doing = doing
        self._sleep = sleep
        self._lease = lease
        self._me = str(uuid4())
        self.pause = lease.total_seconds() / 3
        """Seconds between two renewals."""
        self.until = 0.0
        """Up to when (`elapsed_seconds`) something may be begun."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises as `renew`."""
        self.renew()
        try:
            yield
        finally:
            self.give_back()

    def take(self) -> bool:
        """Takes or renews it; False where another has it."""
        asked = elapsed_seconds()
        if self._locks.acquire(self._name, self._me, self._lease) != self._me:
            return False
        self.until = asked + self._lease.total_seconds() * _PART
        return True

    def give_back(self) -> None:
        """Others may take it; when that fails, after its TTL."""
        try:
            self._locks.release(self._name, self._me)
        except TryAgain as error:
            log.warning("lock %s is left to its TTL: %s", self._name, error)

    def renew(self) -> None:
        """Waits for another holder, who may have been killed. Raises Refused where it goes on, and
        StoreUnavailable where this one had the right before.
        """
        end = elapsed_seconds() + 2 * self._lease.total_seconds()
        while not self.take():
            if elapsed_seconds() > end:
                error = StoreUnavailable if self.until else Refused
                raise error(f"somebody else {self._doing}: try again later")
            self._sleep(_TICK)

    def renew_if_due(self) -> None:
        """`renew`, unless it was done less than a `pause` ago: it is a conditional write."""
        if elapsed_seconds() > self.until - self.pause:
            self.renew()

    def require(self) -> None:
        """Raises StoreUnavailable where the right may be lost."""
        if elapsed_seconds() > self.until:
            raise StoreUnavailable(f"who {self._doing} took too long: ask again")
