"""A lock with a lease of 30 seconds. A holder that is killed loses it when the lease ends."""

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
_USABLE_SHARE = 0.7
"""Share of the lease after which the holder begins nothing new."""
_TICK = 1.0


class LeasedLock:
    """The lock `name`. `doing`: what its holder does, for messages (`moves mails of Q`)."""

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
        """The holder may begin something new until then (`elapsed_seconds`)."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises as `renew`."""
        self.renew()
        try:
            yield
        finally:
            self.release()

    def take(self) -> bool:
        """Takes or renews the lock. Returns False while another holder has it."""
        asked_at = elapsed_seconds()
        if self._locks.acquire(self._name, self._me, self._lease) != self._me:
            return False
        self.until = asked_at + self._lease.total_seconds() * _USABLE_SHARE
        return True

    def release(self) -> None:
        """Releases the lock. If the store does not answer, the lock ends with its lease."""
        try:
            self._locks.release(self._name, self._me)
        except TryAgain as error:
            log.warning("lock %s is left to its TTL: %s", self._name, error)

    def renew(self) -> None:
        """Takes or renews the lock. Waits up to two leases for another holder, which may be dead.

        Then raises Refused, or StoreUnavailable if this instance had the lock before.
        """
        end = elapsed_seconds() + 2 * self._lease.total_seconds()
        while not self.take():
            if elapsed_seconds() > end:
                error = StoreUnavailable if self.until else Refused
                raise error(f"somebody else {self._doing}: try again later")
            self._sleep(_TICK)

    def renew_if_due(self) -> None:
        """`renew`, unless the last was less than a `pause` ago: each is a conditional write."""
        if elapsed_seconds() > self.until - self.pause:
            self.renew()

    def require(self) -> None:
        """Raises StoreUnavailable if another may have the lock by now."""
        if elapsed_seconds() > self.until:
            raise StoreUnavailable(f"the process that {self._doing} took too long: ask again")
