"""The message of a mail's next attempt, which replaces the one that was delivered."""

from dataclasses import replace
from datetime import timedelta

from mailslice.codec import message as codec
from mailslice.codec.headers import headers_of, partition_in
from mailslice.model import crash
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import QueuedMail, ViewRow
from mailslice.model.names import HEADER_BUCKET, HEADER_SLICE
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.deleted_check import is_open, row_of
from mailslice.worker.io.message_copy import MessageCopy

_MAX_ROW_READS = 64
"""Most reads for a delayed mail's row, newest slice first. After these no partition is named."""


def narrowed(item: QueuedMail, recipients: tuple[str, ...]) -> QueuedMail:
    """The mail with only these of its recipients; the same object if these are all."""
    if recipients == item.mail.recipients:
        return item
    return replace(item, mail=replace(item.mail, recipients=recipients))


async def publish_retry(
    context: QueueContext,
    delays: Delays,
    message: Message,
    item: QueuedMail,
    *,
    after: timedelta | None,
    headers: dict[str, object],
    fewer_recipients: bool = False,
    has_message: bool = True,
    held: bool = False,
    answer: str = "",
) -> None:
    """Publishes `message` for the recipients of `item`, at once or `after` a delay.

    A delayed message names the partition of its row, which shows later if the mail was cleaned. A
    missing row is written again while no cleanup can have dropped it. After that the message names
    no partition: a queue of mailslice alone treats its mail as cleaned. `has_message`, `held`,
    `answer`: as in `Delays.schedule`.
    """
    now, alone = context.clock(), not context.settings.queue.shared
    # A message of James has no timestamp: the mail's age counts from its first retry.
    timestamp = message.timestamp or now
    partition = partition_in(message.headers)
    if fewer_recipients or after is not None:
        limit = None if fewer_recipients else _MAX_ROW_READS
        row = await row_of(context, item, partition, limit=limit)
        if row is not None:
            headers |= headers_of(row.partition)
            if fewer_recipients:
                await _rewrite_row(context, row, item.mail.recipients)
        elif after is not None and alone and partition is not None and is_open(context, partition):
            restored = ViewRow(context.queue, partition, timestamp, item)
            await context.bridge.rows(context.tables.written.insert_future(restored))
        elif after is not None:
            headers.pop(HEADER_SLICE, None)
            headers.pop(HEADER_BUCKET, None)
    copy = MessageCopy(codec.encode(item), headers, timestamp)
    if after is None:
        await context.publish(copy)
    else:
        due = context.clock() + after
        await delays.schedule(
            item.enqueue_id, copy, due, has_message=has_message, held=held, answer=answer
        )


async def _rewrite_row(context: QueueContext, row: ViewRow, recipients: tuple[str, ...]) -> None:
    """Writes the remaining recipients to the view. Creates no missing row: it was cleaned."""
    fewer = replace(row, item=narrowed(row.item, recipients))
    for table in context.tables.existing:
        await context.bridge.rows(table.replace_future(fewer))
        crash.point("retry:row-written")
    now = await row_of(context, row.item, row.partition)
    if now is not None and now.item.mail.recipients != recipients:  # an LWT has Paxos' write time
        raise StoreUnavailable(f"row {row.enqueue_id} was written by a clock that is ahead")
