"""Stage marks: read at each delivery, written conditionally by who holds the mail.

`sending` is durable before the first step that cannot be taken back; `sent` follows it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.model.stages import Decision, MailStage, Stage, Verdict, decide

if TYPE_CHECKING:
    from mailslice.worker.bridge import Rows
    from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)
WAIT_SECONDS = 1.0
"""Between two looks at a mail whose sender may be alive."""
_LONGEST_WAIT = 15 * 60.0
"""Seconds that a living sender is waited for. One that hangs for longer is the business of stuck_mails, and then of whoever gets the mail."""


@dataclass(slots=True)
class Doubt:
    """Since when a mail waits for a record, unchanged, that says sending. It is parked with its mail."""

    owner: str
    step: int
    since: datetime

    @property
    def header(self) -> str:
        """For the parked message."""
        return f"{epoch_ms(self.since)} {self.step} {self.owner}"

    @classmethod
    def of(cls, header: object) -> Doubt | None:
        """By a message's header; None without one, and for what is none."""
        parts = header.split(" ", 2) if isinstance(header, str) else []
        try:
            since, step, owner = parts
            return cls(owner, int(step), instant(int(since)))
        except (ValueError, OverflowError):
            return None


class Stages:
    """The stage marks of one queue, for one worker on one event loop."""

    def __init__(self, wiring: Wiring) -> None:
        self.worker = wiring.worker
        self.clock = wiring.clock
        self._table = wiring.stores.own.mail_stages
        self._records = wiring.stores.own.worker_records
        self._queue = wiring.queue
        self._bridge = wiring.bridge
        # A worker that was idle writes its record a tick after it got a mail.
        self._first_look = 1.0 + 2 * min(1.0, wiring.settings.worker.record_every.total_seconds())

    def ask(self, enqueue_id: EnqueueId) -> asyncio.Future[Rows]:
        """Asks for the mail's record, at the settings' consistency, without waiting: for `told`. What a refused write has lost to is seen by it."""
        return self._bridge.rows(self._table.read_future(self._queue, enqueue_id))

    def told(self, enqueue_id: EnqueueId, rows: Rows) -> MailStage | None:
        """The record, None when nobody began."""
        return self._table.record(rows[0], enqueue_id) if rows else None

    async def read(self, enqueue_id: EnqueueId) -> MailStage | None:
        """`ask` and `told`."""
        return self.told(enqueue_id, await self.ask(enqueue_id))

    async def advance(self, before: MailStage, after: MailStage) -> bool:
        """Writes `after` if the record is still `before` (step 0: there is none). After StoreUnavailable nobody knows: read."""
        return self._table.applied(
            await self._bridge.rows(self._table.advance_future(self._queue, before, after))
        )

    async def decide(
        self, item: QueuedMail, record: MailStage | None, doubt: Doubt | None
    ) -> tuple[Decision, Doubt | None]:
        """What becomes of a delivery; with WAIT, the doubt to bring along at the next look."""
        lives = False
        if record is not None and record.stage is Stage.SENDING and record.owner != self.worker:
            if doubt is None or (doubt.owner, doubt.step) != (record.owner, record.step):
                doubt = Doubt(record.owner, record.step, self.clock())
                log.info(
                    "mail %s waits: %s may be sending it",
                    item.enqueue_id,
                    record.owner,
                    extra={"action": "stage_wait", "enqueue_id": str(item.enqueue_id)},
                )
            lives = await self._may_live(doubt)
        decision = decide(
            record,
            item.enqueue_id,
            item.mail.recipients,
            by=self.worker,
            now=self.clock(),
            holder_lives=lives,
        )
        return decision, doubt if decision.verdict is Verdict.WAIT else None

    async def _may_live(self, doubt: Doubt) -> bool:
        """Our own mails are never asked about here: what this worker still works on is in its hand, and waited for there."""
        waited = (self.clock() - doubt.since).total_seconds()
        if waited < self._first_look:
            return True
        return waited < _LONGEST_WAIT and await asyncio.to_thread(
            self._records.alive, self._queue, doubt.owner
        )
