"""Deletes mails so that they can come back: writes content, mails, the batch's row; then marks.

A kill leaves each mail either in its queue, or deleted and kept. A batch whose row does not say
`marked` was cut off: a deleted mark of its mails may be from this delete or from a completion.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from secrets import token_hex
from typing import TypeVar

from mailslice.admin.deletions import packs
from mailslice.admin.deletions.packs import KeptContent, KeptMail
from mailslice.model import crash, errors
from mailslice.model.batches import batches_by_weight
from mailslice.model.clock import Clock
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
"""Bytes of attributes in one batch, at most; one mail may have more."""
_AT_ONCE = 64


@dataclass(slots=True)
class Deletion:
    """One delete or clear: who asks for it and why, and its progress.

    `undo` False keeps nothing. `until`: when the kept mails expire; None while none is kept.
    `mails`: how many were deleted; `lost`: how many of them had no content any more.
    """

    who: str = "unknown"
    reason: str = ""
    undo: bool = True
    run: str = ""
    until: datetime | None = None
    mails: int = 0
    lost: int = 0

    def as_json(self) -> Mapping[str, object]:
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
    """Delete these mails and update `deletion` as it goes. Memory holds two batches.

    Stops at a mail that cannot be kept. Raises StoreUnavailable; for a mail that JSON cannot hold
    Refused, or MailsliceError if some are deleted; BadSetting when the own bucket is James'.
    """
    if stores.settings.own.bucket == stores.settings.s3.bucket:
        raise errors.BadSetting(
            f"MAILSLICE_OWN_BUCKET={stores.settings.own.bucket} is James' bucket; deleted mails "
            "need another, or --no-undo"
        )
    deletion.run = f"{clock():%Y%m%dT%H%M%SZ}-{token_hex(3)}"
    stores.own_blobs.ensure_bucket()
    with suppress(errors.TryAgain, errors.ClockSkew, errors.BadSetting):
        stores.cassandra.require_clock(clock)
        packs.expire(stores.own_blobs, clock())
    _Deleter(stores, queue, clock, deletion).delete(rows)


class _Deleter:
    def __init__(self, stores: Stores, queue: QueueName, clock: Clock, deletion: Deletion) -> None:
        self._stores = stores
        self._queue = queue
        self._clock = clock
        self._deletion = deletion
        self._batch = 0
        self._deleted = clock()
        self._until = self._deleted + stores.settings.admin.undo_for

    def delete(self, rows: Iterable[ViewRow]) -> None:
        """Reads the content of the next batch while it writes and marks the last one."""
        loop = LoopThread("deletions")
        loop.start()
        blobs = AsyncBlobStore(self._stores.settings.s3, self._stores.settings.s3.bucket)
        try:
            ahead = None
            for batch in batches_by_weight(rows, _MAILS, _attribute_bytes, _ROW_BYTES):
                fetching = loop.submit(_fetched(blobs, batch))
                if ahead is not None:
                    self._finish(ahead.result())
                ahead = fetching
            if ahead is not None:
                self._finish(ahead.result())
        finally:
            loop.call_soon(blobs.close)
            loop.stop()

    def _finish(self, fetched: _Fetched) -> None:
        """Keep and mark the mails that are not done or deleted by now."""
        self._batch += 1
        place = packs.key_prefix(self._queue, self._until, self._deletion.run, self._batch)
        mails = self._with_handlers(self._copied(place, fetched.mails))  # copies take a while
        ids = [mail.item.enqueue_id for mail in mails]
        marked = self._stores.tables.deleted.marked(self._queue, ids)
        mails = [mail for mail in mails if mail.item.enqueue_id not in marked]
        if not mails:
            return
        try:
            packs.write_batch(self._stores.own_blobs, place, mails, b"".join(fetched.parts))
        except errors.Undecodable as error:
            raise (errors.MailsliceError if self._deletion.mails else errors.Refused)(
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

    def _with_handlers(self, mails: Sequence[KeptMail]) -> list[KeptMail]:
        """The mails with `in_handler` set, by the workers' records and by stage marks."""
        records = self._stores.worker_records(self._queue)
        begun = {mail.enqueue_id for one in records if one.is_alive for mail in one.in_flight}
        ids = [mail.item.enqueue_id for mail in mails]
        stages = self._stores.own.mail_stages.by_ids(self._queue, ids)
        begun.update(id_ for id_, record in stages.items() if record.recipients)
        return [replace(mail, in_handler=mail.item.enqueue_id in begun) for mail in mails]

    def _copied(self, prefix: str, mails: Sequence[KeptMail]) -> list[KeptMail]:
        """The mails, after S3 has copied their large blobs: those that are not in the pack."""
        large = [mail for mail in mails if mail.content is KeptContent.COPIED]
        blobs = dict.fromkeys(blob for mail in large for blob in _blobs(mail))
        numbers = {blob: number for number, blob in enumerate(blobs)}
        failed = self._stores.own_blobs.copies(
            self._stores.settings.s3.bucket,
            {blob: packs.copy_key(prefix, number) for blob, number in numbers.items()},
        )
        for blob, why in failed.items():
            if why != MISSING:
                raise errors.StoreUnavailable(f"blob {blob} could not be copied: {why}")
        return [
            mail if mail.content is not KeptContent.COPIED else _of_copies(mail, numbers, failed)
            for mail in mails
        ]


def mark_points(ids: Iterable[EnqueueId]) -> Iterator[EnqueueId]:
    """The ids, with a crash point after each."""
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


def _attribute_bytes(row: ViewRow) -> int:
    return sum(map(len, row.item.mail.attributes.values()))


async def _fetched(blobs: AsyncBlobStore, rows: Sequence[ViewRow]) -> _Fetched:
    """The mails of the rows in any order, with the contents that go into the pack."""
    fetched = _Fetched()
    await all_ended(_fetch(blobs, row, fetched) for row in rows)
    return fetched


async def all_ended(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order. Raises the first error once all have ended."""
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
            header, body = (blob.size for blob in opened)
            size = header + body
            if max(header, body) > SMALL or fetched.size + size > _PACK_BYTES:
                kept = replace(mail, content=KeptContent.COPIED, size=size)
            else:
                parts = [b"".join([chunk async for chunk in blob.chunks()]) for blob in opened]
                packed = (KeptContent.PACKED, size, fetched.size, header, body)
                kept = KeptMail(row.item, row.enqueued_time, *packed)
                fetched.parts += parts
                fetched.size += size
    except errors.ContentMissing as error:
        extra = {"action": "content_lost", "enqueue_id": str(row.enqueue_id)}
        log.warning("a deleted mail's content is lost: %s", error, extra=extra)
        kept = mail
    fetched.mails.append(kept)
