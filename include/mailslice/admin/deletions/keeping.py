"""Deletes mails so that they can come back: content, mails, a row of the batch; then the marks.

A kill leaves a mail in its queue, or deleted and kept. A batch whose row does not say `marked` was
cut off: which of its mails were deleted by it, and which were delivered since, nobody knows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from secrets import token_hex
from typing import TypeVar

from mailslice.admin.deletions.packs import (
    KeptContent,
    KeptMail,
    copy_key,
    expire,
    place_of,
    write_batch,
)
from mailslice.admin.holds import MOST_SKEW, SKEWED
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.errors import (
    BadSetting,
    ClockSkew,
    ContentMissing,
    MailsliceError,
    Refused,
    StoreUnavailable,
    TryAgain,
    Undecodable,
)
from mailslice.model.mail import BlobId, EnqueueId, QueueName, ViewRow
from mailslice.stores import Stores
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.small import SMALL
from mailslice.stores.blobs.store import MISSING
from mailslice.stores.cassandra.own import DeletedBatch
from mailslice.stores.loop_thread import LoopThread

T = TypeVar("T")
log = logging.getLogger(__name__)
_MAILS = 500
_PACK_BYTES = 16 * 1024 * 1024
_ROW_BYTES = 4 * 1024 * 1024
"""Of the attributes in one batch."""
_AT_ONCE = 64


@dataclass(slots=True)
class Deletion:
    """One delete or clear: who asks for it and why, and how far it has come.

    `undo` False keeps nothing. `until`: when the mails expire; None while none was kept. `lost`:
    those of `mails` that had no content any more.
    """

    who: str = "unknown"
    reason: str = ""
    undo: bool = True
    run: str = ""
    until: datetime | None = None
    mails: int = 0
    lost: int = 0

    def as_json(self) -> Mapping[str, object]:
        """For answers and decisions."""
        return {
            "deleted": self.mails,
            "run": self.run if self.until else None,
            "restorableUntil": self.until,
            "contentLost": self.lost,
        }


@dataclass(slots=True)
class _Fetched:
    mails: list[KeptMail] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))


def delete_and_keep(
    stores: Stores, queue: QueueName, clock: Clock, rows: Iterable[ViewRow], deletion: Deletion
) -> None:
    """Delete these mails; `deletion` is filled as it goes. Memory holds two batches.

    Raises StoreUnavailable when what is deleted cannot be kept: nothing more is deleted.
    """
    if stores.settings.own.bucket == stores.settings.s3.bucket:
        raise BadSetting(
            f"MAILSLICE_OWN_BUCKET={stores.settings.own.bucket} is James' bucket; deleted mails "
            "need another, or --no-undo"
        )
    deletion.run = f"{clock():%Y%m%dT%H%M%SZ}-{token_hex(3)}"
    stores.own_blobs.ensure_bucket()
    with suppress(TryAgain, ClockSkew, BadSetting):
        stores.cassandra.require_clock(clock, MOST_SKEW, SKEWED)
        expire(stores.own_blobs, clock())
    _Keeping(stores, queue, clock, deletion).delete(rows)


class _Keeping:
    def __init__(self, stores: Stores, queue: QueueName, clock: Clock, deletion: Deletion) -> None:
        self._stores = stores
        self._queue = queue
        self._clock = clock
        self._deletion = deletion
        self._batch = 0
        self._deleted = clock()
        self._until = self._deleted + stores.settings.admin.undo_for

    def delete(self, rows: Iterable[ViewRow]) -> None:
        """While a batch is written and marked, the content of the next one is read."""
        loop = LoopThread("deletions")
        loop.start()
        blobs = AsyncBlobStore(self._stores.settings.s3, self._stores.settings.s3.bucket)
        try:
            ahead = None
            for batch in _batches(rows):
                fetching = loop.submit(_fetched(blobs, batch))
                if ahead is not None:
                    self._finish(ahead.result())
                ahead = fetching
            if ahead is not None:
                self._finish(ahead.result())
        finally:
            loop.soon(blobs.close)
            loop.stop()

    def _finish(self, fetched: _Fetched) -> None:
        """Keep the mails and mark them, but those that are done or deleted by now."""
        self._batch += 1
        place = place_of(self._queue, self._until, self._deletion.run, self._batch)
        mails = self._in_hands(self._copied(place, fetched.mails))  # copies take a while
        ids = [one.item.enqueue_id for one in mails]
        marked = self._stores.tables.deleted.marked(self._queue, ids)
        mails = [one for one in mails if one.item.enqueue_id not in marked]
        if not mails:
            return
        try:
            write_batch(self._stores.own_blobs, place, mails, b"".join(fetched.parts))
        except Undecodable as error:
            raise (MailsliceError if self._deletion.mails else Refused)(
                f"a mail of {self._queue} cannot be kept: {error}; --no-undo deletes it, too"
            ) from error
        crash.point("undo:kept")
        lost = sum(mail.content is KeptContent.LOST for mail in mails)
        row = DeletedBatch(
            run=self._deletion.run,
            number=self._batch,
            deleted=self._deleted,
            until=self._until,
            place=place,
            mails=len(mails),
            size=sum(mail.size for mail in mails),
            lost=lost,
            who=self._deletion.who,
            reason=self._deletion.reason,
        )
        self._save(row)
        crash.point("undo:noted")
        self._deletion.until = self._until
        ids = [mail.item.enqueue_id for mail in mails]
        self._stores.tables.deleted.mark_many(self._queue, mark_points(ids))
        self._deletion.mails += len(mails)
        self._deletion.lost += lost
        crash.point("delete:marked")
        self._save(replace(row, marked=True))
        crash.point("undo:marked")

    def _save(self, row: DeletedBatch) -> None:
        self._stores.own.deletions.save(self._queue, row, self._until - self._clock())

    def _in_hands(self, mails: Sequence[KeptMail]) -> list[KeptMail]:
        """With a note on those that workers have or began, as far as these have said so."""
        records = self._stores.worker_records(self._queue)
        ids = {mail.enqueue_id for one in records if one.is_alive for mail in one.in_flight}
        wanted = [mail.item.enqueue_id for mail in mails]
        stages = self._stores.own.mail_stages.by_ids(self._queue, wanted)
        ids.update(one for one, record in stages.items() if record.recipients)
        return [replace(one, in_handler=one.item.enqueue_id in ids) for one in mails]

    def _copied(self, place: str, mails: Sequence[KeptMail]) -> list[KeptMail]:
        """With copies, within the store, of the blobs that no pack holds."""
        large = [mail for mail in mails if mail.content is KeptContent.COPIED]
        blobs = dict.fromkeys(blob for mail in large for blob in _blobs(mail))
        numbers = {blob: number for number, blob in enumerate(blobs)}
        failed = self._stores.own_blobs.copies(
            self._stores.settings.s3.bucket,
            {blob: copy_key(place, number) for blob, number in numbers.items()},
        )
        for blob, why in failed.items():
            if why != MISSING:
                raise StoreUnavailable(f"blob {blob} could not be copied: {why}")
        return [
            mail if mail.content is not KeptContent.COPIED else _of_copies(mail, numbers, failed)
            for mail in mails
        ]


def mark_points(ids: Iterable[EnqueueId]) -> Iterator[EnqueueId]:
    """The ids, with a crash point behind each."""
    for enqueue_id in ids:
        yield enqueue_id
        crash.point("delete:mark-sent")


def _blobs(mail: KeptMail) -> tuple[BlobId, BlobId]:
    return mail.item.header_blob_id, mail.item.body_blob_id


def _of_copies(
    mail: KeptMail, numbers: Mapping[BlobId, int], failed: Mapping[BlobId, str]
) -> KeptMail:
    header, body = _blobs(mail)
    if header in failed or body in failed:
        return replace(mail, content=KeptContent.LOST, size=0)
    return replace(mail, header=numbers[header], body=numbers[body])


def _batches(rows: Iterable[ViewRow]) -> Iterator[list[ViewRow]]:
    """At most 500 mails, and fewer of those with large attributes."""
    batch: list[ViewRow] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(map(len, row.item.mail.attributes.values()))
        if len(batch) >= _MAILS or size >= _ROW_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _fetched(blobs: AsyncBlobStore, rows: Sequence[ViewRow]) -> _Fetched:
    """The mails of the rows in any order, with the contents of those that a pack holds."""
    fetched = _Fetched()
    await all_ended(_fetch(blobs, row, fetched) for row in rows)
    return fetched


async def all_ended(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order. All of them end before the first error is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def _fetch(blobs: AsyncBlobStore, row: ViewRow, fetched: _Fetched) -> None:
    mail = KeptMail(row.item, row.enqueued_time)
    try:
        async with fetched.at_once:
            opened = [await blobs.open(blob) for blob in _blobs(mail)]
            header, body = (one.size for one in opened)
            size = header + body
            if max(header, body) > SMALL or fetched.size + size > _PACK_BYTES:
                kept = replace(mail, content=KeptContent.COPIED, size=size)
            else:
                parts = [b"".join([chunk async for chunk in one.chunks()]) for one in opened]
                packed = (KeptContent.PACKED, size, fetched.size, header, body)
                kept = KeptMail(row.item, row.enqueued_time, *packed)
                fetched.parts += parts
                fetched.size += size
    except ContentMissing as error:
        log.warning(
            "a deleted mail's content is lost: %s",
            error,
            extra={"action": "content_lost", "enqueue_id": str(row.enqueue_id)},
        )
        kept = mail
    fetched.mails.append(kept)
