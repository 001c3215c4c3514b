"""CPU of the event lines of a mail, compared with the CPU of a dequeue."""

from __future__ import annotations

import os
import time
from typing import Any
from uuid import UUID

from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.names import queue_name
from mailslice.worker.events import EventLog, MailEvents, message_id_of

_ROUNDS, _MAILS = 15, 1000
_WRITTEN_AFTER = 0.08
"""Seconds until all lines are written: the log's thread writes every 0.05 s."""


def event_cost(dequeue_cpu_ms: float) -> dict[str, Any]:
    """`cpu_us` of the events attempt and delivered with a Message-ID, and `share` of a dequeue.

    Includes the writing thread. Takes the cheapest round, as other load only adds CPU.
    `dequeue_cpu_ms`: the worker's CPU for a dequeue in this run.
    """
    descriptor = os.open(os.devnull, os.O_WRONLY)
    log = EventLog(descriptor)
    mail = Mail("Mail1", "from@a.example", ("one@b.example", "two@b.example"))
    item = QueuedMail(EnqueueId(UUID(int=7)), mail, BlobId("h"), BlobId("b"))
    events = MailEvents(queue_name("spool"), "host:1:abc", log)
    header = b"Received: from a.example by b.example; then\r\n" * 10
    content = header + b"Message-ID: <a@b.example>\r\n\r\n" + b"x" * 4096
    try:
        best = min(_round(events, item, content) for _ in range(_ROUNDS))
    finally:
        log.close()
        os.close(descriptor)
    return {"cpu_us": round(best, 2), "share": round(best / (dequeue_cpu_ms * 1000), 4)}


def _round(events: MailEvents, item: QueuedMail, content: bytes) -> float:
    """CPU microseconds a mail."""
    began = time.process_time()
    for _ in range(_MAILS):
        message_id = message_id_of(content)
        events.emit("attempt", item, messageId=message_id, attempt=1, redelivered=False)
        events.emit(
            "delivered", item, messageId=message_id, attempt=1, seconds=0.1, answer="250 OK"
        )
    time.sleep(_WRITTEN_AFTER)
    return (time.process_time() - began) / _MAILS * 1e6
