"""One operation in a process of its own, up to a point at which it is killed, or waits while a
store is taken from it.

Children are forked from a server that has imported all this once, and nothing else: a child costs
its connections, not its imports.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mailslice.model import crash
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, load_settings
from mailslice.testing.faults.operations import OPERATIONS, Session
from mailslice.worker.queue_worker import QueueWorker, open_worker

_OPENINGS = 10
"""A busy machine may take longer to connect than the short time-out of a store that breaks."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a child is stopped: the `time`-th time that it comes to `point`, by SIGKILL or to wait
    for a word of its parent.
    """

    point: str
    time: int = 1
    kill: bool = True


@dataclass(frozen=True, slots=True)
class ChildMessage:
    """What a child tells, and when, by the monotonic clock of the machine."""

    kind: str
    payload: Any
    at: float


class _Line:
    """The way to the parent, and what happens at the points."""

    def __init__(self, line: Connection, stop: Stop | None) -> None:
        self._line = line
        self._stop = stop
        self._lock = threading.RLock()
        self._reached: Counter[str] = Counter()
        self._but: tuple[str, ...] = ()

    def send(self, kind: str, payload: Any = None) -> None:
        with self._lock:
            self._line.send(ChildMessage(kind, payload, time.monotonic()))

    def arm(self, *but: str) -> None:
        """From now on points count, but those with these beginnings."""
        self._but = but
        crash.arm(self._come_to)

    def _come_to(self, point: str) -> None:
        """Points are told where nobody stops the child; else it stops at its own, once, with all of
        its threads that come by.
        """
        if point.startswith(self._but):
            return
        with self._lock:
            self._reached[point] += 1
            if self._stop is None:
                self.send("reached", point)
            elif (point, self._reached[point]) == (self._stop.point, self._stop.time):
                self.send("stopped", point)
                if self._stop.kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                self._line.recv()


def run(
    operation: str, env: Mapping[str, str], queue: QueueName, line: Connection, stop: Stop | None
) -> None:
    """The child's whole life. Its last word is `ended`, or `broken` with the traceback."""
    logging.disable(logging.CRITICAL)
    pipe = _Line(line, stop)
    try:
        asyncio.run(_run(operation, env, queue, pipe))
    except BaseException:  # noqa: BLE001 - the parent is to know, whatever it was
        pipe.send("broken", traceback.format_exc())
    else:
        pipe.send("ended")


async def _run(operation: str, env: Mapping[str, str], queue: QueueName, line: _Line) -> None:
    settings = load_settings(env, state_file=Path("/nonexistent"))
    async with AsyncExitStack() as stack:
        worker = await _opened(stack, settings, queue)
        await OPERATIONS[operation].run(Session(worker, line.send, line.arm))


async def _opened(stack: AsyncExitStack, settings: Settings, queue: QueueName) -> QueueWorker:
    for _ in range(_OPENINGS - 1):
        with suppress(StoreUnavailable):
            return await stack.enter_async_context(open_worker(settings, queue))
        await asyncio.sleep(1)
    return await stack.enter_async_context(open_worker(settings, queue))
