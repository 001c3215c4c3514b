"""Brings deleted mails back as new entries with fresh blobs, each mail once.

An undelete claims the new enqueue id before it writes anything. After a kill, the next one decides
as a release from quarantine does (`cut_off`): an entry that was handled, or that a worker has, is
done; any other entry is voided, and the mail is enqueued under another id.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar
from uuid import uuid4

from mailslice.admin.cut_off import CutOff, CutOffEntries
from mailslice.admin.deletions.deletion import all_ended
from mailslice.admin.deletions.entries import DeletedMail
from mailslice.admin.deletions.packs import Contents, KeptContent
from mailslice.admin.enqueue import add_rows
from mailslice.admin.leased_lock import LeasedLock
from mailslice.codec import message
from mailslice.codec.blob_ids import BlobIds
from mailslice.codec.headers import headers_of
from mailslice.model import crash
from mailslice.model.batches import batches_by_weight
from mailslice.model.clock import Clock
from mailslice.model.errors import ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, QueuedMail, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.cassandra.own import DeletedBatch, UndeletedMail, UndeleteStep
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.view.configuration import view_shape

T = TypeVar("T")
CHUNK_MAILS = 250
"""Mails of one chunk, which are written concurrently."""
_CHUNKS = 4
"""Chunks in flight at the same time."""
_BYTES = 16 * 1024 * 1024
"""Content in memory; a single mail may be larger."""
_MAX_NAMED = 100


@dataclass(slots=True)
class Undeleted:
    """Counts of mails. `ids`: old enqueue id -> new enqueue id, of the first hundred undeleted.

    `already`: brought back before. `lost`: without content. `doubtful`: perhaps delivered.
    """

    undeleted: int = 0
    already: int = 0
    lost: int = 0
    doubtful: int = 0
    ids: dict[EnqueueId, EnqueueId] = field(default_factory=dict)

    def count_lost(self, batch: DeletedBatch) -> None:
        """Count the mails of a batch whose objects are gone."""
        self.lost += batch.mails

    def as_json(self) -> Mapping[str, object]:
        return {
            "undeleted": self.undeleted,
            "already": self.already,
            "contentLost": self.lost,
            "mayBeDelivered": self.doubtful,
            "ids": self.ids,
        }

    def problem(self, option: str) -> str | None:
        """Why mails stay deleted, and the `option` for those in doubt; None when no mail stays."""
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
) -> None:
    """Bring these mails back into their queue and update `outcome` as it goes. Each list in `mails`
    is of one batch. Mails that may have been delivered stay, unless `accept_duplicates`.

    Raises StoreUnavailable (ask again), Refused while another undelete of the queue runs.
    """
    import uvloop

    lock = LeasedLock(stores, f"undelete/{queue}", f"undeletes mails of {queue}", sleep)
    with lock.held(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run = _Undelete(stores, queue, clock, outcome, lock, sleep, accept_duplicates)

        def restorable() -> Iterator[Sequence[DeletedMail]]:
            for batch in mails:
                selected = [
                    mail
                    for mail in batch
                    if accept_duplicates or mail.is_back or not mail.may_be_delivered
                ]
                outcome.doubtful += len(batch) - len(selected)
                yield selected

        runner.run(run.restore_all(restorable()))


def forecast(
    mails: Iterable[Sequence[DeletedMail]], outcome: Undeleted, *, accept_duplicates: bool
) -> None:
    """Count what `undelete` would do. Only `undelete` itself notices that kept content is gone."""
    restorable = set[EnqueueId]()
    for mail in chain.from_iterable(mails):
        if mail.is_back:
            outcome.already += 1
        elif mail.may_be_delivered and not accept_duplicates:
            outcome.doubtful += 1
        elif mail.kept.content is KeptContent.LOST:
            outcome.lost += 1
        elif mail.enqueue_id in restorable:  # two runs deleted it
            outcome.already += 1
        else:
            restorable.add(mail.enqueue_id)
    outcome.undeleted = len(restorable)


_Ready = dict[EnqueueId, tuple[DeletedMail, tuple[bytes, bytes]]]
"""Mails with their header and body."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A new entry of the queue: the mail, its header and body, the claim of its id."""

    mail: DeletedMail
    parts: tuple[bytes, bytes]
    claim: UndeletedMail


@dataclass
class _Undelete:
    """One undelete. Up to 4 chunks of mails are in flight: it writes the blobs of one while it
    writes the rows of another. All blocking calls run in one thread, so no two chunks change the
    same rows at the same time.
    """

    stores: Stores
    queue: QueueName
    clock: Clock
    outcome: Undeleted
    lock: LeasedLock
    sleep: Callable[[float], None]
    accept_duplicates: bool
    in_flight: dict[asyncio.Task[None], Sequence[DeletedMail]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = self.stores.settings
        self.thread = ThreadPoolExecutor(1, "undelete")
        self.shape = view_shape(self.stores)
        self.ids = BlobIds(settings.blob, self.clock)
        self.blobs = AsyncBlobStore(settings.s3, settings.s3.bucket)
        self.publisher = Publisher(settings.rabbitmq)

    async def restore_all(self, lists: Iterator[Sequence[DeletedMail]]) -> None:
        """Bring back `lists`, each of one batch. Raises a chunk's error once all chunks ended."""
        try:
            while (mails := await self._in_thread(next, lists, None)) is not None:
                if mails:
                    contents = Contents(self.stores.own_blobs, mails[0].batch)
                    for chunk in batches_by_weight(mails, CHUNK_MAILS, _bytes_of, _BYTES):
                        await self._wait_for_room(chunk)
                        task = asyncio.create_task(self._restore(contents, chunk))
                        self.in_flight[task] = chunk
            await all_ended(self.in_flight)
        finally:
            await asyncio.gather(*self.in_flight, return_exceptions=True)
            self.thread.shutdown()
            await self.publisher.close()
            self.blobs.close()

    async def _wait_for_room(self, chunk: Sequence[DeletedMail]) -> None:
        """Waits until the chunk fits, and no chunk in flight has one of its mails: two runs may
        have deleted one.
        """
        ids, size = {mail.enqueue_id for mail in chunk}, _size(chunk)
        while self.in_flight and (
            len(self.in_flight) >= _CHUNKS
            or size + sum(map(_size, self.in_flight.values())) > _BYTES
            or any(mail.enqueue_id in ids for other in self.in_flight.values() for mail in other)
        ):
            ended, _ = await asyncio.wait(self.in_flight, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
                del self.in_flight[task]

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *args)

    async def _restore(self, contents: Contents, mails: Sequence[DeletedMail]) -> None:
        """Claims ids, writes blobs and rows, records ENTERED, publishes, records DONE."""
        chunk = await self._in_thread(self._claim_ids, contents, mails)
        if not chunk:
            return
        items = await all_ended(map(self._write_blobs, chunk))
        crash.point("undelete:blobs")
        entered, rows = await self._in_thread(self._enter, chunk, items)
        self.lock.require()
        await self._publish_all(rows)
        crash.point("undelete:published")
        await self._in_thread(self._record, {claim: claim.new_id for claim in entered})
        crash.point("undelete:recorded")

    def _claim_ids(self, contents: Contents, mails: Sequence[DeletedMail]) -> list[_Entry]:
        ready: _Ready = {}
        for mail in mails:
            if mail.is_back:
                self.outcome.already += 1
                continue
            try:
                ready[mail.enqueue_id] = mail, contents.parts(mail.kept)
            except ContentMissing:
                self.outcome.lost += 1
        if not ready:
            return []
        self.lock.renew()
        new_ids = {id_: EnqueueId(uuid4()) for id_ in ready}
        claims = self.stores.own.undeleted_mails.claim(self.queue, new_ids)
        crash.point("undelete:claimed")
        cut_off = []
        for id_, claim in claims.items():
            if claim.step is UndeleteStep.DONE:
                self.outcome.already += 1
            elif claim.new_id != new_ids[id_]:
                cut_off.append(claim)
        if cut_off:
            claims |= self._new_claims(cut_off, ready, new_ids)
        won = (id_ for id_ in new_ids if claims[id_].new_id == new_ids[id_])
        return [_Entry(*ready[id_], claims[id_]) for id_ in won]

    def _new_claims(
        self,
        cut_off: Sequence[UndeletedMail],
        ready: _Ready,
        new_ids: Mapping[EnqueueId, EnqueueId],
    ) -> dict[EnqueueId, UndeletedMail]:
        """New claims for cut-off mails whose earlier entries were not published. Records the mails
        whose entry was published, and counts those in doubt.
        """
        earlier = CutOffEntries(self.stores, self.queue, self.sleep)
        entries = earlier.published(
            [
                CutOff(
                    ready[claim.enqueue_id][0].kept.item,
                    claim.new_id,
                    claim.step is UndeleteStep.ENTERED,
                    claim.voided,
                )
                for claim in cut_off
            ]
        )
        self.lock.renew()  # it waited for workers
        self._record({one: entries[one.new_id] for one in cut_off if one.new_id in entries})
        doubtful = {} if self.accept_duplicates else earlier.doubtful
        self.outcome.doubtful += len(doubtful)
        anew = {
            claim: UndeletedMail(
                claim.enqueue_id,
                UndeleteStep.CLAIMED,
                new_ids[claim.enqueue_id],
                (*claim.voided, claim.new_id),
            )
            for claim in cut_off
            if claim.new_id not in entries and claim.new_id not in doubtful
        }
        self._change(anew)
        crash.point("undelete:claimed-anew")
        voided = {entry: claim for claim in anew.values() for entry in claim.voided}
        completed = earlier.void(list(voided), self.lock.renew)
        done = {voided[entry]: entry for entry in completed}
        self._record(done)
        # The void ended: its marks are no longer mistaken for marks of a completion.
        proved = {one: replace(one, voided=()) for one in anew.values() if one not in done}
        self._change(proved)
        crash.point("undelete:voided")
        return {one.enqueue_id: one for one in proved.values()}

    def _enter(
        self, chunk: Sequence[_Entry], items: Sequence[QueuedMail]
    ) -> tuple[list[UndeletedMail], list[ViewRow]]:
        rows = add_rows(self.stores, self.queue, items, self.shape, self.clock())
        crash.point("undelete:rows")
        self.lock.renew()  # a slow store used up part of the lease
        entered = {new.claim: replace(new.claim, step=UndeleteStep.ENTERED) for new in chunk}
        self._change(entered)
        crash.point("undelete:entered")
        return list(entered.values()), rows

    def _record(self, entries: Mapping[UndeletedMail, EnqueueId]) -> None:
        """Records that the mails are back, each as the entry with this id."""
        done = {
            claim: replace(claim, step=UndeleteStep.DONE, new_id=new_id)
            for claim, new_id in entries.items()
        }
        self._change(done)
        self.outcome.undeleted += len(done)
        named = list(done.values())[: _MAX_NAMED - len(self.outcome.ids)]
        self.outcome.ids.update((claim.enqueue_id, claim.new_id) for claim in named)

    def _change(self, changes: Mapping[UndeletedMail, UndeletedMail]) -> None:
        if not self.stores.own.undeleted_mails.change(self.queue, list(changes.items())):
            raise StoreUnavailable(f"somebody else undeletes mails of {self.queue}: ask again")

    async def _write_blobs(self, one: _Entry) -> QueuedMail:
        header, body = ((self.ids.new(part), part) for part in one.parts)
        for blob_id, content in (header, body):
            await self.blobs.put(blob_id, content)
        return replace(
            one.mail.kept.item,
            enqueue_id=one.claim.new_id,
            header_blob_id=BlobId(header[0]),
            body_blob_id=BlobId(body[0]),
        )

    async def _publish_all(self, rows: Sequence[ViewRow]) -> None:
        exchange = RabbitNames(self.queue).exchange
        await all_ended(
            self.publisher.publish(
                exchange, message.encode(row.item), headers_of(row.partition), row.enqueued_time
            )
            for row in rows
        )


def _bytes_of(mail: DeletedMail) -> int:
    return mail.kept.size


def _size(mails: Sequence[DeletedMail]) -> int:
    return sum(map(_bytes_of, mails))
