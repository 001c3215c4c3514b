"""Names on the wire, each spelled in this one file: RabbitMQ's as James declares them, Cassandra's as they are on disk (lower case)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName

_PREFIX = "JamesMailQueue"
EXCHANGE_PREFIX = f"{_PREFIX}-exchange-"
WORK_QUEUE_PREFIX = f"{_PREFIX}-workqueue-"
ROUTING_KEY = ""

HEADER_DEAD_LETTER_ROUTING_KEY = "x-dead-letter-routing-key"
"""James sets it to "" on each publish; RabbitMQ ignores it."""
HEADER_SLICE = "x-mailslice-slice"
"""Slice start of the row, in ms since the epoch (AMQP long)."""
HEADER_BUCKET = "x-mailslice-bucket"
HEADER_DELAY_TOKEN = "x-mailslice-token"  # noqa: S105 - a sequence number, not a secret
HEADER_REDRIVE_COUNT = "x-redrive-count"
HEADER_REASON = "x-mailslice-reason"


@dataclass(frozen=True, slots=True)
class RabbitNames:
    """RabbitMQ's names of one mail queue. James declares the first four; the delay names are mailslice's own."""

    queue: QueueName

    @property
    def exchange(self) -> str:
        return f"{EXCHANGE_PREFIX}{self.queue}"

    @property
    def work_queue(self) -> str:
        return f"{WORK_QUEUE_PREFIX}{self.queue}"

    @property
    def dead_letter_exchange(self) -> str:
        return f"{_PREFIX}-dead-letter-exchange-{self.queue}"

    @property
    def dead_letter_queue(self) -> str:
        return f"{_PREFIX}-dead-letter-queue-{self.queue}"

    @property
    def hop_exchange(self) -> str:
        return f"mailslice-hop-exchange-{self.queue}"

    @property
    def hop_queue(self) -> str:
        return f"mailslice-hop-queue-{self.queue}"

    def delay_queue(self, seconds: int) -> str:
        """The level that holds a message for `seconds` before it goes to the hop queue."""
        return f"mailslice-delay-{seconds}s-{self.queue}"


class QueueTable(StrEnum):
    """The two tables of the view."""

    V3 = "v3"
    V4 = "v4"

    @property
    def cql(self) -> str:
        """The table's name in Cassandra."""
        return f"enqueuedmails{self.value}"


DELETED_MAILS = "deletedmailsv2"
BROWSE_START = "browsestart"
CONTENT_START = "contentstart"
EVENT_STORE = "eventstore"
MAILBOX = "mailbox"
MAILBOX_COUNTERS = "mailboxcounters"
IMAP_UID_TABLE = "imapuidtable"
"""Messages of mailboxes by message id: the truth."""
MESSAGE_ID_TABLE = "messageidtable"
"""The same messages by mailbox: the projection that James reads."""
MODSEQ = "modseq"
"""The highest modSeq that James gave out in each mailbox."""
CONFIGURATION_AGGREGATE = "CassandraMailQueueViewConfiguration"
CONFIGURATION_EVENT_TYPE = "cassandra-mail-queue-view-configuration"


def queue_name(text: str) -> QueueName:
    """A checked queue name. RabbitMQ's short strings hold 255 bytes, of which the longest prefix takes 36."""
    if not text or len(text.encode()) > 200 or any(ord(c) < 32 or ord(c) == 127 for c in text) or "/" in text:
        raise BadInput(f"queue name {text!r}: allowed are 1 to 200 bytes without '/' or control characters")
    return QueueName(text)
