"""A consumer of a walk: `consumer.py WHO JOURNAL SEED TASKS QUEUE`.

Handles mails with random outcomes until SIGTERM. While a file `calm` exists, completes all.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvloop

from mailslice.model.mail import EnqueueId, Mail, QueueName
from mailslice.model.settings import load_settings
from mailslice.worker import Complete, Outcome, Reject, Retry, consume, open_worker
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.io.context import QueueContext
from tests.acceptance.walk.books import Journal
from tests.acceptance.walk.mails import content_of

CALM = "calm"


def observed(journal: Journal) -> dict[EnqueueId, float]:
    """Writes each settlement into the journal. Returns, for each mail, when the last deleted check
    that found no mark began.
    """
    checked: dict[EnqueueId, float] = {}
    is_marked = QueueContext.is_marked

    async def checking(self: QueueContext, enqueue_id: EnqueueId) -> bool:
        began = time.monotonic()
        marked = await is_marked(self, enqueue_id)
        if not marked:
            checked[enqueue_id] = began
        return marked

    QueueContext.is_marked = checking  # type: ignore[method-assign]
    for name, before, after in (
        ("_done", "completing", "completed"),
        ("reject", "rejecting", "rejected"),
        ("retry", "retrying", "retried"),
    ):
        setattr(Delivery, name, told(journal, getattr(Delivery, name), before, after))
    return checked


def told(
    journal: Journal, settle: Callable[..., Awaitable[None]], before: str, after: str
) -> Callable[..., Awaitable[None]]:
    async def settling(self: Delivery, *args: Any, **kwargs: Any) -> None:
        journal.write(before, id=str(self.item.enqueue_id))
        await settle(self, *args, **kwargs)
        journal.write(after, id=str(self.item.enqueue_id))

    return settling


async def main() -> None:
    who, path, seed, tasks, queue = sys.argv[1:6]
    journal, rng = Journal(Path(path), who), random.Random(seed)
    calm = Path(path).with_name(CALM)
    checked = observed(journal)

    async def handle(mail: Mail, content: bytes, *, enqueue_id: EnqueueId) -> Outcome:
        journal.write(
            "handed",
            id=str(enqueue_id),
            name=mail.name,
            checked=checked[enqueue_id],
            good=content == content_of(mail.name),
        )
        if calm.exists():
            return Complete()
        await asyncio.sleep(rng.choice((0, 0.01, 0.05, 0.3)))
        (outcome,) = rng.choices(
            (
                Complete(),
                Retry(),
                Retry(after=timedelta(seconds=rng.uniform(0.2, 2))),
                Retry(recipients=mail.recipients[:1]),
                Reject("the walk says so"),
            ),
            (80, 5, 7, 4, 4),
        )
        return outcome

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_worker(load_settings(), QueueName(queue)) as worker:
        journal.write("ready")
        await consume(worker, handle, prefetch=12, concurrency=int(tasks), stop=stop)
    journal.write("ended")


if __name__ == "__main__":
    uvloop.run(main())
