"""Undoes failed enqueues: first the deleted mark, then the row of a delay, then the blobs.

The caller waits for the first try. Further tries go on without it, until the stores answer or the
worker closes. The mark is always written: an insert that timed out may have been applied.
"""

import asyncio
import logging
from collections import deque
from dataclasses import KW_ONLY, dataclass, field, replace

from mailslice.codec.blob_ids import is_random
from mailslice.model import crash
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import BlobId, EnqueueId, QueuedMail
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.context import QueueContext
from mailslice.worker.logs import about

log = logging.getLogger(__name__)
_FIRST_SECONDS = 2.0
"""Seconds that the caller waits: a store that hangs would delay the error."""
_AT_ONCE = 256
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class _Undo:
    """What is left to undo of one enqueue: its mark, its delay, and then these blobs."""

    enqueue_id: EnqueueId
    blobs: tuple[BlobId, ...]
    delays: Delays | None
    marked: bool = False


@dataclass(slots=True, eq=False, repr=False)
class EnqueueUndo:
    """The failed enqueues of one queue. Beyond `max_pending` (40 MB) the oldest are left to
    `queue_audit` and the weekly sweep. Pause and time-out in seconds.
    """

    context: QueueContext
    _: KW_ONLY
    max_pending: int = 100_000
    shortest_pause: float = 0.5
    close_timeout: float = 8.0
    _pending: deque[_Undo] = field(default_factory=deque, init=False)
    _first_tries: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _retrying: asyncio.Task[None] | None = field(default=None, init=False)
    _marks_fail: bool = field(default=False, init=False)

    async def take_back(self, item: QueuedMail, delays: Delays | None = None) -> None:
        """Returns when it is undone, when one try has failed, or after 2 s. Further tries go on in
        the background. `delays`: for a delayed mail, whose row may be open without a copy.
        """
        blobs = tuple(blob for blob in (item.header_blob_id, item.body_blob_id) if is_random(blob))
        undo = _Undo(item.enqueue_id, blobs, delays)
        self.context.statistics.undoing += 1
        if self._marks_fail:
            self._pending.append(undo)
            self._ensure_retrying()
            return
        first = asyncio.create_task(self._first_try(undo), name=f"undo-{item.enqueue_id}")
        self._first_tries.add(first)
        first.add_done_callback(self._first_tries.discard)
        await asyncio.wait({first}, timeout=_FIRST_SECONDS)

    async def close(self) -> None:
        """Waits for what is being taken back, within the time-out, and gives up the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.close_timeout
        while (tasks := self._tasks()) and (remaining := deadline - loop.time()) > 0:
            await asyncio.wait(tasks, timeout=remaining)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._give_up(len(self._pending))

    def _tasks(self) -> set[asyncio.Task[None]]:
        tasks = set(self._first_tries)
        if self._retrying is not None and not self._retrying.done():
            tasks.add(self._retrying)
        return tasks

    async def _first_try(self, undo: _Undo) -> None:
        await self._try_undo(undo)
        self._ensure_retrying()

    def _ensure_retrying(self) -> None:
        self._give_up(len(self._pending) - self.max_pending)
        if self._pending and (self._retrying is None or self._retrying.done()):
            self._retrying = asyncio.create_task(self._retry(), name="undo-again")

    def _give_up(self, count: int) -> None:
        if count <= 0:
            return
        batch = [self._pending.popleft() for _ in range(count)]
        statistics = self.context.statistics
        statistics.undoing -= count
        statistics.abandoned += count
        text = "%d failed enqueues left something behind (row, message or blobs), the first: %s"
        extra = about("enqueue_failed", batch[0].enqueue_id)
        log.warning(text, count, batch[0].enqueue_id, extra=extra)

    async def _retry(self) -> None:
        """Retries until nothing is pending. A longer pause follows a round without progress."""
        pause = self.shortest_pause
        while self._pending:
            await asyncio.sleep(pause)
            batch = [self._pending.popleft() for _ in range(min(_AT_ONCE, len(self._pending)))]
            progress = await asyncio.gather(*(self._try_undo(undo) for undo in batch))
            pause = self.shortest_pause if any(progress) else min(pause * 2, _LONGEST_PAUSE)

    async def _try_undo(self, undo: _Undo) -> bool:
        """Whether a try made progress. What remains to be undone is pending again."""
        before = undo
        try:
            if not undo.marked:
                await self._mark(undo.enqueue_id)
                undo = replace(undo, marked=True)
                crash.point("enqueue:undo-marked")
            if undo.delays is not None:
                await undo.delays.close_row(undo.enqueue_id)
            await self.context.blobs.delete_many(undo.blobs)
        except asyncio.CancelledError:
            self._pending.append(undo)
            raise
        except Exception as error:  # a fault of mailslice must not stop the others
            text = "what a failed enqueue left is not taken back yet: %s"
            extra = about("enqueue_undo", undo.enqueue_id)
            log.info(text, error, exc_info=not isinstance(error, MailsliceError), extra=extra)
            self._pending.append(undo)
            return undo is not before
        self.context.statistics.undoing -= 1
        return True

    async def _mark(self, enqueue_id: EnqueueId) -> None:
        try:
            await self.context.mark(enqueue_id)
        except BaseException:
            self._marks_fail = True
            raise
        self._marks_fail = False
