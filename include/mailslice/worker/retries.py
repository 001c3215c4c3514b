"""Retries delayed mails on request: selects them, makes them due, and delivers them."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from mailslice.admin.evidence import OVERDUE
from mailslice.admin.filters import MailFilter
from mailslice.admin.leased_lock import LEASE, LeasedLock
from mailslice.codec import message
from mailslice.model.command_line import command_line
from mailslice.model.errors import Refused, Undecodable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.settings import Settings
from mailslice.stores.cassandra.own import DelayedMail
from mailslice.stores.rabbitmq.blocking_publisher import has_consumers
from mailslice.worker.dequeue.expired_delay_consumer import ExpiredDelayConsumer
from mailslice.worker.queue_worker import QueueWorker, open_worker

_POLL_SECONDS = 0.25
_DELIVERY_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Retried:
    """What became of the requested delayed mails, filled as the retry goes on.

    `retried`: due now (with a dry run: would be). Left: `soon`, due by themselves within a minute;
    `overdue`, late; `in_handler`, a worker has them; `deleted`, they have a mark, or were cleaned.
    """

    retried: list[EnqueueId] = field(default_factory=list)
    soon: int = 0
    overdue: int = 0
    in_handler: int = 0
    deleted: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The counts by their JSON names, for answers and decisions."""
        counts = {"retried": len(self.retried), "soon": self.soon, "overdue": self.overdue}
        return counts | {"inHandler": self.in_handler, "deleted": self.deleted}

    def problem(self, queue: QueueName) -> str | None:
        """Why some mails may never come by themselves. None: no mail is overdue."""
        why = f"{self.overdue} mails are overdue: no worker runs, or their copies are lost; "
        flush = command_line("queue flush", queue)
        return f"{why}`{flush}` delivers them" if self.overdue else None


async def retry(
    settings: Settings, queue: QueueName, selection: MailFilter, outcome: Retried, *, dry_run: bool
) -> int:
    """`retry_now`, then `deliver_due`. Returns the result of the latter, 0 for a dry run."""
    async with open_worker(settings, queue) as worker:
        await retry_now(worker, selection, outcome, dry_run=dry_run)
        return 0 if dry_run else await deliver_due(worker, outcome.retried)


async def flush(settings: Settings, queue: QueueName, record: Callable[[int], object]) -> int:
    """Delivers delayed mails now; how many. `record` gets the number, also if the rest fails."""
    async with open_worker(settings, queue) as worker:
        try:
            flushed = await worker.flush()
        except Refused:  # it did nothing
            raise
        except BaseException:
            record(worker.state.delays.flushed)
            raise
        record(flushed)
        return flushed


async def retry_now(
    worker: QueueWorker,
    mail_filter: MailFilter,
    outcome: Retried | None = None,
    *,
    dry_run: bool = False,
    lease: timedelta = LEASE,
) -> Retried:
    """Makes the delayed mails that match due now. Filters see the recipients that remain.

    Raises as `Delays.run_for_open_rows`.
    """
    outcome, delays = outcome or Retried(), worker.state.delays

    async def work(lock: LeasedLock, row: DelayedMail) -> None:
        await _retry(worker, row, outcome, None if dry_run else lock)

    if await delays.rows.table_exists():
        matches = partial(_matches, worker, mail_filter)
        await delays.run_for_open_rows(work, None if dry_run else lease, mail_filter.ids, matches)
    return outcome


def _matches(worker: QueueWorker, mail_filter: MailFilter, row: DelayedMail) -> bool:
    ids = mail_filter.ids
    if row.due is None or (ids is not None and row.enqueue_id not in ids):
        return False
    try:
        mail = message.decode(row.message).mail
    except Undecodable:
        return False
    return mail_filter.passes(row.enqueue_id, mail, row.enqueued, worker.context.clock())


async def _retry(
    worker: QueueWorker, row: DelayedMail, outcome: Retried, lock: LeasedLock | None
) -> None:
    delays = worker.state.delays
    if await worker.context.is_marked(row.enqueue_id):
        outcome.deleted += 1
        if lock:
            await delays.close_row(row.enqueue_id)  # there may be no copy left that closes the row
    elif row.leased:
        outcome.in_handler += 1
    elif row.due is not None and row.due + OVERDUE < worker.context.clock():
        outcome.overdue += 1
    elif not delays.is_far(row) or not (lock is None or await delays.bring_forward(row, lock)):
        outcome.soon += 1
    else:
        outcome.retried.append(row.enqueue_id)


async def deliver_due(worker: QueueWorker, ids: Iterable[EnqueueId]) -> int:
    """Waits until these mails are in the work queue; how many are not after 30 s. A mail that
    failed again is due later, and not waited for. Consumes the hop queue if nothing else does.
    """
    waiting = list(ids)
    if not waiting:
        return 0
    table, queue = worker.context.stores.own.delayed_mails, worker.queue
    consumer = None
    rabbitmq, hop = worker.context.settings.rabbitmq, worker.context.names.hop_queue
    if not await asyncio.to_thread(has_consumers, rabbitmq, hop):
        consumer = ExpiredDelayConsumer(worker.context, worker.state.delays)
        consumer.start()
    loop = asyncio.get_running_loop()
    end = loop.time() + _DELIVERY_TIMEOUT_S
    try:
        while waiting and loop.time() < end:
            await asyncio.sleep(_POLL_SECONDS)
            due = await asyncio.to_thread(table.waiting, queue, waiting)
            waiting = [mail for mail, at in due.items() if at <= worker.context.clock()]
    finally:
        if consumer is not None:
            await consumer.close()
    return len(waiting)
