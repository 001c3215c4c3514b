"""Reports to senders (RFC 3464), enqueued into the queue of MAILSLICE_WORKER_BOUNCE_QUEUE."""

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from mailslice.codec.reports import Failure, report_of
from mailslice.model import crash
from mailslice.model.errors import BadSetting, ContentMissing, TakenOver, TryAgain
from mailslice.model.mail import QueuedMail, QueueName
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.enqueue.enqueuer import Enqueuer
from mailslice.worker.io.context import QueueContext
from mailslice.worker.logs import about

log = logging.getLogger(__name__)
_MAX_BUILT_ON_LOOP = 100


class Reporter:
    """Reports to senders which of their recipients failed."""

    def __init__(self, context: QueueContext, queue: QueueName) -> None:
        # The size limit is for mails of clients. A report of very many recipients would be refused
        # every time.
        unlimited = context.settings.queue.model_copy(update={"max_mail_bytes": sys.maxsize})
        settings = context.settings.model_copy(update={"queue": unlimited})
        publisher = context.side_publisher
        bounce_context = replace(context, queue=queue, settings=settings, publisher=publisher)
        self._queue = queue
        self._broker = context.stores.rabbitmq
        self._blobs = context.blobs
        self._clock = context.clock
        self._enqueuer = Enqueuer(bounce_context, Delays(bounce_context))
        self._name = context.settings.smtp_in.hostname or socket.getfqdn()

    async def report(
        self, item: QueuedMail, failures: Sequence[Failure], content: bytes | None = None
    ) -> bool:
        """Enqueues one report of these recipients. Without `content` loads the mail's header.

        False when no report is possible: the sender is null, none can be made of the mail (logged),
        or the bounce queue was deleted. Raises StoreUnavailable, or BadSetting for a changed
        password: call it again. After a crash a sender gets two reports rather than none.
        """
        try:
            queued = await self._build_and_enqueue(item, failures, content)
        except (TakenOver, BadSetting):
            raise
        except Exception as error:  # no error may hold the mail for ever
            why = type(error).__name__
            if isinstance(error, TryAgain):
                if await asyncio.to_thread(self._broker.exists, self._queue):
                    raise
                why = f"there is no queue {self._queue!r} (MAILSLICE_WORKER_BOUNCE_QUEUE)"
            extra = about("report_failed", item.enqueue_id)
            text = "no report of %d recipients of %s can be made: %s"
            log.warning(text, len(failures), item.enqueue_id, why, extra=extra)
            log.debug("no report can be made", exc_info=error)  # it may name addresses
            return False
        if queued is None:
            return False
        crash.point("report:enqueued")
        text = "the sender of %s is told of %d recipients by %s"
        extra = about("report", item.enqueue_id, report=str(queued.enqueue_id))
        log.info(text, item.enqueue_id, len(failures), queued.enqueue_id, extra=extra)
        return True

    async def close(self) -> None:
        await self._enqueuer.close()

    async def _build_and_enqueue(
        self, item: QueuedMail, failures: Sequence[Failure], content: bytes | None
    ) -> QueuedMail | None:
        header = content or None
        if header is None and item.mail.sender:
            with suppress(ContentMissing):
                header = await self._blobs.get(item.header_blob_id)
        build = partial(
            report_of, item.mail, failures, header, reporter=self._name, now=self._clock()
        )
        # Building takes a sixth of a millisecond a recipient: many would block the loop.
        made = build() if len(failures) <= _MAX_BUILT_ON_LOOP else await asyncio.to_thread(build)
        return None if made is None else await self._enqueuer.enqueue(*made)
