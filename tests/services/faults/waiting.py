"""A worker of `test_waiting_kills`. After a second it parks its mail, or keeps it in a handler.

`python -m tests.services.faults.waiting park|lease QUEUE`. It is killed at the crash point in
MAILSLICE_TEST_CRASH_AT.
"""

import asyncio
import sys
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from mailslice.model.errors import StoreUnavailable
from mailslice.model.settings import load_settings
from mailslice.worker import open_worker
from mailslice.worker.dequeue import lease, park
from mailslice.worker.io.content_loader import Loader
from mailslice.worker.io.context import Tuning


async def away(*_: Any, **__: Any) -> None:
    raise StoreUnavailable("S3 is away for this mail")


async def main(how: str, queue: str) -> None:
    lease.LONGEST_UNACKNOWLEDGED = 1.0
    lease.LENGTH = timedelta(seconds=5)
    park.RETRY_SECONDS = 1.0
    if how == "park":
        Loader.load = away
    async with (
        open_worker(load_settings(), queue, tuning=Tuning(lease_check=0.2)) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        async for _ in deliveries:
            await asyncio.sleep(120)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
