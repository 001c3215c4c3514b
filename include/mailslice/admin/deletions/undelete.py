"""Deleted mails on their way back: new entries with fresh blobs, each mail once.

The new enqueue id is claimed before anything is written. What a kill leaves is decided as a release
from quarantine is: an entry that was handled, or that a worker has, is done; else it is marked as
deleted, so that its message is dropped, and the mail goes under another id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from mailslice.admin.deletions.entries import DeletedMail
from mailslice.admin.deletions.packs import Contents
from mailslice.admin.evidence import is_over
from mailslice.admin.leased_lock import LEASE, LeasedLock
from mailslice.codec import message
from mailslice.codec.blob_ids import BlobIds
from mailslice.codec.headers import headers_of
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.clock import Clock
from mailslice.model.errors import ContentMissing, Refused
from mailslice.model.mail import BlobId, EnqueueId, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.slices import bucket_of, slice_start
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.cassandra.own import UndeletedMail, UndeleteStep
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.view.configuration import view_shape

if TYPE_CHECKING:
    from mailslice.stores import Stores

T = TypeVar("T")
_MAILS = 250
"""Written beside each other."""
_BYTES = 16 * 1024 * 1024
"""Of content in memory, or one mail."""
_SLACK = timedelta(days=1)
"""So long a row outlives the mail that it is about."""
_NAMED = 100
_TICK = 1.0


@dataclass(slots=True)
class Undeleted:
    """What became of the mails. `ids`: new enqueue ids by the old, of the first hundred.

    `already`: brought back before. `lost`: without content. `doubtful`: perhaps delivered.
    """

    undeleted: int = 0
    already: int = 0
    lost: int = 0
    doubtful: int = 0
    ids: dict[EnqueueId, EnqueueId] = field(default_factory=dict)

    def as_json(self) -> Mapping[str, object]:
        """For answers and decisions."""
        return {
            "undeleted": self.undeleted,
            "already": self.already,
            "contentLost": self.lost,
            "mayBeDelivered": self.doubtful,
            "ids": self.ids,
        }

    def problem(self, option: str) -> str | None:
        """Why mails stay deleted, and the option that brings back those in doubt; None: none do."""
        if not (self.lost or self.doubtful):
            return None
        return (
            f"{self.lost} mails have no content any more, {self.doubtful} may have been delivered "
            f"({option} brings them back)"
        )


def undelete(
    stores: Stores,
    queue: QueueName,
    clock: Clock,
    mails: Iterable[Sequence[DeletedMail]],
    outcome: Undeleted,
    *,
    accept_duplicates: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    lease: timedelta = LEASE,
) -> None:
    """Bring these mails back into their queue; each list is of one batch. `outcome` is filled as it
    goes. Mails that may have been delivered stay, unless `accept_duplicates`.

    Raises StoreUnavailable: ask again; Refused while another undeletes mails of the queue.
    """
    import uvloop

    right = LeasedLock(stores, f"undelete/{queue}", f"undeletes mails of {queue}", sleep, lease)
    with right.held(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        way = _Way(stores, queue, clock, outcome, right=right, sleep=sleep, runner=runner)
        try:
            for batch in mails:
                some = [
                    mail
                    for mail in batch
                    if accept_duplicates or mail.is_back or not mail.may_be_delivered
                ]
                outcome.doubtful += len(batch) - len(some)
                way.bring(some)
        finally:
            way.close()


@dataclass(frozen=True, slots=True)
class _New:
    """A mail with its content, and the row that claims it."""

    mail: DeletedMail
    parts: tuple[bytes, bytes]
    claim: UndeletedMail


class _Way:
    def __init__(
        self,
        stores: Stores,
        queue: QueueName,
        clock: Clock,
        outcome: Undeleted,
        *,
        right: LeasedLock,
        sleep: Callable[[float], None],
        runner: asyncio.Runner,
    ) -> None:
        self._stores = stores
        self._queue = queue
        self._clock = clock
        self._outcome = outcome
        self._right = right
        self._sleep = sleep
        self._runner = runner
        self._shape = view_shape(stores)
        self._ids = BlobIds(stores.settings.blob, clock)
        self._blobs = AsyncBlobStore(stores.settings.s3, stores.settings.s3.bucket)
        self._publisher = Publisher(stores.settings.rabbitmq)
        self._has_starts = False

    def close(self) -> None:
        self._runner.run(self._publisher.close())
        self._blobs.close()

    def bring(self, mails: Sequence[DeletedMail]) -> None:
        """Mails of one batch."""
        if not mails:
            return
        contents = Contents(self._stores.own_blobs, mails[0].batch)
        for some in batches(mails, _MAILS):
            ready: list[tuple[DeletedMail, tuple[bytes, bytes]]] = []
            size = 0
            for mail in some:
                if mail.is_back:
                    self._outcome.already += 1
                    continue
                try:
                    parts = contents.parts(mail.kept)
                except ContentMissing:
                    self._outcome.lost += 1
                    continue
                if ready and size + mail.kept.size > _BYTES:
                    self._enter(self._claimed(ready))
                    ready, size = [], 0
                ready.append((mail, parts))
                size += mail.kept.size
            self._enter(self._claimed(ready))

    def _claimed(self, mails: Sequence[tuple[DeletedMail, tuple[bytes, bytes]]]) -> list[_New]:
        """Those that are to be entered now."""
        if not mails:
            return []
        self._right.renew()
        wanted = {mail.enqueue_id: EnqueueId(uuid4()) for mail, _ in mails}
        ttl = self._ttl([mail for mail, _ in mails])
        claims = self._stores.own.undeleted_mails.claim(self._queue, wanted, ttl)
        crash.point("undelete:claimed")
        half = []
        for one, claim in claims.items():
            if claim.step is UndeleteStep.DONE:
                self._outcome.already += 1
            elif claim.new_id != wanted[one]:
                half.append(claim)
        out = self._out(half)
        self._change([(claim, _done(claim)) for claim in out], ttl)
        for claim in out:
            self._count(claim)
        anew = [
            (
                one,
                UndeletedMail(
                    one.enqueue_id,
                    UndeleteStep.CLAIMED,
                    wanted[one.enqueue_id],
                    (*one.voided, one.new_id),
                ),
            )
            for one in half
            if one not in out
        ]
        self._change(anew, ttl)
        voided = [one for _, after in anew for one in after.voided]
        self._stores.tables.deleted.mark_many(self._queue, voided)
        claims |= {after.enqueue_id: after for _, after in anew}
        return [
            _New(mail, parts, claim)
            for mail, parts in mails
            if (claim := claims[mail.enqueue_id]).new_id == wanted[mail.enqueue_id]
        ]

    def _enter(self, mails: Sequence[_New]) -> None:
        """Blobs, rows, the record of these; the messages, the record of those."""
        if not mails:
            return
        now = self._clock()
        ttl = self._ttl([one.mail for one in mails])
        items = self._runner.run(self._put_all(mails))
        crash.point("undelete:blobs")
        rows = [ViewRow(self._queue, self._partition(item, now), now, item) for item in items]
        self._write_starts(rows[0].partition)
        self._stores.tables.written.insert_many(rows)
        crash.point("undelete:rows")
        self._right.renew()  # a slow store took a part of it
        entered = [replace(one.claim, step=UndeleteStep.ENTERED) for one in mails]
        self._change([*zip((one.claim for one in mails), entered, strict=True)], ttl)
        crash.point("undelete:entered")
        self._right.require()
        self._runner.run(self._publish_all(rows))
        crash.point("undelete:published")
        self._change([(one, _done(one)) for one in entered], ttl)
        for one in entered:
            self._count(one)
        crash.point("undelete:recorded")

    def _count(self, claim: UndeletedMail) -> None:
        self._outcome.undeleted += 1
        if len(self._outcome.ids) < _NAMED:
            self._outcome.ids[claim.enqueue_id] = claim.new_id

    def _change(
        self, changes: Sequence[tuple[UndeletedMail, UndeletedMail]], ttl: timedelta
    ) -> None:
        if not self._stores.own.undeleted_mails.change(self._queue, changes, ttl):
            raise Refused(f"somebody else undeletes mails of {self._queue} at the same time")

    def _ttl(self, mails: Sequence[DeletedMail]) -> timedelta:
        return mails[0].batch.until - self._clock() + _SLACK

    def _partition(self, item: QueuedMail, now: datetime) -> Partition:
        start = slice_start(now, self._shape.window)
        return Partition(start, bucket_of(item.mail.name, self._shape.bucket_counts[-1]))

    def _write_starts(self, partition: Partition) -> None:
        if not self._has_starts:
            tables = self._stores.tables
            tables.content_starts.insert_first(self._queue, partition.slice_start)
            tables.browse_starts.insert_first(self._queue, partition.slice_start)
            self._has_starts = True

    async def _put_all(self, mails: Sequence[_New]) -> list[QueuedMail]:
        return list(await _all(self._put(one) for one in mails))

    async def _put(self, one: _New) -> QueuedMail:
        header, body = ((self._ids.new(part), part) for part in one.parts)
        for blob_id, content in (header, body):
            await self._blobs.put(blob_id, content)
        return replace(
            one.mail.kept.item,
            enqueue_id=one.claim.new_id,
            header_blob_id=BlobId(header[0]),
            body_blob_id=BlobId(body[0]),
        )

    async def _publish_all(self, rows: Sequence[ViewRow]) -> None:
        exchange = RabbitNames(self._queue).exchange
        await _all(
            self._publisher.publish(
                exchange, message.encode(row.item), headers_of(row.partition), row.enqueued_time
            )
            for row in rows
        )

    def _out(self, half: Sequence[UndeletedMail]) -> list[UndeletedMail]:
        """Of attempts that were cut off, those whose entry was handled, or is in a worker's hands.

        A worker that was handed it a moment ago says so in its next record.
        """
        if not half:
            return []
        alive = [one for one in self._stores.worker_records(self._queue) if one.is_alive]
        if alive:
            self._sleep(max(one.every for one in alive).total_seconds() + _TICK)
        taken: set[EnqueueId] = set()
        for record in self._stores.worker_records(self._queue):
            taken.update(record.done)
            if record.is_alive:
                taken.update(mail.enqueue_id for mail in record.in_flight)
        return [one for one in half if one.new_id in taken or self._is_through(one)]

    def _is_through(self, claim: UndeletedMail) -> bool:
        """Whether the new entry is done. Without a row that was written, only a mark says so."""
        if claim.step is UndeleteStep.ENTERED:
            return is_over(self._stores.tables, self._queue, claim.new_id)
        return self._stores.tables.deleted.is_marked(self._queue, claim.new_id)


def _done(claim: UndeletedMail) -> UndeletedMail:
    return replace(claim, step=UndeleteStep.DONE)


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order. All of them end before the first error is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
