"""A process that does one thing to a queue and kills itself (-9) before its Nth effect on a store: `crashing.py SCENARIO N QUEUE`.

Effects are puts, deletes, rows and marks written, publishes, acks. When it has fewer than N, it ends by itself and says so with exit code 0.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from mailslice.model.mail import Mail, QueueName
from mailslice.model.settings import load_settings
from mailslice.stores.blobs.hot import HotBlobs
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.worker import QueueWorker, open_worker
from mailslice.worker.delays import Delays
from mailslice.worker.enqueuer import Enqueuer
from mailslice.worker.wiring import Wiring

CONTENT = b"A: b\r\n\r\ncrash"
_EFFECTS: list[tuple[Any, str]] = [
    (HotBlobs, "put"),
    (HotBlobs, "delete_many"),
    (Publisher, "publish"),
    (Wiring, "mark"),
    (Enqueuer, "_insert"),
    (Delays, "_write"),
    (Delays, "_close"),
    (Message, "ack"),
    (Message, "give_back"),
    (Message, "dead_letter"),
]


def die_before(effect: int) -> None:
    seen = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == effect:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return wrapper

    for owner, name in _EFFECTS:
        setattr(owner, name, counted(getattr(owner, name)))


def said(word: str) -> None:
    print(word, flush=True)


async def enqueue(worker: QueueWorker) -> None:
    await worker.enqueue(Mail("m", "a@b.c", ("d@e.f", "g@h.i")), CONTENT)
    said("enqueued")


async def enqueue_later(worker: QueueWorker) -> None:
    await worker.enqueue(Mail("m", "a@b.c", ("d@e.f", "g@h.i")), CONTENT, delay=timedelta(seconds=2.3))
    said("enqueued")


async def complete(worker: QueueWorker) -> None:
    async with aclosing(worker.deliveries(2)) as deliveries:
        await (await anext(deliveries)).complete()
        said("completed")


async def retry_later(worker: QueueWorker) -> None:
    async with aclosing(worker.deliveries(2)) as deliveries:
        await (await anext(deliveries)).retry(recipients=["g@h.i"], after=timedelta(seconds=1.5))
        said("retried")


async def retry_fewer(worker: QueueWorker) -> None:
    async with aclosing(worker.deliveries(2)) as deliveries:
        await (await anext(deliveries)).retry(recipients=["g@h.i"])
        said("retried")


async def surface(worker: QueueWorker) -> None:
    async with aclosing(worker.deliveries(2)) as deliveries:
        await anext(deliveries)
        await asyncio.sleep(0.5)  # the hop consumer goes on to close the row and to ack


async def flush(worker: QueueWorker) -> None:
    assert await worker.flush() == 1
    said("flushed")


async def main() -> None:
    scenario, effect, queue = sys.argv[1], int(sys.argv[2]), QueueName(sys.argv[3])
    async with open_worker(load_settings(), queue) as worker:
        die_before(effect)
        await globals()[scenario](worker)
    said("ended")


if __name__ == "__main__":
    asyncio.run(main())
