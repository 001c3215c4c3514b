"""The status of a mail at its delivery: live, done (marked), or cleaned away.

On queues that are mailslice's alone (MAILSLICE_QUEUE_SHARED=false) a cleanup drops deleted marks
with their rows. A message that is delivered after that becomes a dead letter, "cleaned". On shared
queues marks stay until the broker was seen drained. On every queue, delayed mails are checked
before they are published (`was_cleaned`): James' own cleanup drops their rows and marks, too.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from enum import Enum
from itertools import chain, islice

from mailslice.codec.row import from_row
from mailslice.model.mail import EnqueueId, Partition, QueuedMail, ViewRow
from mailslice.model.slices import bucket_of, slices_between
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.worker.io.context import QueueContext

REASON = "cleaned: its slice was cleaned, and it has neither a row nor a deleted mark"
_RECENTLY = timedelta(seconds=30)
_LATELY = timedelta(minutes=10)
"""As `_RECENTLY`, for what is dropped for good; the row's writer may be behind."""
_IN_FLIGHT = 32


class DeliveryStatus(Enum):
    """What becomes of a delivery."""

    LIVE = "handle it"
    DONE = "drop it"
    CLEANED = "dead letter"


async def delivery_status(
    context: QueueContext, item: QueuedMail, partition: Partition | None
) -> DeliveryStatus:
    """Reads the deleted mark. Where marks may have been dropped, it also searches for the row.

    A slice that is open by the current window needs no search. The search waits longer until the
    largest window ends: a worker that was not restarted writes into the slice till then.
    """
    if await context.is_marked(item.enqueue_id):
        return DeliveryStatus.DONE
    if context.settings.queue.shared or (partition is not None and is_open(context, partition)):
        return DeliveryStatus.LIVE
    is_recent = partition is not None and _over_for(context, partition) < _RECENTLY
    for pause in context.tuning.recent_row_reads if is_recent else context.tuning.row_reads:
        await _wait(context, pause)
        if await row_of(context, item, partition) is not None:
            return DeliveryStatus.LIVE
    return (
        DeliveryStatus.DONE if await context.is_marked(item.enqueue_id) else DeliveryStatus.CLEANED
    )


def is_open(context: QueueContext, partition: Partition) -> bool:
    """Whether no cleanup can have run there: the slice is open by the smallest window."""
    latest = context.clock() + context.settings.duty.grace / 4  # this clock may be so far behind
    return latest < partition.slice_start + context.shape.window


def _over_for(context: QueueContext, partition: Partition) -> timedelta:
    """Time since its slice ended by the largest window any node may use; negative: open."""
    return context.clock() - (partition.slice_start + context.shape.largest_window)


async def was_cleaned(
    context: QueueContext, enqueue_id: EnqueueId, *where: Partition | None
) -> bool:
    """Whether an unmarked mail was cleaned away: none of these partitions has its row.

    Callers look for the mark first, because cleanups delete rows first. `where`: the partitions of
    its message and its delay. False in doubt: none is known (a message of James), or the slice is
    open by the largest window (ADR 35). A row before browseStart counts: James' clear moves
    browseStart first. Raises StoreUnavailable.
    """
    partitions = {partition for partition in where if partition is not None}
    if not partitions:
        return False
    ended = _over_for(context, max(partitions, key=lambda partition: partition.slice_start))
    if ended < timedelta(0):
        return False
    for pause in context.tuning.recent_row_reads if ended < _LATELY else context.tuning.row_reads:
        await _wait(context, pause)
        if await _is_in_one(context, partitions, enqueue_id):
            return False
    return True


async def _wait(context: QueueContext, pause: float) -> None:
    """Pauses; then looks for tables of a migration, as no known table had the row."""
    await asyncio.sleep(pause)
    if pause:
        await asyncio.to_thread(context.tables.extend)


async def _is_in_one(
    context: QueueContext, partitions: Iterable[Partition], enqueue_id: EnqueueId
) -> bool:
    """Whether a partition has the id. Compares ids only: an unreadable row counts, too."""
    ids = [(partition, [enqueue_id]) for partition in partitions]

    def has_row(rows: EnqueuedMails) -> bool:
        return any(page for _, page in rows.existing_ids(context.queue, ids))

    reads = (asyncio.to_thread(has_row, rows) for rows in context.tables.existing)
    return any(await asyncio.gather(*reads))


async def row_of(
    context: QueueContext, item: QueuedMail, partition: Partition | None, limit: int | None = None
) -> ViewRow | None:
    """The mail's row in V3 or V4, by `limit` reads at most (None: any number). Without a partition
    it reads slices from the newest to browseStart, in the bucket of the mail's name.
    """
    partitions = [] if partition is None else [partition]
    if partition is None:
        partitions = await asyncio.to_thread(_possible_partitions, context, item)
    queue, enqueue_id = context.queue, item.enqueue_id
    lookups = islice(((rows, at) for at in partitions for rows in context.tables.existing), limit)
    at_once = 2
    while batch := list(islice(lookups, at_once)):
        at_once = min(2 * at_once, _IN_FLIGHT)  # nearly every row is in the newest slices
        reads = (context.bridge.rows(rows.row_future(queue, at, enqueue_id)) for rows, at in batch)
        if rows := [*chain.from_iterable(await asyncio.gather(*reads))]:
            return from_row(rows[0])
    return None


def _possible_partitions(context: QueueContext, item: QueuedMail) -> list[Partition]:
    """The newest slice first, where most mails are; the name's bucket by every past count."""
    first = context.tables.browse_starts.get(context.queue)
    if first is None:
        return []
    buckets = {bucket_of(item.mail.name, count) for count in context.shape.bucket_counts}
    starts = list(slices_between(first.value, context.clock(), context.shape.window))
    return [Partition(start, bucket) for start in reversed(starts) for bucket in buckets]
