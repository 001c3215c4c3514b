"""Model objects as the JSON objects that commands print; tables show a choice of the same keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mailslice.codec.addresses import NULL_SENDER
from mailslice.codec.shown import shown
from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, Mail, Partition, QueueName, ViewRow

if TYPE_CHECKING:
    from mailslice.admin.dead_letters import ClassifiedLetter
    from mailslice.admin.mail_queue import MailQueue
    from mailslice.model.configuration import ViewConfiguration
    from mailslice.stores import Stores
    from mailslice.stores.cassandra.own import DelayState
    from mailslice.stores.rabbitmq.delivery_limits import QueueLimit

_ENVELOPE = ("enqueueId", "name", "sender", "recipients", "state")
_TRIES = ("nextDelivery", "attempts", "lastAnswer")
MAIL_COLUMNS = (*_ENVELOPE, "enqueuedTime", *_TRIES, "slice")
DEAD_COLUMNS = ("position", "enqueueId", "name", "cause", "reason", "diedAt", "redrives", "deleted")
PRESENT, LOST = "present", "content lost"
_AT_ONCE = 100


def attributes(mail: Mail) -> dict[str, str]:
    """Attribute names and their JSON, as text, never parsed."""
    return {name: value.decode("utf-8", "replace") for name, value in mail.attributes.items()}


def from_to(mail: Mail) -> str:
    """Sender and the first recipients in one line, safe to show."""
    more = f" and {len(mail.recipients) - 3} more" if len(mail.recipients) > 3 else ""
    return shown(f"{mail.sender or NULL_SENDER} -> {', '.join(mail.recipients[:3])}{more}")


def envelope(enqueue_id: EnqueueId, mail: Mail) -> dict[str, object]:
    """Id, name, sender, recipients and state of a mail."""
    values = (enqueue_id, mail.name, mail.sender, list(mail.recipients), mail.state)
    return dict(zip(_ENVELOPE, values, strict=True))


def view_row(
    row: ViewRow, state: DelayState | None = None, attempts: int | None = None
) -> dict[str, Any]:
    """A mail of the view. `nextDelivery`: when a delayed mail is due, else null.

    `attempts`: how many began; `lastAnswer`: to the last that failed. Null is unknown.
    """
    mail = row.item.mail
    if attempts is None and state is not None:
        attempts = state.failures
    return envelope(row.enqueue_id, mail) | {
        "enqueuedTime": row.enqueued_time,
        "lastUpdated": mail.last_updated,
        "nextDelivery": state.due if state is not None else None,
        "attempts": attempts,
        "lastAnswer": (state.answer or None) if state is not None else None,
        "slice": row.partition.slice_start,
        "bucket": row.partition.bucket,
        "headerBlobId": row.item.header_blob_id,
        "bodyBlobId": row.item.body_blob_id,
        "errorMessage": mail.error_message,
        "remoteAddr": mail.remote_addr,
        "remoteHost": mail.remote_host,
        "attributes": attributes(mail),
        "perRecipientHeaders": [asdict(header) for header in mail.per_recipient_headers],
    }


def dead_letter(classified: ClassifiedLetter) -> dict[str, object]:
    """A dead letter. Null is unknown; an undecodable one has no id, and its problem as reason."""
    letter = classified.letter
    return {
        "position": letter.position,
        "enqueueId": letter.enqueue_id,
        "name": letter.name,
        "sender": letter.sender,
        "cause": classified.cause,
        "reason": letter.problem or letter.reason,
        "diedAt": letter.died_at,
        "redrives": classified.redrives,
        "deleted": classified.marked,
        "bytes": letter.size,
    }


def queue_limit(limit: QueueLimit) -> dict[str, object]:
    """A RabbitMQ queue, its delivery limit, and the remedy for mails that return more often."""
    return {
        "queue": limit.queue,
        "type": limit.kind,
        "deliveryLimit": limit.limit,
        "setBy": limit.source,
        "atLimit": limit.at_limit,
        "remedy": limit.remedy,
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


def with_next_delivery(
    stores: Stores, queue: QueueName, rows: Iterable[ViewRow]
) -> Iterator[dict[str, Any]]:
    """The rows as JSON objects with their delays and attempts, read for a hundred rows at a time.
    Creates no table. A running attempt is known from the record of a living worker.
    """
    running = {
        mail.enqueue_id: mail.attempt
        for record in stores.worker_records(queue)
        if record.is_alive
        for mail in record.in_flight
        if mail.begun and not mail.returned
    }
    for chunk in batches(rows, _AT_ONCE):
        states = stores.delay_states(queue, [row.enqueue_id for row in chunk])
        for row in chunk:
            yield view_row(row, states.get(row.enqueue_id), running.get(row.enqueue_id))


def with_content(
    stores: Stores, queue: MailQueue, rows: Iterable[dict[str, Any]]
) -> Iterator[dict[str, object]]:
    """The rows in order, with `content`: present, or lost. Leaves out mails that are done by now,
    whose content was deleted. Two requests a mail, many at once.
    """
    from mailslice.admin.evidence import contents_exist

    for chunk in batches(rows, _AT_ONCE):
        ids = [(row["headerBlobId"], row["bodyBlobId"]) for row in chunk]
        presence = list(zip(chunk, map(all, contents_exist(stores.settings, ids)), strict=True))
        lost = {
            row["enqueueId"]: Partition(row["slice"], row["bucket"])
            for row, is_present in presence
            if not is_present
        }
        live = queue.still_live(lost)
        for row, is_present in presence:
            if is_present or row["enqueueId"] in live:
                yield {**row, "content": PRESENT if is_present else LOST}
