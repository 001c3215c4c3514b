"""Handlers run beside each other, up to so many at once; what each says becomes an action on its delivery.

Plain functions run in threads, async ones as tasks: a slow one holds one place, not the rest.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from mailslice.codec.reports import Failure
from mailslice.model.errors import DeadLetter, TakenOver, TryAgain
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.worker.handler_spec import LoadedHandler
from mailslice.worker.handler_stage import AsyncStage, BlockingStage
from mailslice.worker.outcome import Bounce, Complete, Outcome, Reject, Retry

log = logging.getLogger(__name__)

FIRST_BACK_OFF = timedelta(seconds=30)
LONGEST_BACK_OFF = timedelta(hours=1)
_REMEMBERED = 10_000
_SETTLE_PAUSES = (1, 2, 4, 8, 15)
"""Seconds between attempts to tell the stores what became of a mail; the last one repeats."""


class Settled(Protocol):
    """The part of a delivery that handling needs (`worker.Delivery`)."""

    @property
    def item(self) -> QueuedMail: ...
    @property
    def content(self) -> bytes: ...
    @property
    def attempt(self) -> int: ...
    async def complete(self) -> None: ...
    async def retry(self, recipients: Sequence[str] | None = None, after: timedelta | None = None) -> None: ...
    async def reject(self, reason: str) -> None: ...
    async def bounce(self, reason: str, failures: Sequence[Failure]) -> None: ...
    async def give_back(self) -> None: ...
    def stage_for_thread(self) -> BlockingStage: ...
    def stage_for_coroutine(self) -> AsyncStage: ...


class Figures(Protocol):
    """What handling counts (`metrics.ConsumerMetrics`)."""

    def handling(self) -> AbstractContextManager[None]: ...
    def settled(self, outcome: str, seconds: float) -> None: ...
    def handler_failed(self) -> None: ...
    def store_failed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Another one has the mail, so nothing may become of it here. No handler says so: its marks do."""


def back_off(failures: int) -> timedelta:
    """The pause after `failures` earlier ones: doubles from 30 s, at most 1 h."""
    return min(FIRST_BACK_OFF * (1 << min(failures, 10)), LONGEST_BACK_OFF)


class Attempts:
    """How often a mail failed here, in memory, of the newest 10,000 that failed: it only spaces attempts, no mail hangs on it.

    Where the queue has stage marks, attempts are durable, and their number is at least that of the record.
    """

    def __init__(self) -> None:
        self._failed: OrderedDict[EnqueueId, int] = OrderedDict()

    def next_delay(self, enqueue_id: EnqueueId, attempt: int = 1) -> timedelta:
        """Counts one failure more; the pause before the next attempt. `attempt` is the one that failed, from 1, as far as anybody wrote it down."""
        failures = max(self._failed.pop(enqueue_id, 0), attempt - 1)
        self._failed[enqueue_id] = failures + 1
        if len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)
        return back_off(failures)

    def forget(self, enqueue_id: EnqueueId) -> None:
        """The mail is done."""
        self._failed.pop(enqueue_id, None)


def action_of(delivery: Settled, outcome: Outcome | GiveBack, attempts: Attempts) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Outcome -> (its name in the metrics, what to ask of the delivery). The pause is fixed here, so that asking twice does not double it."""
    enqueue_id = delivery.item.enqueue_id
    match outcome:
        case Complete():
            attempts.forget(enqueue_id)
            return "completed", delivery.complete
        case Reject(reason=reason):
            attempts.forget(enqueue_id)
            return "rejected", lambda: delivery.reject(reason)
        case Bounce(reason=reason, failures=failures):
            attempts.forget(enqueue_id)
            return "bounced", lambda: delivery.bounce(reason, failures)
        case GiveBack():
            return "given_back", delivery.give_back
        case Retry(after=after, recipients=recipients, back_off=backs_off):
            pause = attempts.next_delay(enqueue_id, delivery.attempt) if backs_off and after is None else after
            return "retried", lambda: delivery.retry(recipients=recipients, after=pause)


class Handling:
    """Runs one handler over deliveries, at most `concurrency` at once. Belongs to one event loop."""

    def __init__(self, handler: LoadedHandler, concurrency: int, metrics: Figures) -> None:
        self._handler = handler
        self._metrics = metrics
        self._places = asyncio.Semaphore(concurrency)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="handler")
        self._running: set[asyncio.Task[None]] = set()
        self._attempts = Attempts()

    @property
    def in_flight(self) -> int:
        """Mails in a handler now."""
        return len(self._running)

    async def room(self) -> None:
        """Returns when there is a free place: for who takes a mail only when it can be begun."""
        async with self._places:
            pass

    async def start(self, delivery: Settled) -> None:
        """Waits for a free place, then runs the handler there; returns at once then."""
        await self._places.acquire()
        task = asyncio.create_task(self._handle(delivery), name=f"handle-{delivery.item.enqueue_id}")
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def drain(self, longest: float | None) -> int:
        """Waits up to `longest` seconds (None: as long as it takes) for the running handlers, then gives up on the rest: their number.

        The broker hands those out again.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=longest)
        left = set(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1)
        self._threads.shutdown(wait=False, cancel_futures=True)
        return len(left)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()):
            log.error("handling ended by a fault of mailslice; the broker hands the mail out again", exc_info=error, extra={"action": "handling_fault"})

    async def _handle(self, delivery: Settled) -> None:
        began = time.monotonic()
        with self._metrics.handling():
            outcome = await self._outcome(delivery)
        name, action = action_of(delivery, outcome, self._attempts)
        await self._tell(delivery, action)
        self._metrics.settled(name, time.monotonic() - began)

    async def _outcome(self, delivery: Settled) -> Outcome | GiveBack:
        try:
            result = await self._call(delivery)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(delivery, RuntimeError("the handler cancelled itself"))
        except TakenOver as error:
            log.warning("%s; its handler has left it", error, extra={"action": "taken_over", "enqueue_id": str(delivery.item.enqueue_id)})
            return GiveBack()
        except DeadLetter as error:
            return Reject(f"{type(error).__name__}: {error}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a handler throws, the mail is tried again
            return self._failed(delivery, error)
        return self._judged(delivery, result)

    def _judged(self, delivery: Settled, result: object) -> Outcome:
        if result is None:
            return Complete()
        if isinstance(result, Retry) and not set(result.recipients or ()) <= set(delivery.item.mail.recipients):
            return self._failed(delivery, ValueError("a retry names recipients that the mail does not have"))
        if isinstance(result, Complete | Retry | Reject | Bounce):
            return result
        return self._failed(delivery, TypeError(f"a handler gives an outcome or None, not a {type(result).__name__}"))

    async def _call(self, delivery: Settled) -> Any:
        item = delivery.item
        if self._handler.is_async:
            stage = delivery.stage_for_coroutine() if self._handler.takes_stage else None
            return await self._handler(item.mail, delivery.content, item.enqueue_id, stage)
        blocking = delivery.stage_for_thread() if self._handler.takes_stage else None
        result, error = await asyncio.get_running_loop().run_in_executor(self._threads, self._in_thread, delivery, blocking)
        if error is not None:
            raise error
        return await result if inspect.isawaitable(result) else result

    def _in_thread(self, delivery: Settled, stage: BlockingStage | None) -> tuple[Any, Exception | None]:
        # Errors travel as values: in a future StopIteration would never arrive, and KeyboardInterrupt would end the loop.
        try:
            return self._handler(delivery.item.mail, delivery.content, delivery.item.enqueue_id, stage), None
        except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
            return None, RuntimeError(f"{type(error).__name__} in a handler").with_traceback(error.__traceback__)
        except Exception as error:  # noqa: BLE001 - as above
            return None, error

    def _failed(self, delivery: Settled, error: BaseException) -> Retry:
        self._metrics.handler_failed()
        # A message may name addresses: it, and the traceback that ends in it, are for DEBUG.
        log.warning(
            "handler failed: %s at %s; the mail is tried again later (enqueue id %s)",
            type(error).__name__,
            _where(error),
            delivery.item.enqueue_id,
            extra={"action": "handler_failed", "enqueue_id": str(delivery.item.enqueue_id)},
        )
        log.debug("handler failed", exc_info=error)
        return Retry(back_off=True)

    async def _tell(self, delivery: Settled, action: Callable[[], Awaitable[None]]) -> None:
        """Asks until the stores have taken it: a mail that was handled must not be handled again because Cassandra blinked."""
        for attempt in itertools.count():
            try:
                await action()
            except TryAgain as error:
                pause = _SETTLE_PAUSES[min(attempt, len(_SETTLE_PAUSES) - 1)]
                self._metrics.store_failed()
                log.warning(
                    "outcome not stored, again in %d s: %s", pause, error, extra={"action": "settle_retry", "enqueue_id": str(delivery.item.enqueue_id)}
                )
                await asyncio.sleep(pause)
            else:
                return


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the handler"
