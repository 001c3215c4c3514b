"""Mails that are delivered later: a copy waits in a delay level (a TTL queue) and expires into the
hop queue, which only mailslice consumes.

The row in delayed_mails has the due time and the token of the valid copies. Invariant: **a copy
with the row's token exists** (in a level, in the hop queue, or unacknowledged), or the delivery
that asked for the delay is unacknowledged. If the older row is open, or the worker's message is
gone, the copy is confirmed before the row is written. A copy is acknowledged only when its
successor with the same token is confirmed. So a copy with another token is dropped, and so is a
duplicate, which meets a closed row.

When its mail is published a row is closed (`published`); it stays for 30 days. A copy without a row
is delivered: the row was lost. A mail without a row in the view is not delivered: it was deleted
and cleaned (`deleted_check.was_cleaned`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from uuid import UUID, uuid4

from mailslice.admin.deletions.deletion import all_ended
from mailslice.admin.leased_lock import LEASE, LeasedLock
from mailslice.codec import message as codec
from mailslice.codec.headers import count_in, headers_of, partition_in
from mailslice.model import crash
from mailslice.model.delay_levels import DELAY_LEVELS, LONGEST_DELAY, LONGEST_WAIT, level_for
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput, QueueMissing
from mailslice.model.mail import EnqueueId, Partition, QueuedMail
from mailslice.model.names import (
    HEADER_DELAY_TOKEN,
    HEADER_DELIVERY_COUNT,
    HEADER_FAILURES,
    HEADER_PARKED,
    HEADER_REDRIVE_COUNT,
    HEADER_THROTTLED,
)
from mailslice.stores.cassandra.own import DelayedMail, DelayedMails
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.deleted_check import was_cleaned
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.logs import about
from mailslice.worker.validation import check_span

log = logging.getLogger(__name__)
_AT_ONCE = 200
_REMEMBERED = 1000
_LEAST_BYTES = 8 * 1024
"""Least memory that is counted for a copy which waits here: 256 fit (`Tuning.waiting_bytes`)."""
_TABLE_CHECK_SECONDS = 60.0
_NO_WAIT = timedelta(0)
_REPEAT_DELAY = timedelta(minutes=5)
"""Least delay of a message that is delayed anew: longer than a handler has a mail without a lease.
The row of the lease voids this copy.
"""
_Work = Callable[[LeasedLock, DelayedMail], Awaitable[bool | None]]
CLOSING_SECONDS = 2.0
"""Seconds to wait for rows to be closed, at a worker's end and before a second copy is checked."""


def checked_delay(delay: timedelta | None) -> timedelta | None:
    """The delay; None if not positive. Raises BadInput beyond 30 days, and for other types."""
    check_span("delay", delay)
    if delay is None or delay <= timedelta(0):
        return None
    if delay > LONGEST_DELAY:
        raise BadInput(f"delay {delay} is not allowed; at most {format_duration(LONGEST_DELAY)} is")
    return delay


def _copy_of(row: DelayedMail) -> MessageCopy:
    counts = {HEADER_REDRIVE_COUNT: row.redrives, HEADER_THROTTLED: int(row.throttled)}
    nonzero = {name: value for name, value in counts.items() if value}
    lasting = {HEADER_FAILURES: row.failures, HEADER_DELAY_TOKEN: str(row.token)}
    return MessageCopy(row.message, headers_of(row.partition) | lasting | nonzero, row.enqueued)


class DelayedRows:
    """The rows of delayed_mails of one queue, on the event loop."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._table: DelayedMails | None = None
        self._next_table_check = 0.0

    async def table_exists(self) -> bool:
        """Whether the table exists, checked once a minute at most. Does not create it."""
        now = asyncio.get_running_loop().time()
        if self._table is None and now >= self._next_table_check:
            self._table = await self._context.open_table(DelayedMails.prepared)
            self._next_table_check = now + _TABLE_CHECK_SECONDS  # not after a failed look
        return self._table is not None

    async def scan(self, ids: Collection[EnqueueId] | None = None) -> Iterator[DelayedMail]:
        """Iterates over all rows, or those of a few ids. Each step may wait for Cassandra."""
        table, queue = await self._open_table(), self._context.queue
        if ids is not None and len(ids) <= _AT_ONCE:
            return filter(None, map(partial(table.get, queue), ids))
        return await asyncio.to_thread(table.rows, queue)

    async def load(self, enqueue_id: EnqueueId) -> DelayedMail | None:
        table = await self._open_table()
        rows = await self._context.bridge.rows(table.read_future(self._context.queue, enqueue_id))
        return table.row(rows[0]) if rows else None

    async def save(self, row: DelayedMail) -> None:
        table = await self._open_table()
        await self._context.bridge.rows(table.write_future(self._context.queue, row))
        crash.point("delay:row-written")

    async def close(self, row: DelayedMail) -> None:
        """Closes it at the write time that was read, plus 1 us: a newer delay must survive."""
        table = await self._open_table()
        row_as_read = (self._context.queue, row.enqueue_id, uuid4(), row.written_us)
        closing = table.close_future(*row_as_read, failures=row.failures, answer=row.answer)
        await self._context.bridge.rows(closing)
        crash.point("delay:row-closed")

    async def _open_table(self) -> DelayedMails:
        """The table, created if it is missing: only delays need mailslice's own keyspace."""
        if self._table is None:
            self._table = await self._context.open_table(DelayedMails.created)
        return self._table


class Delays:
    """The delayed mails of one queue."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._declared: set[int | None] = set()
        self._lock = asyncio.Lock()
        self._waiting_bytes = self.flushed = 0
        self.rows = DelayedRows(context)
        self._published: dict[UUID, None] = {}
        """The last tokens published here. A task that read a row while it was open skips them."""
        self._releases: dict[UUID, asyncio.Task[None]] = {}
        """Releases by token: two copies of one mail, or a copy and a flush, publish it once."""

    async def declare(self, level: int | None = None) -> None:
        """Declares the hop queue and this level, once a process: most queues use few levels."""
        if level in self._declared:
            return
        async with self._lock:
            if level not in self._declared:
                declare = self._context.stores.rabbitmq.declare_delays
                levels = () if level is None else (level,)
                await asyncio.to_thread(declare, self._context.queue, levels)
                self._declared |= {None, level}

    def redeclare(self) -> None:
        """Call if a delay queue is missing: the next `declare` declares it again."""
        self._declared.clear()

    async def schedule(
        self,
        enqueue_id: EnqueueId,
        copy: MessageCopy,
        due: datetime,
        *,
        leased: bool = False,
        done: bool = False,
        held: bool = False,
        has_message: bool = True,
        answer: str = "",
    ) -> None:
        """Writes the row, then publishes the copy. The copy of an older row is dropped later.

        The caller does not acknowledge its message, or report an enqueue, before this returns.
        `leased`: a handler has the mail, or is `done` with it (`lease`). `held`: a domain of it is
        held. `answer`: that of the failed attempt; empty: the row keeps the earlier one.
        `has_message` False: the caller's message is gone. Then, and if the older row is open, a
        copy precedes the row: the older row's copy may be all there is (`defer_to_later_attempt`).
        """
        wait, token = due - self._context.clock(), uuid4()
        await self.declare(level_for(wait))
        before = await self.rows.load(enqueue_id)  # first: if it fails, nothing is published
        copy_first = not has_message or (before is not None and not before.published)
        first_wait = max(wait, timedelta(seconds=self._context.tuning.copy_before_row))
        if copy_first:
            await self._publish_copy(copy, token, first_wait)
        row = DelayedMail(
            enqueue_id,
            due,
            token,
            published=False,
            partition=partition_in(copy.headers),
            message=copy.body,
            written_us=before.written_us if before else 0,
            failures=count_in(copy.headers, HEADER_FAILURES),
            redrives=count_in(copy.headers, HEADER_REDRIVE_COUNT),
            enqueued=copy.timestamp,
            throttled=bool(copy.headers.get(HEADER_THROTTLED)),
            leased=leased,
            done=done,
            held=held,
            answer=answer or (before.answer if before else ""),
        )
        await self.rows.save(row)
        # Not twice into one level: two workers would get the copies at once, and publish both.
        if not copy_first or level_for(wait) < level_for(first_wait):
            await self._publish_copy(copy, token, wait)

    async def close_row(
        self, enqueue_id: EnqueueId, *, only_lease: bool = False, token: object = None
    ) -> None:
        """Closes the row of a mail that was settled in another way (say, rejected): no copy of it
        is delivered. `token`: closes it only if the row has this token.
        """
        row = await self.rows.load(enqueue_id) if await self.rows.table_exists() else None
        is_other = row is None or row.published or token not in {None, str(row.token)}
        if row is not None and not is_other and (row.leased or not only_lease):
            await self.rows.close(row)

    async def defer_to_later_attempt(self, enqueue_id: EnqueueId, message: Message) -> bool:
        """Whether a later attempt waits in delayed_mails. Then the caller drops this older message.

        A row that is not open is none. An open row is one if it is held (ADR 86), or if it is not
        due and has more failures than the message; or as many, if it is no lease and the message
        has another token. First it marks a mail that is done, delays a message of this row again
        (its publisher may close the row), or publishes the row's copy (its writer may have died).
        """
        row = await self.rows.load(enqueue_id) if await self.rows.table_exists() else None
        if row is None or row.published or row.due is None:
            return False
        if row.done:
            await self._context.mark(enqueue_id)
            return True
        failures = count_in(message.headers, HEADER_FAILURES)
        has_its_token = str(row.token) == message.headers.get(HEADER_DELAY_TOKEN)
        is_later = row.failures > failures or not (row.leased or has_its_token)
        if not (row.held or (is_later and row.due > self._context.clock())):
            return False
        if has_its_token:
            due = max(row.due, self._context.clock() + _REPEAT_DELAY)
            await self.schedule(enqueue_id, MessageCopy.of(message), due, held=row.held)
        else:
            second = _copy_of(row).with_headers({HEADER_PARKED: 1})  # counts as redelivered
            await self._publish_copy(second, row.token, row.due - self._context.clock())
        return True

    async def on_expired(self, message: Message) -> None:
        """Publishes an expired copy's mail, returns the copy to a delay level, or drops it. Then
        acknowledges it. Raises Undecodable if it is no mail, StoreUnavailable: try again.
        """
        item = codec.decode(message.body)
        while wait := await self._wait_of(item, message):
            await self._wait(wait, len(message.body))
            # Then decide again: it may have been flushed or deleted meanwhile.
        message.ack()
        if wait is None:
            await self._context.discarder.add((item.header_blob_id, item.body_blob_id))

    async def _wait_of(self, item: QueuedMail, message: Message) -> timedelta | None:
        """How long this copy waits here; zero when it is settled, None when its mail is deleted."""
        row = await self.rows.load(item.enqueue_id)
        marked = await self._context.is_marked(item.enqueue_id)
        crash.point("hop:checked")
        copy = MessageCopy.of(message)
        is_valid = row is not None and str(row.token) == message.headers.get(HEADER_DELAY_TOKEN)
        if row is not None and row.done and is_valid and not (marked or row.published):
            await self._context.mark(item.enqueue_id)  # the worker that handled it is gone
            marked = True
        if marked:
            if row is not None and not row.published:
                await self.rows.close(row)
            return None
        if row is None:
            # Even without a row in the view: that a store lost both is likelier than a cleanup.
            text = "a delayed mail has no row; it is delivered now"
            log.warning(text, extra=about("delay_row_lost", item.enqueue_id))
            await self._context.publish(copy)
            return _NO_WAIT
        if row.published or row.due is None or not is_valid:
            return _NO_WAIT
        remaining = row.due - self._context.clock()
        if message.redelivered:  # the first copy may be due in another worker at the same moment
            remaining += timedelta(seconds=CLOSING_SECONDS)
        if remaining > self._longest_wait(message):
            repeated = {HEADER_PARKED: 1} if message.redelivered else {}
            copy = replace(copy, body=row.message).with_headers(repeated)
            await self._publish_copy(copy, row.token, remaining)
        elif remaining > _NO_WAIT:
            return remaining
        elif await self._is_cleaned(item.enqueue_id, row.partition, partition_in(message.headers)):
            await self.rows.close(row)
        else:
            await self._release(row, copy)
        return _NO_WAIT

    def _longest_wait(self, message: Message) -> timedelta:
        """How long a copy may wait here: the less, the more copies do. One second where a quorum
        queue counts its returns, and would drop it past its limit.
        """
        shortest = timedelta(seconds=DELAY_LEVELS[0])
        if count_in(message.headers, HEADER_DELIVERY_COUNT) > 0:
            return shortest
        free = max(0.0, 1 - self._waiting_bytes / self._context.tuning.waiting_bytes)
        return max(shortest, LONGEST_WAIT * free)

    async def _wait(self, remaining: timedelta, size: int) -> None:
        taken = max(size, _LEAST_BYTES)
        self._waiting_bytes += taken
        try:
            await asyncio.sleep(remaining.total_seconds())
        finally:
            self._waiting_bytes -= taken

    async def run_for_open_rows(
        self,
        work: _Work,
        lease: timedelta | None,
        ids: Collection[EnqueueId] | None = None,
        matches: Callable[[DelayedMail], bool] = lambda _row: True,
    ) -> int:
        """Calls `work(lock, row)` for open rows that are wanted. Returns how many calls gave True.

        `lease` None: `work` only reads, and no lock is taken. Else `work` calls `lock.require()`
        before it writes. One call at a time for a queue: waits a minute (two leases) for a holder
        that runs or was killed. Then raises Refused. Raises StoreUnavailable, too: call it again.
        """
        rows, queue = await self.rows.scan(ids), self._context.queue
        waiting = (row for row in rows if not row.published and matches(row))
        key = self._context.stores, f"retry/{queue}", f"retries or flushes mails of {queue}"
        lock, done = await asyncio.to_thread(LeasedLock, *key, lease=lease or LEASE), 0
        try:
            while batch := await asyncio.to_thread(lambda: list(islice(waiting, _AT_ONCE))):
                if lease:
                    await asyncio.to_thread(lock.renew)
                done += sum(map(bool, await all_ended(work(lock, row) for row in batch)))
        finally:
            if await self.wait_for_releases() and lease:  # else the lock is left to its TTL
                await asyncio.to_thread(lock.release)
        return done

    async def flush(self, lease: timedelta = LEASE) -> int:
        """Delivers every delayed mail now, except leased ones (in a handler). Returns how many."""
        return await self.run_for_open_rows(self._flush_one, lease)

    async def bring_forward(self, row: DelayedMail, lock: LeasedLock | None = None) -> bool:
        """Makes a delayed mail that `is_far` due now. False: no longer far, or delayed anew.

        The hop consumers publish it, by the copy with the row's token: so this may be repeated
        after a kill (ADR 87). Not a row that is due soon: a worker may be about to publish it.
        """
        now, token, copy = self._context.clock(), uuid4(), _copy_of(row)
        wait = timedelta(seconds=self._context.tuning.copy_before_row)
        await self._publish_copy(copy, token, wait)
        crash.point("retry:copied")
        current = await self.rows.load(row.enqueue_id)
        if current is None or current.token != row.token or not self.is_far(current):
            return False  # the copy is dropped: its token is not the row's
        if lock is not None:
            lock.require()  # a flush may be about to publish it
        await self.rows.save(replace(current, due=now, token=token))
        await self._publish_copy(copy, token, _NO_WAIT)
        crash.point("retry:brought-forward")
        return True

    def is_far(self, row: DelayedMail) -> bool:
        """Whether it is due late enough to be brought forward."""
        soon = self._context.clock() + timedelta(seconds=self._context.tuning.due_soon)
        return not (row.published or row.leased) and row.due is not None and row.due > soon

    async def _flush_one(self, lock: LeasedLock, row: DelayedMail) -> bool:
        marked = await self._context.is_marked(row.enqueue_id)
        now = await self.rows.load(row.enqueue_id)
        if now is None or now.published or now.leased or now.token != row.token:
            return False  # a handler has it, or it came due or was delayed anew since it was listed
        if marked or await self._is_cleaned(now.enqueue_id, now.partition):
            await self.rows.close(now)
            return False
        lock.require()
        await self._release(now, _copy_of(now))
        self.flushed += 1
        return True

    async def _is_cleaned(self, enqueue_id: EnqueueId, *where: Partition | None) -> bool:
        """Whether an unmarked mail was cleaned away. Its blobs are left to blob_gc."""
        cleaned = await was_cleaned(self._context, enqueue_id, *where)
        if cleaned:
            text = "delayed mail %s is dropped: it has neither a row nor a deleted mark, "
            text += "so it was deleted and cleaned away"
            extra = about("delay_cleaned", enqueue_id, queue=self._context.queue)
            log.info(text, enqueue_id, extra=extra)
        return cleaned

    async def wait_for_releases(self) -> bool:
        """Waits a little for rows that are being closed: the mail of an open row would be published
        again. Returns whether all are closed.
        """
        closing = self._releases.values()
        return not closing or not (await asyncio.wait(closing, timeout=CLOSING_SECONDS))[1]

    def has_published(self, message: Message) -> bool:
        """Whether the mail of this copy was published here, though its row may be open still."""
        token = message.headers.get(HEADER_DELAY_TOKEN)
        return any(str(published) == token for published in self._published)

    async def _release(self, row: DelayedMail, copy: MessageCopy) -> None:
        """Publishes the mail and closes its row. A cancelled caller does not stop it."""
        release = self._releases.get(row.token)
        if release is None:
            release = asyncio.create_task(self._publish_and_close(row, copy))
            self._releases[row.token] = release
            release.add_done_callback(partial(self._forget_release, row.token))
        await asyncio.shield(release)

    def _forget_release(self, token: UUID, release: asyncio.Task[None]) -> None:
        del self._releases[token]
        if not release.cancelled():
            release.exception()  # retrieved, for asyncio: nobody may wait for it any more

    async def _publish_and_close(self, row: DelayedMail, copy: MessageCopy) -> None:
        if row.token not in self._published:
            if not (row.leased or row.held or HEADER_FAILURES in copy.headers):
                copy = replace(copy, timestamp=row.due)  # its age begins with its first attempt
            was_in_handler = {HEADER_PARKED: 1} if row.leased else {}  # counts as redelivered
            copy = replace(copy, body=row.message).with_headers(was_in_handler)
            await self._context.publish(copy)
            self._published[row.token] = None
            if len(self._published) > _REMEMBERED:
                del self._published[next(iter(self._published))]
        await self.rows.close(row)

    async def _publish_copy(self, copy: MessageCopy, token: UUID, wait: timedelta) -> None:
        await self.put(copy.with_headers({HEADER_DELAY_TOKEN: str(token)}), level_for(wait))
        self._context.statistics.hops += 1

    async def put(self, copy: MessageCopy, level: int | None) -> None:
        """Publishes into a delay level (seconds) or the park queue (None), declared if missing."""
        await self.declare(level)
        names = self._context.names
        queue = names.park_queue if level is None else names.delay_queue(level)
        try:
            await self._context.publish(copy, queue)
        except QueueMissing:
            self.redeclare()  # a rebuilt broker has only the queues that James declares
            raise
