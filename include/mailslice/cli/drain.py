"""`worker drain`: gives mails of a queue one outcome; prints each after its mark and ack."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from mailslice.cli import shapes
from mailslice.cli.arguments import WINDOW, Reason, count, duration, option
from mailslice.codec.shown import shown

if TYPE_CHECKING:
    from mailslice.cli.output import Output
    from mailslice.worker import Deliveries, Delivery, QueueWorker


_PATIENCE = timedelta(seconds=10)
"""How long a store may be away before the command ends with 4."""
_RETRY_AFTER_QUIET = 0.3
"""Seconds without a new mail after which a mail that came back is retried again."""


class DrainOutcome(StrEnum):
    """How the drain settles each mail."""

    SUCCESS = "success"
    RETRY = "retry"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """The options of `worker drain`."""

    limit: Annotated[
        int | None,
        option("--max N", "End after this many mails; without it, when the queue is idle.", count),
    ] = None
    outcome: Annotated[DrainOutcome, option("--outcome", "What happens to each mail.")] = (
        DrainOutcome.SUCCESS
    )
    idle: Annotated[
        timedelta,
        option(
            "--idle DURATION",
            "End when the queue has given nothing for this long.",
            duration,
            show_default="2s",
        ),
    ] = timedelta(seconds=2)
    prefetch: Annotated[
        int, option("--prefetch M", "Mails delivered ahead of their handling.", WINDOW)
    ] = 64
    reason: Reason = None


class Drain:
    """One run of `worker drain`.

    A retried mail comes back at once. The run postpones it until no new mail has come for a while,
    so that every mail gets its turn. Without `limit` no mail is retried twice.
    """

    def __init__(self, worker: QueueWorker, options: DrainOptions, out: Output) -> None:
        self._worker = worker
        self._options = options
        self._out = out
        self._running: set[asyncio.Task[None]] = set()
        self._postponed: deque[Delivery] = deque()
        self._started_ids: set[UUID] = set()
        self._started = 0
        self.handled = 0

    async def run(self) -> None:
        """Runs until `limit` mails are handled or the queue is idle. The rest goes back to it."""
        async with aclosing(
            self._worker.deliveries(self._prefetch(), give_up_after=_PATIENCE)
        ) as deliveries:
            try:
                await self._take(deliveries)
            finally:
                if self._running:
                    await asyncio.wait(self._running)
            self._raise_failed()

    def _prefetch(self) -> int:
        """At most `limit`, except for retries: postponed mails take room in the window."""
        if self._options.limit is None or self._options.outcome is DrainOutcome.RETRY:
            return self._options.prefetch
        return min(self._options.prefetch, self._options.limit)

    async def _take(self, deliveries: Deliveries) -> None:
        loop = asyncio.get_running_loop()
        pending = asyncio.ensure_future(anext(deliveries, None))
        last_new = loop.time()
        try:
            while self._options.limit is None or self._started < self._options.limit:
                self._raise_failed()
                pause = None if self._running else self._pause(deliveries, loop.time() - last_new)
                if pause is not None and pause <= 0:
                    if not self._start_postponed():
                        return
                    continue
                await asyncio.wait(
                    {pending, *self._running}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if pending.done():
                    delivery = pending.result()
                    if delivery is None:
                        return
                    pending = asyncio.ensure_future(anext(deliveries, None))
                    if self._accept(delivery):
                        last_new = loop.time()
        finally:
            pending.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await pending

    def _pause(self, deliveries: Deliveries, since_new: float) -> float:
        """Seconds until a postponed mail gets its turn, or the queue counts as idle."""
        if self._postponed and self._options.limit is not None:
            return _RETRY_AFTER_QUIET - since_new
        # Postponed mails hold memory that new mails may wait for: `idle_seconds` stays 0 then.
        return self._options.idle.total_seconds() - (
            since_new if self._postponed else deliveries.idle_seconds
        )

    def _start_postponed(self) -> bool:
        """Retry a postponed mail; False when there is none, or `limit` is None."""
        if not self._postponed or self._options.limit is None:
            return False
        self._start(self._postponed.popleft())
        return True

    def _accept(self, delivery: Delivery) -> bool:
        """Handles a mail that is new to this run, postpones another. Whether it was new."""
        if delivery.item.enqueue_id in self._started_ids:  # filled by retries only
            self._postponed.append(delivery)
            return False
        self._start(delivery)
        return True

    def _start(self, delivery: Delivery) -> None:
        self._started += 1
        if self._options.outcome is DrainOutcome.RETRY:
            self._started_ids.add(delivery.item.enqueue_id)
        self._running.add(asyncio.create_task(self._handle(delivery)))

    def _raise_failed(self) -> None:
        """Raises the first failure of a handled mail. Forgets the tasks that are done."""
        done = {task for task in self._running if task.done()}
        self._running -= done
        for task in done:
            task.result()

    async def _handle(self, delivery: Delivery) -> None:
        digest = hashlib.sha256(delivery.content).hexdigest()
        match self._options.outcome:
            case DrainOutcome.SUCCESS:
                await delivery.complete()
            case DrainOutcome.RETRY:
                await delivery.retry()
            case DrainOutcome.REJECT:
                reason = self._options.reason or "rejected by mailslice worker drain"
                await delivery.reject(reason)
        self.handled += 1
        mail = delivery.item.mail
        item = shapes.envelope(delivery.item.enqueue_id, mail) | {
            "attributes": shapes.attributes(mail),
            "sha256": digest,
            "bytes": len(delivery.content),
            "redelivered": delivery.redelivered,
            "outcome": self._options.outcome,
        }
        self._out.line(
            item,
            f"{self._options.outcome}  {delivery.item.enqueue_id}  {shown(mail.name)}  "
            f"{shapes.from_to(mail)}",
        )
