"""A queue for code without an event loop: the worker on a thread of its own, behind plain calls."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mailslice.admin.mail_queue import MailQueue
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import BadInput, MailsliceError, TryAgain
from mailslice.model.mail import Mail, QueuedMail, QueueName
from mailslice.model.settings import Settings, load_settings
from mailslice.stores.loop_thread import LoopThread
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.process.consume_loop import Consumed, close_on_stop, consume, end_watch
from mailslice.worker.process.handler_pool import next_delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker
from mailslice.worker.stages.handler_stage import BlockingStage
from mailslice.worker.validation import check_count, check_span

_BYTES_IN_FLIGHT = 64 * 1024 * 1024
"""Content that `enqueue_many` holds at most, except for a single larger mail."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The result for one mail of `enqueue_many`: its queue entry, or the error that kept it out."""

    mail: Mail
    item: QueuedMail | None
    error: MailsliceError | OSError | None = None


class SyncDelivery:
    """`Delivery`, in blocking calls. Each may raise StoreUnavailable: call it again then."""

    def __init__(self, loop: LoopThread, delivery: Delivery) -> None:
        self._loop = loop
        self._delivery = delivery

    @property
    def item(self) -> QueuedMail:
        """The mail, its enqueue id, its blob ids."""
        return self._delivery.item

    @property
    def mail(self) -> Mail:
        """The envelope."""
        return self._delivery.item.mail

    @property
    def content(self) -> bytes:
        """Header and body, byte for byte as they were enqueued."""
        return self._delivery.content

    @property
    def redelivered(self) -> bool:
        """Whether the broker delivered it before. A restarted broker may say so of any mail."""
        return self._delivery.redelivered

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1: one more than the delayed retries that counted."""
        return self._delivery.failures + 1

    @property
    def stage(self) -> BlockingStage:
        """The stage to mark progress with, on a queue with stage marks."""
        return self._loop.call(self._stage())

    async def _stage(self) -> BlockingStage:
        return self._delivery.stage_for_thread()

    def complete(self) -> None:
        """Completes the mail: it is not handed out again, and its content is deleted."""
        self._loop.call(self._delivery.complete())

    def retry(
        self,
        recipients: Sequence[str] | None = None,
        after: timedelta | None = None,
        *,
        counted: bool = True,
    ) -> None:
        """Delivers it again, at once or `after` up to 30 days, to the `recipients` that remain. A
        delayed retry is a failed attempt, unless `counted` is False.
        """
        self._loop.call(self._delivery.retry(recipients, after, counted=counted))

    def reject(self, reason: str) -> None:
        """Sends it to the dead letter queue. The reason is logged: no address in it."""
        self._loop.call(self._delivery.reject(reason))


class SyncQueue:
    """One queue, open for work until the `with` of `open_queue` ends."""

    def __init__(self, loop: LoopThread, worker: QueueWorker) -> None:
        self._loop = loop
        self._worker = worker
        self._stop = asyncio.Event()

    @property
    def name(self) -> QueueName:
        """The queue's name."""
        return self._worker.queue

    @cached_property
    def view(self) -> MailQueue:
        """The queue as an administrator sees it (`MailQueue`)."""
        return view_of(self._worker)

    def enqueue(
        self, mail: Mail, content: bytes | Path, *, delay: timedelta | None = None
    ) -> QueuedMail:
        """Returns when the mail is durable, to be delivered now or after `delay` (up to 30 days).

        `content`: the whole mail, or a file. Raises BadInput (too large, no recipients) or
        StoreUnavailable: it is not enqueued. After Unconfirmed, a StoreUnavailable, it may still be
        delivered; usually its deleted mark drops it.
        """
        return self._loop.call(self._worker.enqueue(mail, content, delay=delay))

    def enqueue_many(
        self,
        mails: Iterable[tuple[Mail, bytes | Path]],
        *,
        in_flight: int = 64,
        delay: timedelta | None = None,
    ) -> Iterator[Enqueued]:
        """Enqueues mails as it draws them from `mails`; yields each when it is durable or refused.

        The order may change. It draws mails only while the caller iterates, and holds at most
        `in_flight` mails, or 64 MiB. StoreUnavailable, a fault, or `mails`' error is raised last.
        """
        check_count("in_flight", in_flight)
        check_span("delay", delay)
        return self._stream_enqueues(iter(mails), in_flight, delay)

    def consume(
        self,
        handler: Callable[..., Any],
        *,
        prefetch: int = 16,
        concurrency: int = 8,
        most: int | None = None,
        idle: timedelta | None = None,
        give_up_after: timedelta | None = None,
    ) -> Consumed:
        """Calls `handler(mail, content)` for each mail and settles it by the outcome
        (`worker.consume`). Ends after `most` mails, after `idle` without mail, or by `stop`.
        """
        work = consume(
            self._worker,
            handler,
            prefetch=prefetch,
            concurrency=concurrency,
            most=most,
            idle=idle,
            stop=self._stop,
            give_up_after=give_up_after,
        )
        return self._loop.call(work)

    def deliveries(
        self,
        *,
        prefetch: int = 16,
        idle: timedelta | None = None,
        give_up_after: timedelta | None = None,
    ) -> Iterator[SyncDelivery]:
        """Yields the mails one by one; the caller settles each. Ends by `idle` or `stop`. Fetched
        mails go back when the caller's loop ends, unsettled ones when the queue is closed.
        """
        check_span("idle", idle)
        start = _start_iterator(self._worker, prefetch, give_up_after, self._stop)
        iterator = self._loop.call(start)
        try:
            while (delivery := self._loop.call(iterator.next(idle))) is not None:
                yield SyncDelivery(self._loop, delivery)
        finally:
            with suppress(BadInput):  # the queue was closed before the loop was left
                self._loop.call(iterator.close())

    def flush(self) -> int:
        """As `QueueWorker.flush`."""
        return self._loop.call(self._worker.flush())

    def stop(self) -> None:
        """Ends `consume` and `deliveries` at once and for ever. For any thread or signal."""
        self._loop.call_soon(self._stop.set)

    def _stream_enqueues(
        self, mails: Iterator[tuple[Mail, bytes | Path]], in_flight: int, delay: timedelta | None
    ) -> Iterator[Enqueued]:
        ended: SimpleQueue[tuple[Mail, int, Future[QueuedMail]]] = SimpleQueue()
        pending = bytes_in_flight = 0
        last: Exception | None = None
        has_more = True
        try:
            while has_more or pending:
                has_room = pending < in_flight and bytes_in_flight < _BYTES_IN_FLIGHT
                if has_more and ended.empty() and (has_room or not pending):
                    try:
                        if has_more := (entry := next(mails, None)) is not None:
                            bytes_in_flight += self._start_enqueue(entry, delay, ended)
                            pending += 1
                    except Exception as error:  # noqa: BLE001 - raised at the end
                        last, has_more = error, False
                    continue
                mail, size, done = ended.get()
                pending, bytes_in_flight = pending - 1, bytes_in_flight - size
                result = _result(mail, done)
                why = result.error if isinstance(result, Enqueued) else result
                if why is result or isinstance(why, TryAgain):
                    last, has_more = last or why, False
                if isinstance(result, Enqueued):
                    yield result
        finally:
            for _ in range(pending if self._loop.is_here else 0):
                ended.get()
        if last is not None:
            raise last

    def _start_enqueue(
        self,
        entry: tuple[Mail, bytes | Path],
        delay: timedelta | None,
        ended: SimpleQueue[tuple[Mail, int, Future[QueuedMail]]],
    ) -> int:
        """Starts an enqueue; the bytes that it holds. A file holds none: it is read in its turn."""
        mail, content = entry
        size = len(content) if isinstance(content, bytes | bytearray) else 0
        future = self._loop.submit(self._worker.enqueue(mail, content, delay=delay))
        future.add_done_callback(lambda done: ended.put((mail, size, done)))
        return size


@contextmanager
def open_queue(
    queue: str, settings: Settings | None = None, *, clock: Clock = system_clock
) -> Iterator[SyncQueue]:
    """Opens the stores for one queue, with an event loop on a thread of its own, and closes them.

    Settings default to MAILSLICE_*. Raises UnknownQueue, ConfigurationDiffers, BadSetting, and
    StoreUnavailable with the address, each within 15 s. Share it between threads, not with forks.
    """
    settings = settings or load_settings()
    loop = LoopThread(f"queue {queue!r}")
    loop.start()
    try:
        stack = AsyncExitStack()
        worker = loop.call(stack.enter_async_context(open_worker(settings, queue, clock=clock)))
        opened = SyncQueue(loop, worker)
        try:
            yield opened
        finally:
            opened.stop()
            loop.end(stack.aclose())
    finally:
        loop.stop()


def view_of(worker: QueueWorker) -> MailQueue:
    """An open worker's queue for administrators. It blocks: on a loop use `asyncio.to_thread`."""
    return MailQueue(worker.context.stores, worker.queue, worker.context.clock)


class _DeliveryIterator:
    """Deliveries on the loop, for an iterator in another thread."""

    def __init__(self, deliveries: Deliveries, stop: asyncio.Event) -> None:
        self._deliveries = deliveries
        self._stop = stop
        self._stopping = asyncio.create_task(close_on_stop(stop, deliveries))
        self._handed: set[Delivery] = set()

    async def next(self, idle: timedelta | None) -> Delivery | None:
        delivery = await next_delivery(self._deliveries, idle, lambda: False)
        if delivery is not None:
            self._handed = {mail for mail in self._handed if not mail.settled.is_set()}
            self._handed.add(delivery)
        return delivery

    async def close(self) -> None:
        """Disconnects, unless a mail in hand can still be settled."""
        await end_watch(self._stopping, self._stop)
        await self._deliveries.aclose()
        if all(handed.settled.is_set() for handed in self._handed):
            await self._deliveries.disconnect()


async def _start_iterator(
    worker: QueueWorker, prefetch: int, give_up_after: timedelta | None, stop: asyncio.Event
) -> _DeliveryIterator:
    return _DeliveryIterator(worker.deliveries(prefetch, give_up_after=give_up_after), stop)


def _result(mail: Mail, done: Future[QueuedMail]) -> Enqueued | Exception:
    """The mail's result, or an error that is not this mail's: a fault, or one of the iterator."""
    try:
        return Enqueued(mail, done.result())
    except (MailsliceError, OSError) as error:
        return Enqueued(mail, None, error)
    except Exception as error:  # noqa: BLE001 - raised at the end
        return error
