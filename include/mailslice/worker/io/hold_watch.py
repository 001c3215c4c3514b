"""The holds of a queue as its worker knows them: one read every few seconds, not one a mail.

While a store does not answer, the worker goes on with the holds that it knows, and logs that.
Before the first answer it takes no mail (ADR 86).
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from mailslice.codec.addresses import domain_of
from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.holds import ActiveHolds, Hold
from mailslice.stores.cassandra.own import Holds
from mailslice.worker.io.context import QueueContext

log = logging.getLogger(__name__)


class HoldWatch:
    """The holds of one queue, for one worker on one event loop."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._table: Holds | None = None
        self._rows: tuple[Hold, ...] = ()
        self._listeners: set[Callable[[], None]] = set()
        self._running: asyncio.Task[None] | None = None
        self.active = ActiveHolds()
        self.is_known = False
        """Whether the holds were read once."""
        self.failure: MailsliceError | None = None
        """Why the last read failed; None if it did not."""

    def follow(self, listener: Callable[[], None]) -> None:
        """Calls it after each change, and after each read until the first one succeeds."""
        self._listeners.add(listener)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="holds")
        elif self.is_known:
            listener()

    def leave(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def of(self, recipients: Collection[str]) -> Hold | None:
        """The hold of a domain of these recipients, if there is one."""
        if not self.active.domains:
            return None
        return self.active.of({domain_of(recipient) for recipient in recipients})

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        while True:
            await self._refresh()
            await asyncio.sleep(self._context.tuning.holds_every)

    async def _refresh(self) -> None:
        was_known = self.is_known
        try:
            self._rows = await self._read()
        except Exception as error:  # noqa: BLE001 - after any error the known holds stay
            self._missed(error)
        else:
            if self.failure is not None:
                self._log(logging.INFO, "holds_read", "holds of queue %s are read again")
            self.is_known, self.failure = True, None
            self._context.statistics.holds_unknown = 0
        before = self.active
        self.active = ActiveHolds.at(self._context.clock(), self._rows)
        self._log_changes(before)
        if not was_known or self.active != before:
            for listener in [*self._listeners]:
                listener()

    async def _read(self) -> tuple[Hold, ...]:
        if self._table is None:
            self._table = await self._context.open_table(Holds.prepared)
        if self._table is None:
            return ()  # nothing was ever held
        rows = await self._context.bridge.rows(self._table.of_future(self._context.queue))
        return tuple(map(self._table.hold, rows))

    def _missed(self, error: Exception) -> None:
        if self.failure is None:
            known = f"the {len(self.active.all)} that it knows" if self.is_known else "no mail yet"
            text = "holds of queue %s could not be read; the worker goes on with %s: %s"
            self._log(logging.WARNING, "holds_unknown", text, known, error)
        if not isinstance(error, MailsliceError):
            error = StoreUnavailable(f"holds could not be read: {error}")
        self.failure = error
        self._context.statistics.holds_unknown = 1

    def _log_changes(self, before: ActiveHolds) -> None:
        known = {hold.domain: hold for hold in before.all}
        for hold in self.active.all:
            if known.pop(hold.domain, None) != hold:
                self._log(logging.WARNING, "queue_held", "queue %s is held: %s", hold.sentence)
        for hold in known.values():
            what = f"domain {hold.domain}" if hold.domain else "the whole queue"
            self._log(logging.WARNING, "hold_ended", "queue %s: the hold of %s ended", what)
        self._context.statistics.held_whole = int(self.active.whole is not None)
        self._context.statistics.held_domains = len(self.active.domains)

    def _log(self, level: int, action: str, text: str, *facts: object) -> None:
        queue = self._context.queue
        log.log(level, text, queue, *facts, extra={"action": action, "queue": queue})
