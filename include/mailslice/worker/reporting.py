"""Reports to senders (RFC 3464), enqueued like any mail into the queue of MAILSLICE_WORKER_BOUNCE_QUEUE."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mailslice.codec.reports import Failure, report_of
from mailslice.model import crash
from mailslice.model.errors import ContentMissing
from mailslice.model.mail import QueuedMail, QueueName
from mailslice.worker.delays import Delays
from mailslice.worker.enqueuer import Enqueuer

if TYPE_CHECKING:
    from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)


class Reporter:
    """Tells senders which of their recipients failed."""

    def __init__(self, wiring: Wiring, queue: QueueName) -> None:
        elsewhere = replace(wiring, queue=queue)
        self._blobs = wiring.blobs
        self._clock = wiring.clock
        self._enqueuer = Enqueuer(elsewhere, Delays(elsewhere))
        self._name = wiring.settings.smtp_in.hostname or socket.getfqdn()

    async def report(self, item: QueuedMail, failures: Sequence[Failure], content: bytes | None = None) -> bool:
        """Enqueues one report of these recipients; False when nobody can be told: the mail has the null sender. `content` None: its header is loaded.

        Whoever is killed between this and writing down that it was done reports again: a sender is told twice rather than never.
        """
        header = content if content is not None or not item.mail.sender else await self._header(item)
        made = report_of(item.mail, failures, header, reporter=self._name, now=self._clock())
        if made is None:
            return False
        enqueued = await self._enqueuer.enqueue(*made)
        crash.point("report:enqueued")
        log.info(
            "the sender of %s is told of %d recipients by %s",
            item.enqueue_id,
            len(failures),
            enqueued.enqueue_id,
            extra={"action": "report", "enqueue_id": str(item.enqueue_id), "report": str(enqueued.enqueue_id)},
        )
        return True

    async def close(self) -> None:
        """Waits for what is being undone."""
        await self._enqueuer.close()

    async def _header(self, item: QueuedMail) -> bytes | None:
        try:
            return await self._blobs.get(item.header_blob_id)
        except ContentMissing:
            return None
