"""Deletions in tables that only benchmarks and tests make; the product never calls them."""

import time
from collections.abc import Iterable, Iterator

from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.ids import IDS_A_REQUEST, id_batches, pack, unpack
from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST, split

_RANGES, _SHARDS = 32, 16


def drop_marks(marks: DeletedMails, queue: QueueName, ids: Iterable[EnqueueId]) -> None:
    """Deletes the marks of these mails. Does not check whether a row still needs its mark."""
    marks.drop_packed(queue, map(pack, batches(ids, IDS_A_REQUEST)))


def drop_all_marks(marks: DeletedMails, queue: QueueName) -> None:
    """Deletes every mark of the queue, page by page: memory does not grow with their number."""
    for page in _pages(marks, queue):
        marks.drop_packed(queue, id_batches(page))


def marked_ids(marks: DeletedMails, queue: QueueName) -> set[EnqueueId]:
    """Every marked id of the queue: a scan of the whole table."""
    return {one for page in _pages(marks, queue) for one in unpack(page)}


def _pages(marks: DeletedMails, queue: QueueName) -> Iterator[bytes]:
    return marks.packed_ids_of(queue, split(LOWEST, HIGHEST, _RANGES))


def delete_delayed(
    stores: Stores, queue: QueueName, enqueue_id: EnqueueId, written_us: int = 0
) -> None:
    """Deletes the row of a delayed mail that has the write time `written_us` (microseconds)."""
    table = stores.own.delayed_mails
    cql = (
        "DELETE FROM {table} USING TIMESTAMP ? WHERE queuename = ? AND shard = ? AND enqueueid = ?"
    )
    at_us = max(time.time_ns() // 1000, written_us + 1)
    key = [queue, enqueue_id.int % _SHARDS, enqueue_id]
    stores.cassandra.execute(table.prepare_statement(cql), [at_us, *key])


def delete_sample(stores: Stores, queue: QueueName) -> None:
    """Deletes the record of when the queue was last seen empty."""
    table = stores.own.queue_samples
    delete = table.prepare_statement("DELETE FROM {table} WHERE queuename = ?")
    stores.cassandra.execute(delete, [queue])
