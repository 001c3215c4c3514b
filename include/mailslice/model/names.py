"""All names on the wire: RabbitMQ's, and Cassandra's in lower case. Only this file spells them."""

import hashlib
import re
from enum import StrEnum
from urllib.parse import quote

from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName

JAMES_PREFIX = "JamesMailQueue"
"""Prefix of the exchanges and queues of James' mail queues."""
EXCHANGE_PREFIX = f"{JAMES_PREFIX}-exchange-"
WORK_QUEUE_PREFIX = f"{JAMES_PREFIX}-workqueue-"
NO_QUEUE_NAME = "-"
"""Stands for a queue's name in run folders, ledger and command lines where there is no queue."""
ROUTING_KEY = ""
OWN_PREFIX = "mailslice-"
"""Prefix of mailslice's own exchanges and queues."""
_LONGEST_FILE_NAME = 160
"""Characters of a quoted queue name in a file name, which has other parts, too."""

HEADER_DEAD_LETTER_ROUTING_KEY = "x-dead-letter-routing-key"
"""James sets it to "" on each publish; RabbitMQ ignores it."""
HEADER_SLICE = "x-mailslice-slice"
"""Slice start of the row, in ms since the epoch (AMQP long)."""
HEADER_BUCKET = "x-mailslice-bucket"
HEADER_DELAY_TOKEN = "x-mailslice-token"  # noqa: S105 - a random id, not a secret
HEADER_REDRIVE_COUNT = "x-redrive-count"
HEADER_REASON = "x-mailslice-reason"
HEADER_DIED = "x-mailslice-died"
"""On a dead letter that a worker published: when, in seconds since the epoch (AMQP long). RabbitMQ
4 ignores an `x-death` that a client wrote."""
HEADER_FAILURES = "x-mailslice-failures"
"""Failed attempts so far. Present, at least as 0, once the mail may have been in a handler."""
HEADER_THROTTLED = "x-mailslice-throttled"
"""1: the mail was delayed because of a destination's limit, and has waited for its slot."""
HEADER_DELIVERY_COUNT = "x-delivery-count"
"""RabbitMQ's, on quorum queues: returns. Above the limit it dead-letters or drops the message."""
HEADER_PARKED = "x-mailslice-parked"
"""How often the mail was parked since it was last published; 1 after a lease whose worker died.
A message with this header counts as redelivered."""
HEADER_FAULTS = "x-mailslice-faults"
"""How many of these rounds ended by a fault of mailslice, while other mails could be prepared."""
HEADER_DOUBT = "x-mailslice-doubt"
"""Which step of which other worker's stage marks the mail waits for, and since when (ms)."""
PARK_SECONDS = 60
"""TTL of the park queue. It is fixed, as the TTL of a declared queue cannot change."""


class RabbitNames:
    """RabbitMQ's names for a mail queue: James' four, and mailslice's for delays and parking."""

    def __init__(self, queue: QueueName) -> None:
        self.queue = queue
        self.exchange = f"{EXCHANGE_PREFIX}{queue}"
        self.work_queue = f"{WORK_QUEUE_PREFIX}{queue}"
        self.dead_letter_exchange = f"{JAMES_PREFIX}-dead-letter-exchange-{queue}"
        self.dead_letter_queue = f"{JAMES_PREFIX}-dead-letter-queue-{queue}"
        self.hop_exchange = f"mailslice-hop-exchange-{queue}"
        self.hop_queue = f"mailslice-hop-queue-{queue}"
        self.park_queue = f"mailslice-park-{PARK_SECONDS}s-{queue}"
        """Holds mails for which a store did not answer. They expire into the work queue."""

    def delay_queue(self, seconds: int) -> str:
        """The level that holds a message for `seconds` before it goes to the hop queue."""
        return f"mailslice-delay-{seconds}s-{self.queue}"

    def is_delay_queue(self, name: str) -> bool:
        """Whether `name` is a delay level of this queue. Rejects other queues' names quickly."""
        seconds = re.search(r"\d+", name) if name.endswith(f"s-{self.queue}") else None
        return seconds is not None and name == self.delay_queue(int(seconds[0]))


class QueueTable(StrEnum):
    """The two tables of the view."""

    V3 = "v3"
    V4 = "v4"

    @property
    def cql(self) -> str:
        return f"enqueuedmails{self.value}"


DELETED_MAILS = "deletedmailsv2"
BROWSE_START = "browsestart"
CONTENT_START = "contentstart"
EVENT_STORE = "eventstore"
MAILBOX = "mailbox"
MAILBOX_COUNTERS = "mailboxcounters"
IMAP_UID_TABLE = "imapuidtable"
"""Messages of mailboxes by message id: the source of truth."""
MESSAGE_ID_TABLE = "messageidtable"
"""The same messages by mailbox: a projection, which James reads."""
MODSEQ = "modseq"
"""The highest modSeq that James gave out in each mailbox."""
CONFIGURATION_AGGREGATE = "CassandraMailQueueViewConfiguration"
CONFIGURATION_EVENT_TYPE = "cassandra-mail-queue-view-configuration"


def queue_name(text: str) -> QueueName:
    """`text` as a queue name. Raises BadInput. Of RabbitMQ's 255 bytes a prefix takes up to 36."""
    if not is_queue_name(text):
        why = f", and {NO_QUEUE_NAME!r} alone stands for no queue" if text == NO_QUEUE_NAME else ""
        raise BadInput(
            f"queue name {text!r}: allowed are 1 to 200 bytes of UTF-8 without '/' or control "
            f"characters{why}"
        )
    return QueueName(text)


def is_queue_name(text: str) -> bool:
    """Whether mailslice works on a queue of this name. RabbitMQ itself allows any name."""
    if not text or text == NO_QUEUE_NAME or is_broken(text) or "/" in text:
        return False
    return len(text.encode()) <= 200 and not any(ord(c) < 32 or ord(c) == 127 for c in text)


def file_name(queue: str) -> str:
    """A queue's name, quoted for file names. A long one is cut and ends in a digest."""
    quoted = quote(queue, safe="").replace(".", "%2E")
    if len(quoted) <= _LONGEST_FILE_NAME:
        return quoted
    digest = hashlib.blake2s(queue.encode(), digest_size=8).hexdigest()
    return f"{quoted[: _LONGEST_FILE_NAME - 17]}-{digest}"


def is_broken(text: str) -> bool:
    """Whether `text` has surrogates: they stand for bytes that are no UTF-8. No store takes it."""
    return any("\ud800" <= c <= "\udfff" for c in text)
