"""A benchmark's own mails: told from those of others, waited for, and taken off its queue."""

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
"""Names of a benchmark's mails begin so: what else is in its queue is somebody's mail."""
STORES_TIMEOUT = timedelta(seconds=30)
_STALLED = 60.0
"""Seconds without a mail after which a benchmark gives up."""
_PREFETCH = 64
_IDLE = timedelta(seconds=1)


def bench_mail(name: object) -> Mail:
    """An envelope of a benchmark."""
    return Mail(
        name=f"{BENCH_NAMES}{name}",
        sender="alice@bench.example",
        recipients=("bob@bench.example",),
        last_updated_ns=time.time_ns(),
    )


def foreign_mail(name: str) -> Refused | None:
    """Why a benchmark ends at a mail of this name; None: the mail is a benchmark's."""
    if name.startswith(BENCH_NAMES):
        return None
    return Refused(
        f"mail {name!r}, not a benchmark's, came to its queue and stays there; the benchmark ends: "
        "nobody else may use that queue"
    )


async def complete_own(delivery: Delivery) -> None:
    """Completes a benchmark's mail. Somebody else's is given back, and Refused is raised."""
    if (refused := foreign_mail(delivery.item.mail.name)) is not None:
        await delivery.give_back()
        raise refused
    await delivery.complete()


@asynccontextmanager
async def progressing(
    done: Callable[[], int], expected: int, stalled: float = _STALLED
) -> AsyncIterator[None]:
    """Ends the block by Refused when `done()` does not change for a minute."""
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
    """Completes mails that a stopped benchmark left, with their rows, marks and blobs.

    The name of the first mail that is somebody else's, or None. Those are given back at the end.
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
            await deliveries.aclose()  # else what is given back would come again
            for delivery in foreign:
                await delivery.give_back()
        await worker.settle()
    return foreign[0].item.mail.name if foreign else None


async def _next(deliveries: Deliveries, *, holding: bool) -> Delivery | None:
    """None when nothing comes; what waits for the room of others' mails never does."""
    if not holding:
        return await next_delivery(deliveries, _IDLE, lambda: False)
    with suppress(TimeoutError):
        async with asyncio.timeout(_IDLE.total_seconds()):
            return await anext(deliveries, None)
    return None
