"""Rows for tests."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from mailslice.model.mail import (
    BlobId,
    EnqueueId,
    Mail,
    Partition,
    QueuedMail,
    QueueName,
    RecipientHeader,
    ViewRow,
)
from mailslice.model.slices import bucket_of, slice_start

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


def row(
    queue: QueueName,
    at: datetime = NOW,
    *,
    name: str = "mail-1",
    window: timedelta = HOUR,
    buckets: int = 1,
    **mail: object,
) -> ViewRow:
    """A row in the partition that follows from its name and its time."""
    fields: dict[str, object] = {
        "name": name,
        "sender": "alice@example.org",
        "recipients": ("bob@example.net",),
    }
    item = QueuedMail(
        EnqueueId(uuid4()), Mail(**(fields | mail)), BlobId(str(uuid4())), BlobId(str(uuid4()))
    )  # type: ignore[arg-type]
    return ViewRow(queue, Partition(slice_start(at, window), bucket_of(name, buckets)), at, item)


def full_row(queue: QueueName) -> ViewRow:
    """A row with a value in every column."""
    return row(
        queue,
        sender="älice@exämple.org",
        recipients=("bob@example.net", "carol@example.net"),
        state="transport",
        error_message='first\nsecond "line" é',
        last_updated_ns=1795165687654000000,
        attributes={
            "b": b'{"serializer":"StringSerializer","value":"\xf0\x9f\x93\xa8"}',
            "a": b"\x00\xff",
        },
        remote_addr="192.0.2.7",
        remote_host="mx.example.org",
        per_recipient_headers=(
            RecipientHeader("bob@example.net", "X-One", "välue"),
            RecipientHeader("bob@example.net", "X-One", ""),
        ),
    )


def bare_row(queue: QueueName) -> ViewRow:
    """A row with null or empty values wherever they are allowed."""
    return row(queue, sender=None, recipients=(), state=None, remote_addr=None, remote_host=None)
