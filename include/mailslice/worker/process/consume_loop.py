"""Consumes a queue with a function on the running event loop: until stopped, idle, or a count."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from mailslice.model.errors import MailsliceError
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.outcome import Disposition
from mailslice.worker.process.handler_pool import DRAIN_SECONDS, HandlerPool, Policy, policy_of
from mailslice.worker.process.handler_spec import checked_handler
from mailslice.worker.queue_worker import QueueWorker
from mailslice.worker.validation import MAX_PREFETCH, check_count, check_span


@dataclass(slots=True)
class Consumed:
    """What became of the mails that were handed to a handler.

    `given_back`: another worker had taken the mail (stage marks). `dropped`: it was deleted or
    closed meanwhile, or all its recipients are in doubt. `failures`: retried after an exception.
    """

    completed: int = 0
    retried: int = 0
    rejected: int = 0
    bounced: int = 0
    given_back: int = 0
    dropped: int = 0
    failures: int = 0

    @property
    def total(self) -> int:
        """Mails whose outcome is stored."""
        return sum(getattr(self, disposition.value) for disposition in Disposition)

    def handling(self) -> AbstractContextManager[None]:
        """A mail is in a handler."""
        return nullcontext()

    def settled(self, outcome: Disposition, _seconds: float) -> None:
        """Counts a stored outcome in the field of its name."""
        setattr(self, outcome.value, getattr(self, outcome.value) + 1)

    def handler_failed(self) -> None:
        self.failures += 1

    def store_failed(self) -> None:
        """A store did not take an outcome; the write is repeated."""


async def consume(
    worker: QueueWorker,
    handler: Callable[..., Any],
    *,
    prefetch: int = 16,
    concurrency: int = 8,
    most: int | None = None,
    idle: timedelta | None = None,
    stop: asyncio.Event | None = None,
    give_up_after: timedelta | None = None,
    policy: Policy | None = None,
) -> Consumed:
    """Calls `handler(mail, content)` for each mail, at most `concurrency` at once, and settles each
    by its `Outcome` (None: `Complete()`). Async handlers run on this loop, others in threads.

    `policy` (default: MAILSLICE_WORKER_BACK_OFF_*, MAILSLICE_WORKER_ATTEMPTS): an exception is a
    retry with a growing pause, and ends the mail after this many attempts. A `DeadLetter` is a
    reject. Ends when `stop` is set, when the queue gave nothing for `idle`, or after `most` mails.
    Running handlers may then finish; an outcome that no store takes for 30 s is given up. A
    cancellation cancels async handlers and gives back unsettled mails. Raises BadSetting, or
    StoreUnavailable after `give_up_after` without a store (plus 30 s for handlers).
    """
    if most is not None:
        check_count("most", most)
    check_count("prefetch", prefetch, MAX_PREFETCH)
    check_count("concurrency", concurrency)
    check_span("idle", idle)
    consumed = Consumed()
    policy = policy or policy_of(worker.context.settings)
    handling = HandlerPool(checked_handler(handler), concurrency, consumed, policy)
    ahead = prefetch if most is None else min(prefetch, most)
    deliveries = worker.deliveries(ahead, give_up_after=give_up_after)
    # The worker keeps unsettled deliveries; the contents of settled ones must be freed.
    handed: WeakSet[Delivery] = WeakSet()
    stop = stop or asyncio.Event()
    stopping = asyncio.create_task(close_on_stop(stop, deliveries, handling.announce_end))
    longest: float | None = 0.0
    try:
        await handling.serve(deliveries, limit=most, idle=idle, on_taken=handed.add)
        longest = None
    except Exception:
        # No more mail arrives. Outcomes of running handlers can still be stored: else their mails
        # would be handled again.
        longest = DRAIN_SECONDS
        raise
    finally:
        try:
            await end_watch(stopping, stop)
            await deliveries.aclose()
            await handling.drain(longest)
        finally:
            await handling.drain(0.0)  # for handlers that are left if that was cancelled
            await _end_deliveries(deliveries, handed)
    return consumed


async def end_watch(stopping: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Cancels a `close_on_stop`, or awaits it if it already closes: it gives back fetched mails."""
    if not stop.is_set():
        stopping.cancel()
    await asyncio.wait({stopping})


async def _end_deliveries(deliveries: Deliveries, handed: Iterable[Delivery]) -> None:
    """Ends deliveries: returns those of `handed` that are still in hand, then disconnects."""
    unsettled = (delivery for delivery in [*handed] if not delivery.settled.is_set())
    await asyncio.gather(*map(_return_to_queue, unsettled))
    await deliveries.disconnect()


async def _return_to_queue(delivery: Delivery) -> None:
    """A mail left in hand would adopt all later messages of it, and keep its memory."""
    if delivery.lease.says_done:  # its copy writes the mark
        delivery.abandon()
        return
    try:
        await delivery.retry()
    except MailsliceError:  # its stage marks cannot be written now
        await delivery.requeue()


async def close_on_stop(
    stop: asyncio.Event, deliveries: Deliveries, on_stop: Callable[[], None] = lambda: None
) -> None:
    """Waits for `stop`, calls `on_stop`, then closes the deliveries: nobody waits for more."""
    await stop.wait()
    on_stop()
    await deliveries.aclose()
