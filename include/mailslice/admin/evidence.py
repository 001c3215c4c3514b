"""Proofs about mails by their ids: live, done, in quarantine, with content."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from mailslice.model.batches import batches, batches_by_key
from mailslice.model.mail import BlobId, EnqueueId, Partition, QueueName, ViewRow
from mailslice.model.settings import Settings
from mailslice.model.slices import is_live
from mailslice.stores import Stores
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.stores.cassandra.tables import QueueTables

OVERDUE = timedelta(minutes=1)
"""Lateness from which a delayed mail counts as overdue. A worker publishes within a second."""
_NOT_QUARANTINED = frozenset({State.NOTED, State.RELEASED})
_AT_ONCE = 1000
K = TypeVar("K")
Partitions = Callable[[EnqueuedMails], Sequence[Partition]]
"""Returns the partitions of a queue in a table. Computing them costs a scan of the table's keys."""


def still_live(
    tables: QueueTables, queue: QueueName, window: timedelta, latest: Mapping[EnqueueId, Partition]
) -> dict[EnqueueId, ViewRow]:
    """The rows of the live mails. `latest`: id -> the partition in which the mail was last seen.

    Reads marks, then rows, then browseStart: James' clear writes browseStart, then marks, then
    deletes rows. Before browseStart, an unmarked row proves nothing.
    """
    marked = tables.deleted.marked(queue, latest)
    unmarked = ((partition, id_) for id_, partition in latest.items() if id_ not in marked)
    keys = list(batches_by_key(unmarked, _AT_ONCE))
    rows = [row for table in tables.existing for row in table.by_ids(queue, keys)]
    browse = tables.browse_starts.get(queue)
    return {
        row.enqueue_id: row
        for row in rows
        if browse is None or is_live(row.partition.slice_start, browse.value, window)
    }


def is_finished(
    tables: QueueTables,
    queue: QueueName,
    enqueue_id: EnqueueId,
    *,
    every_replica: bool = False,
    partitions: Partitions | None = None,
) -> bool:
    """Whether a mail that had a row is done or deleted: it has a mark, or neither mark nor row.

    A missing mark alone proves nothing: a cleanup, James' or ours, drops the rows of finished mails
    and then their marks. The row is looked for in every partition, also before browseStart. That is
    slow for many mails, unless `partitions` is cached. With `every_replica`, all replicas must say
    that there is no mark. Raises StoreUnavailable.
    """
    deleted = tables.deleted
    is_marked = deleted.is_marked_on_any_replica if every_replica else deleted.is_marked
    if is_marked(queue, enqueue_id):
        return True
    where = partitions or (lambda table: list(table.partitions(queue)))
    rows_by_table = (
        next(table.find(queue, where(table), enqueue_id), None) for table in tables.existing
    )
    return all(row is None for row in rows_by_table)


def is_overdue(due: datetime, now: datetime, in_delay_queues: int | None) -> bool:
    """Whether its copy is gone: overdue, and levels and hop queue are empty (None: unknown)."""
    return in_delay_queues == 0 and due + OVERDUE < now


def quarantine_reasons(stores: Stores, queue: QueueName) -> dict[EnqueueId, str]:
    """Id -> why quarantine holds the mail, in words for people. Such mails are few.

    Includes mails on their way in or out, and the new entries of releases and moves that have not
    ended. A mail with action `failed` is in delivery for its other recipients: it counts as held
    only while a run recovers it.
    """
    quarantined = [
        mail for mail in stores.own.quarantine.list(queue) if mail.state not in _NOT_QUARANTINED
    ]
    reasons = {
        mail.enqueue_id: f"in quarantine ({mail.state}) since {mail.decided:%Y-%m-%dT%H:%M:%SZ}: "
        f"{mail.why}"
        for mail in quarantined
        if mail.action != "failed" or mail.state is State.RECOVERING
    }
    for mail in (*quarantined, *stores.own.moving_mails.list(queue)):
        if mail.released_as is not None and mail.state is not State.RELEASED:
            reasons[mail.released_as] = f"being released or moved, in place of {mail.enqueue_id}"
    return reasons


def done_by_stages(
    stores: Stores, queue: QueueName, ids: Iterable[EnqueueId]
) -> dict[EnqueueId, str]:
    """Id -> what its stage marks say, of mails with no recipient left, in words for people."""
    records = stores.own.mail_stages.by_ids(queue, ids)
    return {
        id_: f"its stage marks say that it is {record.stage.value}, by worker {record.owner}"
        for id_, record in records.items()
        if record.closed
    }


def missing_content(
    settings: Settings, rows: Sequence[ViewRow]
) -> tuple[dict[EnqueueId, str], frozenset[EnqueueId]]:
    """Id -> which blobs are missing, in words, of those mails that lack any; ids of which S3 gives
    no answer.

    Raises StoreUnavailable where it answers nothing. Not inside an event loop.
    """
    contents = {row.enqueue_id: (row.item.header_blob_id, row.item.body_blob_id) for row in rows}
    parts, silent = contents_answered(settings, contents)
    return {id_: _words(part) for id_, part in parts.items() if not all(part)}, silent


def contents_answered(
    settings: Settings, contents: Mapping[K, tuple[BlobId, BlobId]]
) -> tuple[dict[K, tuple[bool, bool]], frozenset[K]]:
    """Key -> whether header blob and body blob exist; keys of which S3 gives no answer, unless a
    part is missing. Raises as `missing_content`.
    """
    unanswered: set[BlobId] = set()
    answers = contents_exist(settings, list(contents.values()), unanswered)
    parts = dict(zip(contents, answers, strict=True))
    silent = (key for key, blobs in contents.items() if not unanswered.isdisjoint(blobs))
    return parts, frozenset(key for key in silent if all(parts[key]))


def contents_exist(
    settings: Settings,
    contents: Sequence[tuple[BlobId, BlobId]],
    unanswered: set[BlobId] | None = None,
) -> list[tuple[bool, bool]]:
    """Whether the header blob and the body blob of each content exist.

    `unanswered` as in AsyncBlobStore.missing: its ids count as existing. Raises StoreUnavailable.
    Not inside an event loop.
    """
    return asyncio.run(_contents_exist(settings, contents, unanswered)) if contents else []


def _words(parts: tuple[bool, bool]) -> str:
    missing = [name for name, exists in zip(("header", "body"), parts, strict=True) if not exists]
    verb = "blobs are" if len(missing) > 1 else "blob is"
    return f"content lost: its {' and '.join(missing)} {verb} missing"


async def _contents_exist(
    settings: Settings, contents: Sequence[tuple[BlobId, BlobId]], unanswered: set[BlobId] | None
) -> list[tuple[bool, bool]]:
    blobs = AsyncBlobStore(settings.s3, settings.s3.bucket)
    answers: list[tuple[bool, bool]] = []
    for batch in batches(contents, _AT_ONCE):
        ids = {blob_id for content in batch for blob_id in content if blob_id}
        missing = await blobs.missing(ids, unanswered) | {BlobId("")}
        answers += [(header not in missing, body not in missing) for header, body in batch]
    return answers
