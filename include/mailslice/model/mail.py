"""A mail and its queue entry. Times are aware UTC datetimes, except `last_updated_ns`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NewType
from uuid import UUID

from mailslice.model.errors import BadInput

QueueName = NewType("QueueName", str)
EnqueueId = NewType("EnqueueId", UUID)
"""Identity of a queue entry, new for every enqueue. A name may occur twice, an id never."""
BlobId = NewType("BlobId", str)


def parse_enqueue_id(text: str, option: str = "enqueue id") -> EnqueueId:
    """The enqueue id in `text`. Raises BadInput, which names `option`, the source of the text."""
    try:
        return EnqueueId(UUID(text))
    except ValueError:
        raise BadInput(
            f"{option}: {text[:60]!r} is not an enqueue id; allowed: a UUID, as queue browse "
            "shows it"
        ) from None


@dataclass(frozen=True, slots=True)
class RecipientHeader:
    """A header that only one recipient gets. In the view a tuple<text, text, text>."""

    recipient: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Mail:
    """Envelope and state of a mail, without its content.

    `sender` None is the null sender `<>`, which is not the empty string.
    `state` is James' processor (`root`, `transport`, `error`...).
    `attributes` maps a name to the attribute's JSON in UTF-8, whose bytes stay as they are.
    `last_updated_ns` is nanoseconds since the epoch.
    """

    name: str
    sender: str | None
    recipients: tuple[str, ...]
    state: str | None = "root"
    error_message: str | None = None
    last_updated_ns: int | None = None
    attributes: Mapping[str, bytes] = field(default_factory=dict)
    remote_addr: str | None = "127.0.0.1"
    remote_host: str | None = "localhost"
    per_recipient_headers: tuple[RecipientHeader, ...] = ()

    @property
    def last_updated(self) -> datetime | None:
        """`last_updated_ns` as a datetime, cut to microseconds."""
        if self.last_updated_ns is None:
            return None
        seconds, nanos = divmod(self.last_updated_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)


@dataclass(frozen=True, slots=True)
class QueuedMail:
    """The content of one RabbitMQ message: a mail, its enqueue id and the ids of its blobs."""

    enqueue_id: EnqueueId
    mail: Mail
    header_blob_id: BlobId
    body_blob_id: BlobId


@dataclass(frozen=True, slots=True)
class Partition:
    """The partition key of a row of the view, without the queue's name."""

    slice_start: datetime
    bucket: int


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One row of enqueuedMailsV3 or V4."""

    queue: QueueName
    partition: Partition
    enqueued_time: datetime
    item: QueuedMail

    @property
    def enqueue_id(self) -> EnqueueId:
        return self.item.enqueue_id
