"""What a benchmark that was stopped left in its queue, taken off as a worker does: with its rows, marks and blobs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

from mailslice.model.mail import QueueName
from mailslice.model.names import BENCH_NAMES
from mailslice.model.settings import Settings
from mailslice.worker.bench import PATIENCE
from mailslice.worker.consuming import following
from mailslice.worker.queue_worker import open_worker

_PREFETCH = 64
_IDLE = timedelta(seconds=1)


async def take_left(settings: Settings, queue: QueueName) -> str | None:
    """Completes a benchmark's mails until none comes; the name of the first mail that is somebody else's, which goes back and ends it, or None."""
    async with open_worker(settings, queue) as worker:
        async with aclosing(worker.deliveries(_PREFETCH, give_up_after=PATIENCE)) as deliveries, asyncio.TaskGroup() as group:
            while (delivery := await following(deliveries, _IDLE, lambda: False)) is not None:
                name = delivery.item.mail.name
                if not name.startswith(BENCH_NAMES):
                    await delivery.give_back()
                    return name
                group.create_task(delivery.complete())
        await worker.settle()
    return None
