"""Runs handlers concurrently, in threads or as tasks, and settles mails by their outcomes."""

import asyncio
import inspect
import itertools
import logging
import math
import random
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from mailslice.codec.reports import Failure
from mailslice.model.back_off import BackOff
from mailslice.model.delay_levels import LONGEST_DELAY, snapped
from mailslice.model.errors import BadSetting, DeadLetter, MailsliceError, TakenOver, TryAgain
from mailslice.model.names import HEADER_FAILURES
from mailslice.model.settings import GiveUp, Settings
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.dequeue.strikes import Isolation
from mailslice.worker.logs import about
from mailslice.worker.outcome import Bounce, Complete, Disposition, Outcome, Reject, Retry
from mailslice.worker.process.consumer_task import DRAIN
from mailslice.worker.process.handler_spec import LoadedHandler

log = logging.getLogger(__name__)

DRAIN_SECONDS = DRAIN.total_seconds()
"""How long the end waits for stores that are away and, after an error, for handlers."""
_LEAST_WAIT = 0.05


class HandlerMetrics(Protocol):
    """The counters of handled mails (`metrics.ConsumerMetrics`)."""

    def handling(self) -> AbstractContextManager[None]: ...
    def settled(self, outcome: Disposition, seconds: float) -> None: ...
    def handler_failed(self) -> None: ...
    def store_failed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Requeue:
    """Another worker has the mail, by its stage marks: this one only returns it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How to treat a mail whose attempts fail.

    `back_off`: the pauses between attempts. `give_up`: what follows the last one. `chance` gives -1
    to 1. `settle_pauses`: seconds between attempts to store an outcome; the last one repeats.
    """

    back_off: BackOff = field(default_factory=BackOff)
    give_up: GiveUp = GiveUp.DEAD_LETTER
    chance: Callable[[], float] = lambda: random.uniform(-1, 1)
    settle_pauses: tuple[float, ...] = (1, 2, 4, 8, 15)


def policy_of(settings: Settings) -> Policy:
    """By MAILSLICE_WORKER_*. Raises BadSetting if mails are to bounce without a bounce queue."""
    worker = settings.worker
    if worker.give_up is GiveUp.BOUNCE and worker.bounce_queue is None:
        raise BadSetting(
            f"MAILSLICE_WORKER_GIVE_UP=bounce ({settings.where('MAILSLICE_WORKER_GIVE_UP')}) needs "
            "MAILSLICE_WORKER_BOUNCE_QUEUE, the queue that reports go to"
        )
    pauses = worker.back_off_base, worker.back_off_factor, worker.back_off_cap
    return Policy(BackOff(*pauses, worker.attempts), worker.give_up)


def action_of(
    delivery: Delivery, outcome: Outcome | Requeue, policy: Policy
) -> Callable[[], Awaitable[Disposition]]:
    """Outcome -> the call that settles the delivery. A repeated call has the same pause."""
    match outcome:
        case Complete():
            return delivery.complete
        case Reject(reason=reason):
            return lambda: delivery.reject(reason)
        case Bounce(reason=reason, failures=failures):
            return lambda: delivery.bounce(reason, failures)
        case Requeue():
            return delivery.requeue
        case Retry():
            return _retry_action(delivery, outcome, policy)


def _retry_action(
    delivery: Delivery, outcome: Retry, policy: Policy
) -> Callable[[], Awaitable[Disposition]]:
    failures, recipients = delivery.failures + 1, delivery.item.mail.recipients
    pause = outcome.after
    if outcome.back_off:
        grown = min(LONGEST_DELAY, snapped(policy.back_off.pause(failures, policy.chance())))
        pause = max(pause or timedelta(0), grown)
    waits = pause is not None and pause > timedelta(0)
    counts = outcome.counted and not outcome.throttled and waits
    if counts and policy.back_off.used_up(failures):
        remaining = tuple(recipients if outcome.recipients is None else outcome.recipients)
        if set(remaining) == set(recipients):
            final = _final_outcome(remaining, failures, outcome.why, policy)
            return action_of(delivery, final, policy)
        # Served recipients are done. For the others this was the last attempt: the next delivery
        # names only them.
        return lambda: delivery.retry(recipients=remaining)
    flags = {"counted": outcome.counted, "throttled": outcome.throttled}
    return lambda: delivery.retry(outcome.recipients, pause, **flags)


def _final_outcome(
    recipients: tuple[str, ...], failures: int, why: str, policy: Policy
) -> Reject | Bounce:
    last = f"; the last: {why}" if why else ""
    reason = f"given up after {failures} attempts (MAILSLICE_WORKER_ATTEMPTS){last}"
    if policy.give_up is GiveUp.DEAD_LETTER:
        return Reject(reason)
    why = f"it could not be delivered in {failures} attempts, and is given up"
    return Bounce(reason, tuple(Failure(recipient, "4.4.7", why) for recipient in recipients))


def _handler_threads(count: int) -> ThreadPoolExecutor:
    """Starts all threads at once. An executor that fails to start a thread later has queued the
    call nevertheless, and the mail would be handled twice. Raises BadSetting.
    """
    threads, all_started = ThreadPoolExecutor(count, "handler"), threading.Event()
    try:
        for _ in range(count):
            threads.submit(all_started.wait)
    except RuntimeError as error:
        raise BadSetting(
            f"{count} handlers at once need as many threads, and the system refuses one: {error}"
        ) from error
    finally:
        all_started.set()
    return threads


class HandlerPool:
    """Runs one handler over deliveries, at most `concurrency` at once; for one event loop."""

    def __init__(
        self,
        handler: LoadedHandler,
        concurrency: int,
        metrics: HandlerMetrics,
        policy: Policy,
        isolation: Isolation | None = None,
    ) -> None:
        self._handler = handler
        self._metrics = metrics
        self._permits = asyncio.Semaphore(concurrency)
        self._threads = _handler_threads(1 if handler.is_async else concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._policy = policy
        self._isolation = isolation or Isolation()
        self._ending_since = math.inf
        self.stopping = threading.Event()
        """Set when the worker ends. A handler that takes it then begins nothing that can wait."""

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def start(self, delivery: Delivery) -> None:
        """Waits until a handler can start, starts it as a task, and returns."""
        await self._permits.acquire()
        permit = ExitStack()
        permit.callback(self._permits.release)
        name = f"handle-{delivery.item.enqueue_id}"
        task = asyncio.create_task(self._handle(delivery, permit), name=name)
        self._running.add(task)
        task.add_done_callback(partial(self._on_ended, permit))

    async def serve(
        self,
        deliveries: Deliveries,
        *,
        limit: int | None = None,
        idle: timedelta | None = None,
        on_taken: Callable[[Delivery], None] = lambda _delivery: None,
    ) -> None:
        """Starts the handler for each delivery, until there is no more, none came for `idle`, or
        `limit` were taken. It may be cancelled while it waits. It takes a delivery only when a
        handler can start: stuck_mails would close a mail that is handed out and waits.
        """
        taken = 0
        while taken != limit:
            async with self._permits:  # waits until a handler can start
                pass
            delivery = await next_delivery(deliveries, idle, lambda: self.in_flight > 0)
            if delivery is None:
                return
            taken += 1
            on_taken(delivery)
            await self.start(delivery)
            del delivery  # only the handler keeps the content

    def announce_end(self) -> None:
        """The worker is about to end: an outcome that no store takes for 30 s is given up."""
        self.stopping.set()
        self._ending_since = min(self._ending_since, time.monotonic())

    async def drain(self, longest: float | None) -> int:
        """Waits up to `longest` seconds (None: as long as handlers take, and 30 s for the stores)
        for running handlers. Cancels those that did not end, whose mails go back; their number.
        """
        if longest is None:
            self._ending_since = min(self._ending_since, time.monotonic())
        else:
            self.stopping.set()
        if self._running:
            await asyncio.wait(self._running, timeout=longest)
        unfinished = set(self._running)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=1)
        self._threads.shutdown(wait=False, cancel_futures=True)
        return len(unfinished)

    def _on_ended(self, permit: ExitStack, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        permit.close()
        if not task.cancelled() and (error := task.exception()):
            text = "handling ended by a fault of mailslice; its mail is held until the process ends"
            log.error(text, exc_info=error, extra={"action": "handling_fault"})

    async def _handle(self, delivery: Delivery, permit: ExitStack) -> None:
        enqueue_id = delivery.item.enqueue_id
        async with self._isolation.admitted(enqueue_id):
            began = time.monotonic()
            with self._metrics.handling(), self._isolation.in_handler(enqueue_id):
                outcome = await self._run_handler(delivery)
            if not isinstance(outcome, Requeue):
                delivery.explain(getattr(outcome, "why", ""), outcome.answer)
            action = action_of(delivery, outcome, self._policy)
            disposition = await self._store_outcome(delivery, action, permit)
        if disposition is not None:
            self._metrics.settled(disposition, time.monotonic() - began)

    async def _run_handler(self, delivery: Delivery) -> Outcome | Requeue:
        try:
            return self._checked_outcome(delivery, await self._call(delivery))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._retry_after(delivery, RuntimeError("the handler cancelled itself"))
        except TakenOver as error:
            text = "%s; its handler has left it"
            log.warning(text, error, extra=about("taken_over", delivery.item.enqueue_id))
            return Requeue()
        except DeadLetter as error:
            return Reject(f"{type(error).__name__}: {error}")
        except TryAgain as error:
            # A store that is away is no fault of the mail, and uses up none of its attempts.
            return replace(self._retry_after(delivery, error), counted=False)
        except GeneratorExit:
            raise  # the loop is being closed
        except BaseException as error:  # noqa: BLE001
            # Whatever a handler raises, the mail is tried again. Libraries (gevent, trio) raise
            # BaseExceptions of their own.
            return self._retry_after(delivery, error)

    def _checked_outcome(self, delivery: Delivery, result: object) -> Outcome:
        """The outcome if it is valid, else that of a failed handler."""
        if result is None:
            return Complete()
        if not isinstance(result, Complete | Retry | Reject | Bounce):
            why = f"a handler gives an outcome or None, not a {type(result).__name__}"
            return self._retry_after(delivery, TypeError(why))
        if wrong := _wrong_field(result):
            return self._retry_after(delivery, TypeError(wrong))
        if isinstance(result, Retry):
            if not set(result.recipients or ()) <= set(delivery.item.mail.recipients):
                wrong = "a retry names recipients that the mail does not have"
                return self._retry_after(delivery, ValueError(wrong))
            if result.after is not None and result.after > LONGEST_DELAY:
                return self._retry_after(delivery, ValueError("a retry asks for more than 30 days"))
        return result

    async def _call(self, delivery: Delivery) -> Any:
        mail, loop = delivery.item.mail, asyncio.get_running_loop()
        # A copy: the message of a retry has the attributes as they came.
        mail = replace(mail, attributes=dict(mail.attributes))
        call = partial(self._handler.call, mail, delivery.content, **self._keywords(delivery))
        if self._handler.is_async:
            result = call()
        else:
            result, error = await loop.run_in_executor(self._threads, _run_in_thread, call)
            if error is not None:
                raise error
        # A task of its own: a handler that cancels its task does not cancel the settlement.
        if not inspect.isawaitable(result):
            return result
        return await loop.create_task(_await_result(result))

    def _keywords(self, delivery: Delivery) -> dict[str, object]:
        """The keyword arguments that the handler takes (`handler_spec`)."""
        loop, is_async = asyncio.get_running_loop(), self._handler.is_async
        message = delivery.message
        offers: dict[str, Callable[[], object]] = {
            "enqueue_id": lambda: delivery.item.enqueue_id,
            "stage": delivery.stage_for_coroutine if is_async else delivery.stage_for_thread,
            "throttle": delivery.throttle_for_thread,
            # A retry is a message of its own, which the broker has not handed out before.
            "redelivered": lambda: message.redelivered or HEADER_FAILURES in message.headers,
            "arrived": lambda: time.monotonic() - (loop.time() - message.arrived),
            "stopping": lambda: self.stopping,
        }
        return {name: offers[name]() for name in self._handler.takes}

    def _retry_after(self, delivery: Delivery, error: BaseException) -> Retry:
        self._metrics.handler_failed()
        why, enqueue_id = f"{type(error).__name__} at {_where(error)}", delivery.item.enqueue_id
        # The error's text may name addresses: only DEBUG logs it, with its traceback.
        text = "handler failed: %s; the mail is tried again later (enqueue id %s)"
        log.warning(text, why, enqueue_id, extra=about("handler_failed", enqueue_id))
        log.debug("handler failed", exc_info=error)
        return Retry(back_off=True, why=why)

    async def _store_outcome(
        self, delivery: Delivery, action: Callable[[], Awaitable[Disposition]], permit: ExitStack
    ) -> Disposition | None:
        """Repeats `action` until the stores have taken it: the mail must not be handled again.

        It repeats after any error: a mail given up here would stay unsettled and unacknowledged.
        Only the end of the worker stops it, with None; then the broker gets the mail back.
        """
        began = time.monotonic()
        pauses = self._policy.settle_pauses
        pauses_left = itertools.chain(pauses, itertools.repeat(pauses[-1]))
        while True:
            pause = next(pauses_left)
            extra = about("settle_retry", delivery.item.enqueue_id)
            try:
                return await action()
            except MailsliceError as error:
                delivery.stage = "settling"  # stuck_mails leaves it alone
                log.warning("outcome not stored, again in %d s: %s", pause, error, extra=extra)
            except Exception:
                text = "outcome not stored, by a fault of mailslice; again in %d s"
                log.exception(text, pause, extra=extra)
            self._metrics.store_failed()
            if delivery.lease.is_out:  # it occupies no window, and other mails can be stored
                delivery.drop_content()
                if delivery.has_room:
                    permit.close()
            remaining = DRAIN_SECONDS + max(began, self._ending_since) - time.monotonic()
            if remaining <= 0:
                text = "outcome given up at the end: no store took it for %d s; the mail goes back"
                log.warning(text, DRAIN_SECONDS, extra=extra)
                return None
            await asyncio.sleep(min(remaining, pause * random.uniform(0.7, 1.0)))


def _run_in_thread(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    # Errors travel as values: a future does not pass on StopIteration, and KeyboardInterrupt would
    # end the loop.
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - as above
        return None, error if isinstance(error, Exception) else _as_error(error)


async def _await_result(result: Awaitable[Any]) -> Any:
    try:
        return await result
    except (KeyboardInterrupt, SystemExit) as error:  # they would end the loop
        raise _as_error(error) from None


def _as_error(error: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__} in a handler").with_traceback(error.__traceback__)


async def next_delivery(
    deliveries: Deliveries, idle: timedelta | None, busy: Callable[[], bool]
) -> Delivery | None:
    """The next delivery; None: there are no more, or nothing came for `idle` while not `busy`."""
    if idle is None:
        return await anext(deliveries, None)
    longest = idle.total_seconds()
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(_LEAST_WAIT, longest - deliveries.idle_seconds)):
                return await anext(deliveries, None)
        if not busy() and deliveries.idle_seconds >= longest:
            return None


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_failure(value: object) -> bool:
    return isinstance(value, Failure) and _are_texts(
        (value.recipient, value.status, value.reason, value.diagnostic or "")
    )


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("reason", "answer", "why"), ("text", lambda value: isinstance(value, str))),
    **dict.fromkeys(("back_off", "counted", "throttled"), ("a bool", lambda x: isinstance(x, int))),
    "after": ("a timedelta", lambda value: isinstance(value, timedelta | None)),
    "failures": (
        "a tuple of Failure, whose fields are text",
        lambda value: isinstance(value, list | tuple) and all(map(_is_failure, value)),
    ),
    "recipients": (
        "a tuple of text",
        lambda x: isinstance(x, list | tuple | set | frozenset | None) and _are_texts(x or ()),
    ),
}
"""Field of an outcome -> what it has to be."""


def _wrong_field(outcome: object) -> str | None:
    """The first invalid field of an outcome, in words: nothing else checks what handlers return."""
    for name, (allowed, is_allowed) in _FIELDS.items():
        if hasattr(outcome, name) and not is_allowed(value := getattr(outcome, name)):
            return f"the {name} of an outcome is {allowed}, not a {type(value).__name__}"
    return None


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the handler"
