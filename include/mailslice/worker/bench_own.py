"""What keeps a benchmark off the mails of others, and from waiting for ever for its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mailslice.model.errors import Refused
from mailslice.model.names import BENCH_NAMES
from mailslice.worker.delivery import Delivery

_STALLED = 60.0
"""Seconds without a mail that are too many."""


def not_own(name: str) -> Refused | None:
    """Why a benchmark ends at a mail of this name; None: the mail is a benchmark's."""
    if name.startswith(BENCH_NAMES):
        return None
    return Refused(
        f"mail {name!r}, not a benchmark's, came to its queue and stays there; the benchmark ends: nobody else may use that queue"
    )


async def complete_own(delivery: Delivery) -> None:
    """Completes a mail of a benchmark. One of somebody else goes back as it came, and Refused is raised."""
    if (refused := not_own(delivery.item.mail.name)) is not None:
        await delivery.give_back()
        raise refused
    await delivery.complete()


@asynccontextmanager
async def progressing(
    done: Callable[[], int], wanted: int, stalled: float = _STALLED
) -> AsyncIterator[None]:
    """Ends the block by Refused when `done()`, of the mails that are wanted, says the same twice, a minute apart."""
    loop, seen = asyncio.get_running_loop(), done()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal seen, timer
        if (now := done()) == seen:
            limit.reschedule(loop.time())
            return
        seen = now
        timer = loop.call_later(stalled, look)

    try:
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(stalled, look)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        missing = wanted - done()
        raise Refused(
            f"{missing} of {wanted} mails did not come back from the queue, and none for {stalled:.0f} s: does somebody else consume it?"
        ) from None
