"""Enqueues mails without an event loop: for administration, where mails are few.

Workers use `worker.enqueue.enqueuer`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from mailslice.codec import message as codec
from mailslice.codec.blob_ids import BlobIds
from mailslice.codec.content import split
from mailslice.codec.headers import headers_of
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.delay_levels import level_for
from mailslice.model.mail import Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import HEADER_DELAY_TOKEN, RabbitNames
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DelayedMail
from mailslice.stores.rabbitmq.blocking_publisher import publish_confirmed
from mailslice.view.configuration import Shape, view_shape


def enter(
    stores: Stores,
    queue: QueueName,
    item: QueuedMail,
    content: bytes,
    clock: Clock,
    *,
    on_row: Callable[[], None] = lambda: None,
    due: datetime | None = None,
) -> QueuedMail:
    """Enqueue the mail under the enqueue id of `item`, with fresh blobs. Returns the enqueued item.

    Writes blobs, then the row, then publishes with a confirm; into a delay level where `due` is in
    the future. Calls `on_row` before the publish. An error may leave blobs, row or message: the
    caller marks that id as deleted before it tries another id.
    """
    settings = stores.settings
    ids = BlobIds(settings.blob, clock)
    header, body = split(content)
    item = replace(item, header_blob_id=ids.new(header), body_blob_id=ids.new(body))
    stores.blobs.put(item.header_blob_id, bytes(header))
    stores.blobs.put(item.body_blob_id, bytes(body))
    now = clock()
    partition = add_rows(stores, queue, [item], view_shape(stores), now)[0].partition
    on_row()
    if due is None or due <= now:
        publish(stores, queue, item, partition, now)
    else:
        _delay(stores, queue, item, partition, now=now, due=due)
    return item


def add_rows(
    stores: Stores, queue: QueueName, items: Iterable[QueuedMail], view: Shape, now: datetime
) -> list[ViewRow]:
    """Write rows to the view for mails that are enqueued at `now`. `items`: at least one."""
    rows = [ViewRow(queue, view.partition(item.mail.name, now), now, item) for item in items]
    stores.tables.insert_starts(queue, rows[0].partition.slice_start)
    stores.tables.written.insert_many(rows)
    return rows


def _delay(
    stores: Stores,
    queue: QueueName,
    item: QueuedMail,
    partition: Partition,
    *,
    now: datetime,
    due: datetime,
) -> None:
    """Publish the copy, then write its row: a copy without a row is delivered when its level ends;
    a row without a copy never is (ADR 7).
    """
    names, token, body = RabbitNames(queue), uuid4(), codec.encode(item)
    level = level_for(due - now)
    stores.rabbitmq.declare_delays(queue, (level,))
    headers = {**headers_of(partition), HEADER_DELAY_TOKEN: str(token)}
    into = names.delay_queue(level)
    publish_confirmed(stores.settings.rabbitmq, "", body, headers, now, routing_key=into)
    crash.point("move:copied")
    row = DelayedMail(item.enqueue_id, due, token, False, partition, body, enqueued=now)
    stores.own.delayed_mails.save(queue, row)


def publish(
    stores: Stores, queue: QueueName, item: QueuedMail, partition: Partition | None, now: datetime
) -> None:
    """Publish the mail to the mail exchange, with a confirm. Its headers name its partition."""
    publish_confirmed(
        stores.settings.rabbitmq,
        RabbitNames(queue).exchange,
        codec.encode(item),
        headers_of(partition),
        now,
    )
