"""Reports of failed recipients (RFC 3464), where MAILSLICE_WORKER_BOUNCE_QUEUE is set.

Killed and begun again it tells twice rather than never.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING
from uuid import uuid4

from mailslice.admin.enqueue import enter
from mailslice.codec.reports import in_doubt, report_of
from mailslice.model.clock import Clock
from mailslice.model.errors import BadInput, ContentMissing
from mailslice.model.mail import BlobId, EnqueueId, QueuedMail, QueueName

if TYPE_CHECKING:
    from mailslice.stores import Stores

log = logging.getLogger(__name__)


def send_bounce(stores: Stores, item: QueuedMail, clock: Clock) -> bool:
    """Enqueue a report of the recipients of `item`.

    False when nobody is to be told, or can be: the null sender, or one that is no address.
    """
    settings = stores.settings
    if settings.worker.bounce_queue is None:
        return False
    reporter = settings.smtp_in.hostname or socket.getfqdn()
    failures = [in_doubt(recipient) for recipient in item.mail.recipients]
    extra = {"enqueue_id": str(item.enqueue_id)}
    try:
        made = report_of(item.mail, failures, _header(stores, item), reporter=reporter, now=clock())
    except BadInput as error:
        extra["action"] = "report_failed"
        log.warning("no report of %s: %s", item.enqueue_id, error, extra=extra)
        return False
    if made is None:
        return False
    mail, content = made
    new = QueuedMail(EnqueueId(uuid4()), mail, BlobId(""), BlobId(""))
    enter(stores, QueueName(settings.worker.bounce_queue), new, content, clock)
    count, extra = len(failures), {**extra, "action": "report", "report": str(new.enqueue_id)}
    words = "the sender of %s is told of %d recipients by %s"
    log.info(words, item.enqueue_id, count, new.enqueue_id, extra=extra)
    return True


def _header(stores: Stores, item: QueuedMail) -> bytes | None:
    try:
        return stores.blobs.get(item.header_blob_id)
    except ContentMissing:
        return None
