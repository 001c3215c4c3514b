"""A benchmark's mails: recognizes them, waits for them and takes them off the queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta

from mailslice.model.errors import Refused
from mailslice.model.mail import Mail, QueueName
from mailslice.model.settings import Settings
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.process.handler_pool import next_delivery
from mailslice.worker.queue_worker import open_worker

BENCH_NAMES = "mailslice-bench-"
"""Prefix of the names of a benchmark's mails. Every other mail in its queue is foreign."""
STORES_TIMEOUT = timedelta(seconds=30)
_STALLED = 60.0
"""A benchmark gives up after this many seconds without a mail."""
_PREFETCH = 64
_IDLE = timedelta(seconds=1)


def bench_mail(name: object) -> Mail:
    """A mail of a benchmark, without content."""
    return Mail(
        name=f"{BENCH_NAMES}{name}",
        sender="alice@bench.example",
        recipients=("bob@bench.example",),
        last_updated_ns=time.time_ns(),
    )


def foreign_mail(name: str) -> Refused | None:
    """The error that ends a benchmark at a foreign mail; None if the mail is a benchmark's."""
    if name.startswith(BENCH_NAMES):
        return None
    return Refused(
        f"mail {name!r}, not a benchmark's, came to its queue and stays there; the benchmark ends: "
        "nobody else may use that queue"
    )


async def complete_own(delivery: Delivery) -> None:
    """Completes a benchmark's mail. Gives a foreign mail back and raises Refused."""
    if (refused := foreign_mail(delivery.item.mail.name)) is not None:
        await delivery.requeue()
        raise refused
    await delivery.complete()


@asynccontextmanager
async def progressing(
    done: Callable[[], int], expected: int, stalled: float = _STALLED
) -> AsyncIterator[None]:
    """Ends the block with Refused when `done()` does not change for `stalled` seconds."""
    loop, last = asyncio.get_running_loop(), done()
    timer: asyncio.TimerHandle

    def check() -> None:
        nonlocal last, timer
        if (now := done()) == last:
            limit.reschedule(loop.time())
            return
        last = now
        timer = loop.call_later(stalled, check)

    try:
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(stalled, check)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Refused(
            f"{expected - done()} of {expected} mails did not come back from the queue, and none "
            f"for {stalled:.0f} s: does somebody else consume it?"
        ) from None


async def take_stale(settings: Settings, queue: QueueName) -> str | None:
    """Completes the mails that a stopped benchmark left, and deletes their blobs.

    Returns the name of the first foreign mail, or None. Gives foreign mails back at the end.
    """
    foreign: list[Delivery] = []
    async with open_worker(settings, queue) as worker:
        async with (
            aclosing(worker.deliveries(_PREFETCH, give_up_after=STORES_TIMEOUT)) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            while (delivery := await _next(deliveries, holding=bool(foreign))) is not None:
                if foreign_mail(delivery.item.mail.name) is not None:
                    foreign.append(delivery)
                else:
                    group.create_task(delivery.complete())
            await deliveries.aclose()  # else the mails given back would come again
            for delivery in foreign:
                await delivery.requeue()
        await worker.settle()
    return foreign[0].item.mail.name if foreign else None


async def _next(deliveries: Deliveries, *, holding: bool) -> Delivery | None:
    """The next mail; None when none comes. Foreign mails in hand (`holding`) fill the prefetch."""
    if not holding:
        return await next_delivery(deliveries, _IDLE, lambda: False)
    with suppress(TimeoutError):
        async with asyncio.timeout(_IDLE.total_seconds()):
            return await anext(deliveries, None)
    return None
