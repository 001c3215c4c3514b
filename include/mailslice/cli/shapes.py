"""Model objects as the JSON objects that commands print; tables show a choice of the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from mailslice.codec.addresses import NULL_SENDER
from mailslice.codec.shown import shown
from mailslice.model.mail import Mail, RecipientHeader, ViewRow

if TYPE_CHECKING:
    from mailslice.model.configuration import ViewConfiguration
    from mailslice.queue.dead_letters import Judged

MAIL_COLUMNS = (
    "enqueueId",
    "name",
    "sender",
    "recipients",
    "state",
    "enqueuedTime",
    "nextDelivery",
    "slice",
)


DEAD_COLUMNS = ("position", "enqueueId", "name", "cause", "reason", "diedAt", "redrives", "deleted")


def attributes(mail: Mail) -> dict[str, str]:
    """Attribute names and their JSON, as text: mailslice carries attributes through without reading them."""
    return {name: value.decode("utf-8", "replace") for name, value in mail.attributes.items()}


def from_to(mail: Mail) -> str:
    """Sender and the first recipients in one line, safe to show."""
    more = f" and {len(mail.recipients) - 3} more" if len(mail.recipients) > 3 else ""
    return shown(f"{mail.sender or NULL_SENDER} -> {', '.join(mail.recipients[:3])}{more}")


def recipient_headers(headers: tuple[RecipientHeader, ...]) -> list[dict[str, str]]:
    """Headers that only one recipient gets."""
    return [
        {"recipient": header.recipient, "name": header.name, "value": header.value}
        for header in headers
    ]


def view_row(row: ViewRow, next_delivery: datetime | None = None) -> dict[str, object]:
    """A mail of the view. `nextDelivery`: when a delayed mail is due, else null."""
    mail = row.item.mail
    return {
        "enqueueId": row.enqueue_id,
        "name": mail.name,
        "sender": mail.sender,
        "recipients": list(mail.recipients),
        "state": mail.state,
        "enqueuedTime": row.enqueued_time,
        "lastUpdated": mail.last_updated,
        "nextDelivery": next_delivery,
        "slice": row.place.slice_start,
        "bucket": row.place.bucket,
        "headerBlobId": row.item.header_blob_id,
        "bodyBlobId": row.item.body_blob_id,
        "errorMessage": mail.error_message,
        "remoteAddr": mail.remote_addr,
        "remoteHost": mail.remote_host,
        "attributes": attributes(mail),
        "perRecipientHeaders": recipient_headers(mail.per_recipient_headers),
    }


def dead_letter(judged: Judged) -> dict[str, object]:
    """A dead letter. What is null is not known; a letter that is no mail has no id, and its problem is the reason."""
    letter = judged.letter
    return {
        "position": letter.position,
        "enqueueId": letter.enqueue_id,
        "name": letter.name,
        "sender": letter.sender,
        "cause": judged.cause,
        "reason": letter.problem or letter.reason,
        "diedAt": letter.died_at,
        "redrives": judged.redrives,
        "deleted": judged.marked,
        "bytes": letter.size,
    }


def configuration(value: ViewConfiguration | None) -> Mapping[str, object] | None:
    """A configuration of the view; null when there is none."""
    if value is None:
        return None
    return {
        "sliceWindow": value.slice_window,
        "bucketCount": value.bucket_count,
        "updateBrowseStartPace": value.browse_start_pace,
    }
