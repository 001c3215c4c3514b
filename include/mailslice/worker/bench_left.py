"""What a benchmark that was stopped left in its queue, taken off as a worker does: with its rows, marks and blobs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import timedelta

from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.worker.bench import PATIENCE
from mailslice.worker.bench_own import not_own
from mailslice.worker.consuming import following
from mailslice.worker.delivery import Delivery
from mailslice.worker.dequeuer import Deliveries
from mailslice.worker.queue_worker import open_worker

_PREFETCH = 64
_IDLE = timedelta(seconds=1)


async def take_left(settings: Settings, queue: QueueName) -> str | None:
    """Completes a benchmark's mails until none comes; the name of the first mail that is somebody else's, or None. Those go back at the end."""
    others: list[Delivery] = []
    async with open_worker(settings, queue) as worker:
        async with (
            aclosing(worker.deliveries(_PREFETCH, give_up_after=PATIENCE)) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            while (delivery := await _next(deliveries, holding=bool(others))) is not None:
                if not_own(delivery.item.mail.name) is not None:
                    others.append(delivery)
                else:
                    group.create_task(delivery.complete())
            await deliveries.aclose()  # else what goes back would come again
            for each in others:
                await each.give_back()
        await worker.settle()
    return others[0].item.mail.name if others else None


async def _next(deliveries: Deliveries, *, holding: bool) -> Delivery | None:
    """None when nothing comes; where mails of others are held, what waits for their room never does."""
    if not holding:
        return await following(deliveries, _IDLE, lambda: False)
    with suppress(TimeoutError):
        async with asyncio.timeout(_IDLE.total_seconds()):
            return await anext(deliveries, None)
    return None
