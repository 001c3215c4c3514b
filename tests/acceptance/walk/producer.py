"""A producer of a walk: `producer.py WHO JOURNAL SEED TASKS QUEUE`. Enqueues until SIGTERM."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path

import uvloop

from mailslice.model.errors import MailsliceError
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings
from mailslice.worker import QueueWorker, open_worker
from tests.acceptance.walk.books import Journal
from tests.acceptance.walk.mails import content_of, mail_of, new_name

PAUSE = 0.12
"""Seconds between two mails of one task, on average."""
A_SENDER = 6
"""Mails of one sender, which one deletion deletes."""


async def produce(
    worker: QueueWorker, journal: Journal, rng: random.Random, who: str, stop: asyncio.Event
) -> None:
    for number in count():
        if stop.is_set():
            return
        name, sender = new_name(rng, who, number), f"{who}-{number // A_SENDER}@here.example"
        delay = timedelta(seconds=rng.uniform(0.2, 3)) if rng.random() < 0.12 else None
        journal.write("asked", name=name, sender=sender, delay=delay and delay.total_seconds())
        try:
            item = await worker.enqueue(mail_of(name, sender), content_of(name), delay=delay)
        except MailsliceError as error:
            journal.write("refused", name=name, why=str(error))
        else:
            journal.write("accepted", name=name, id=str(item.enqueue_id))
        await asyncio.sleep(rng.expovariate(1 / PAUSE))


async def main() -> None:
    who, path, seed, tasks, queue = sys.argv[1:6]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    journal = Journal(Path(path), who)
    async with open_worker(load_settings(), QueueName(queue)) as worker:
        journal.write("ready")
        await asyncio.gather(
            *(
                produce(worker, journal, random.Random(f"{seed}-{number}"), f"{who}.{number}", stop)
                for number in range(int(tasks))
            )
        )


if __name__ == "__main__":
    uvloop.run(main())
