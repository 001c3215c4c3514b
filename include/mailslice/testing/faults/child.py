"""Runs one operation in a process of its own, up to a point at which it is killed, or waits while
the parent takes a store away.

Children are forked from a server that has only imported these modules, so a child costs the time
of its connections and not of its imports.
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
"""Attempts to connect: a busy machine may exceed the short time-out of the store that breaks."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a child is stopped: the `time`-th time that it reaches `point`. SIGKILL ends it, or it
    waits for a message of its parent.
    """

    point: str
    time: int = 1
    kill: bool = True


@dataclass(frozen=True, slots=True)
class ChildMessage:
    """A message of a child, with its time by the machine's monotonic clock in seconds."""

    kind: str
    payload: Any
    at: float


class _Line:
    """The pipe to the parent, and the action at crash points."""

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
        """Counts points from now on, except those with these prefixes."""
        self._but = but
        crash.arm(self._come_to)

    def _come_to(self, point: str) -> None:
        """Reports the point if the child has no stop. Otherwise stops at its point, once; the lock
        then holds every other thread at its next point.
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
    """The main function of a child. Its last message is `ended`, or `broken` with the traceback."""
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
