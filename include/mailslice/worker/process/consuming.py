"""Consumes a queue with a function on the running event loop: until stopped, idle, or a count."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from mailslice.model.errors import MailsliceError
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.outcome import Disposition
from mailslice.worker.process.handler_pool import DRAIN_SECONDS, HandlerPool, Policy, policy_of
from mailslice.worker.process.handler_spec import loaded
from mailslice.worker.queue_worker import QueueWorker
from mailslice.worker.validation import MOST_PREFETCH, check_count, check_span


@dataclass(slots=True)
class Consumed:
    """What became of the mails that were handed to a handler.

    `given_back`: another worker had taken the mail (stage marks). `dropped`: it was deleted, or
    closed, meanwhile, or all that it had left is in doubt.
    `failures`: attempts that ended in an exception; those mails are among the retried.
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

    @contextmanager
    def handling(self) -> Iterator[None]:
        """A mail is in a handler."""
        yield

    def settled(self, outcome: Disposition, _seconds: float) -> None:
        """An outcome is stored, of the name of a field above."""
        setattr(self, outcome.value, getattr(self, outcome.value) + 1)

    def handler_failed(self) -> None:
        """A handler ended in an exception."""
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
    by the `Outcome` it gives (None: `Complete()`). Async handlers run on this loop, others in
    threads.

    `policy` (default: MAILSLICE_WORKER_BACK_OFF_*, MAILSLICE_WORKER_ATTEMPTS): an exception is a
    retry with a growing pause, and after so many attempts the end of the mail. A `DeadLetter` is a
    reject. Ends when `stop` is set, when the queue gave nothing for `idle`, or after `most` mails:
    handlers may finish, and an outcome that no store takes for 30 s is given up, so that its mail
    is handed out again. Cancelled, it cancels async handlers and gives back what is not settled.
    Raises BadSetting, or StoreUnavailable after `give_up_after` without a store (handlers have 30 s
    before that).
    """
    if most is not None:
        check_count("most", most)
    check_count("prefetch", prefetch, MOST_PREFETCH)
    check_count("concurrency", concurrency)
    check_span("idle", idle)
    consumed = Consumed()
    policy = policy or policy_of(worker.context.settings)
    handling = HandlerPool(loaded(handler), concurrency, consumed, policy)
    ahead = prefetch if most is None else min(prefetch, most)
    deliveries = worker.deliveries(ahead, give_up_after=give_up_after)
    # The worker keeps those that are not settled; the contents of the others are to go.
    handed: WeakSet[Delivery] = WeakSet()
    stop = stop or asyncio.Event()
    stopping = asyncio.create_task(stopped(stop, deliveries, handling.hurry))
    longest: float | None = 0.0
    try:
        await handling.serve(deliveries, most=most, idle=idle, on_taken=handed.add)
        longest = None
    except Exception:
        # Nothing more arrives. What handlers have done can still be written, so that it is not
        # done again.
        longest = DRAIN_SECONDS
        raise
    finally:
        try:
            await unwatched(stopping, stop)
            await deliveries.aclose()
            await handling.drain(longest)
        finally:
            await handling.drain(0.0)  # of what is left when that was cancelled
            await _let_go(deliveries, handed)
    return consumed


async def unwatched(stopping: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Ends a `stopped`, or awaits it where it closes already: it returns what was fetched."""
    if not stop.is_set():
        stopping.cancel()
    await asyncio.wait({stopping})


async def _let_go(deliveries: Deliveries, handed: Iterable[Delivery]) -> None:
    """Ends deliveries: returns those of `handed` that are still in hand, then disconnects."""
    unsettled = (delivery for delivery in [*handed] if not delivery.settled.is_set())
    await asyncio.gather(*map(_return_to_queue, unsettled))
    await deliveries.disconnect()


async def _return_to_queue(delivery: Delivery) -> None:
    """A mail that stayed in hand would take every later message of it, and its memory."""
    try:
        await delivery.retry()
    except MailsliceError:  # its stage marks cannot be written now
        await delivery.give_back()


async def stopped(
    stop: asyncio.Event, deliveries: Deliveries, on_stop: Callable[[], None] = lambda: None
) -> None:
    """When `stop` is set: calls `on_stop`, then closes the deliveries: nobody waits for more."""
    await stop.wait()
    on_stop()
    await deliveries.aclose()
