"""A row of enqueuedMailsV3 or V4, which have the same columns.

V3's collections are not frozen, so an empty one is read as null. Null means empty here, as in
James. Cassandra's timestamps are milliseconds: `lastUpdated` loses smaller digits.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

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

COLUMNS = tuple(
    """
    queuename timerangestart bucketid enqueueid attributes bodyblobid enqueuedtime errormessage
    headerblobid lastupdated name perrecipientspecificheaders recipients remoteaddr remotehost
    sender state
    """.split()
)
"""Column names, in the order of `to_row` and of the statements."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def epoch_ms(instant: datetime) -> int:
    """Milliseconds since the epoch, floored, as a Cassandra timestamp has them."""
    return (instant - _EPOCH) // _MILLISECOND


def epoch_us(instant: datetime) -> int:
    """Microseconds since the epoch, as a write time of Cassandra has them."""
    return (instant - _EPOCH) // timedelta(microseconds=1)


def instant(value: datetime | int) -> datetime:
    """The aware UTC datetime of the driver's naive datetime, or of milliseconds since the epoch."""
    if isinstance(value, int):
        return _EPOCH + value * _MILLISECOND
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def to_row(row: ViewRow) -> dict[str, object]:
    """Column -> driver value, in the order of COLUMNS; timestamps as integers."""
    item, mail = row.item, row.item.mail
    return {
        "queuename": row.queue,
        "timerangestart": epoch_ms(row.partition.slice_start),
        "bucketid": row.partition.bucket,
        "enqueueid": item.enqueue_id,
        "attributes": dict(mail.attributes),
        "bodyblobid": item.body_blob_id,
        "enqueuedtime": epoch_ms(row.enqueued_time),
        "errormessage": mail.error_message,
        "headerblobid": item.header_blob_id,
        "lastupdated": None if mail.last_updated_ns is None else mail.last_updated_ns // 1_000_000,
        "name": mail.name,
        "perrecipientspecificheaders": [
            (header.recipient, header.name, header.value) for header in mail.per_recipient_headers
        ],
        "recipients": list(mail.recipients),
        "remoteaddr": mail.remote_addr,
        "remotehost": mail.remote_host,
        "sender": mail.sender,
        "state": mail.state,
    }


def from_row(row: Mapping[str, Any] | Any) -> ViewRow:
    """The row from a mapping, or from a tuple in the order of COLUMNS. Any column may be null."""
    values: Any = [row[column] for column in COLUMNS] if isinstance(row, Mapping) else row
    queue, start, bucket, enqueue_id, attributes, body, enqueued, error, header, *rest = values
    updated, name, specific, recipients, addr, host, sender, state = rest
    mail = Mail(
        name=name or "",
        sender=sender,
        recipients=tuple(recipients or ()),
        state=state,
        error_message=error,
        last_updated_ns=None if updated is None else epoch_ms(instant(updated)) * 1_000_000,
        attributes={key: bytes(value) for key, value in attributes.items()} if attributes else {},
        remote_addr=addr,
        remote_host=host,
        per_recipient_headers=tuple(RecipientHeader(*header) for header in specific or ()),
    )
    item = QueuedMail(EnqueueId(enqueue_id), mail, BlobId(header or ""), BlobId(body or ""))
    partition = Partition(instant(start), bucket)
    at = partition.slice_start if enqueued is None else instant(enqueued)
    return ViewRow(QueueName(queue), partition, at, item)
