"""Tell the sender of recipients that failed (RFC 3464), where MAILSLICE_WORKER_BOUNCE_QUEUE is set. Killed and begun again it tells twice rather than never."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING
from uuid import uuid4

from mailslice.codec.reports import in_doubt, report_of
from mailslice.model.clock import Clock
from mailslice.model.errors import BadInput, ContentMissing
from mailslice.model.mail import BlobId, EnqueueId, QueuedMail, QueueName
from mailslice.queue.entries import enter

if TYPE_CHECKING:
    from mailslice.stores import Stores

log = logging.getLogger(__name__)


def tell_sender(stores: Stores, item: QueuedMail, clock: Clock) -> bool:
    """Enqueue a report of the recipients of `item`; False when nobody is to be told, or nobody can be: the null sender, or one that is no address."""
    queue = stores.settings.worker.bounce_queue
    if queue is None:
        return False
    name = stores.settings.smtp_in.hostname or socket.getfqdn()
    failures = [in_doubt(recipient) for recipient in item.mail.recipients]
    try:
        made = report_of(item.mail, failures, _header(stores, item), reporter=name, now=clock())
    except BadInput as error:
        log.warning(
            "no report of %s: %s",
            item.enqueue_id,
            error,
            extra={"action": "report_failed", "enqueue_id": str(item.enqueue_id)},
        )
        return False
    if made is None:
        return False
    mail, content = made
    told = enter(
        stores,
        QueueName(queue),
        QueuedMail(EnqueueId(uuid4()), mail, BlobId(""), BlobId("")),
        content,
        clock,
    )
    extra = {"action": "report", "enqueue_id": str(item.enqueue_id), "report": str(told.enqueue_id)}
    log.info(
        "the sender of %s is told of %d recipients by %s",
        item.enqueue_id,
        len(item.mail.recipients),
        told.enqueue_id,
        extra=extra,
    )
    return True


def _header(stores: Stores, item: QueuedMail) -> bytes | None:
    try:
        return stores.blobs.get(item.header_blob_id)
    except ContentMissing:
        return None
