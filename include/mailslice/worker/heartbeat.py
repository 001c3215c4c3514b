"""The worker's record, one row: its mails in hand, since when, its counts and processing times.

A task writes it every few seconds; in an idle worker once a minute, but the first after a second.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import chain, islice

from mailslice.codec.headers import partition_in
from mailslice.model.errors import MailsliceError, TryAgain
from mailslice.model.mail import QueuedMail
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord, WorkerRecords
from mailslice.stores.cassandra.own.worker_records import MAX_LISTED
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.dequeue.delivery import Delivery, WorkerState

log = logging.getLogger(__name__)

LEAST_DONE = 500
"""Newest completed mails in one record; more if more were completed since the last but one."""
_LONG = 1.0
"""Seconds in a handler from which on the record has a mail's message."""
_MAX_MESSAGE_BYTES = 1024 * 1024
_IDLE = 60.0
"""Seconds between the heartbeats of an idle worker."""
_CLOSE_S = 2.0
_FIRST_S = 10.0
"""Seconds for the last record, and for one that is also the first: it may create the table."""


class Recorder:
    """Writes a worker's record. `received`: messages delivered and not handed out yet."""

    def __init__(
        self, state: WorkerState, received: Callable[[], Iterable[tuple[QueuedMail, Message]]]
    ) -> None:
        self._state = state
        self._context = context = state.context
        self._received = received
        self._every = context.settings.worker.record_every.total_seconds()
        self._started = context.clock()
        self._table: WorkerRecords | None = None
        self._beat = 0
        self._written = 0.0
        self._reported: tuple[int, int, tuple[str, ...]] = (-1, 0, ())
        """Mails in the last record, mails settled, and holds. -1: no record yet. The first is due
        at once: it shows others that this worker runs, and its `shared` setting.
        """
        self._finished = deque([0, 0], maxlen=2)
        """Mails completed up to the last two records."""
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, unless it has begun or the setting disables the record."""
        if self._running is None and self._every > 0:
            self._running = asyncio.create_task(self._run(), name="worker-record")

    async def close(self) -> None:
        """Ends. Writes a last record, without mails in hand, if the store takes it."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.wait({self._running})
        statistics = self._context.statistics
        if self._beat or statistics.completed or statistics.slow:
            with suppress(TimeoutError, MailsliceError):
                async with asyncio.timeout(_CLOSE_S if self._table is not None else _FIRST_S):
                    await self._write((), ended=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._written = loop.time() - self._every
        while True:
            await asyncio.sleep(min(_LONG, self._every))
            if not self._is_due(loop.time()):
                continue
            try:
                await self._write(self._listed())
            except Exception as error:
                is_away, is_known = (isinstance(error, kind) for kind in (TryAgain, MailsliceError))
                level = logging.INFO if is_away else logging.WARNING
                text = "the worker's record was not written, again in %d s: %s"
                extra = {"action": "record_skipped", "queue": self._context.queue}
                pause = self._every if is_away else _IDLE
                log.log(level, text, pause, error, exc_info=not is_known, extra=extra)
                self._written = loop.time() + (0.0 if is_away else _IDLE)

    def _is_due(self, now: float) -> bool:
        """At once if holds changed, every few seconds with changes or mails, else once a minute."""
        quiet = now - self._written
        if quiet >= 0 and self._holds() != self._reported[2]:
            return True
        reported = self._reported == (0, self._context.statistics.count, ())
        has_mails = bool(self._state.in_hand) or any(True for _ in self._received())
        has_changes = has_mails or not reported or bool(self._holds())
        return quiet >= (self._every if has_changes else max(_IDLE, self._every))

    def _holds(self) -> tuple[str, ...]:
        return () if self._state.holds is None else self._state.holds.active.changes

    async def _write(self, in_flight: tuple[InFlightMail, ...], *, ended: bool = False) -> None:
        statistics = self._context.statistics
        summary = (len(in_flight), statistics.count, self._holds())
        finished = statistics.finished
        newest = max(LEAST_DONE, finished - self._finished[0])
        if self._table is None:
            self._table = await self._context.open_table(WorkerRecords.created)
        self._beat += 1
        record = WorkerRecord(
            worker=self._context.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=self._started,
            every=timedelta(seconds=self._every),
            beat=self._beat,
            in_flight=in_flight,
            done=(*statistics.slow, *[*statistics.completed][-newest:]),
            times=statistics.times,
            settled=statistics.count,
            completed=statistics.finished - statistics.failed,
            hops=statistics.hops,
            undoing=statistics.undoing,
            left_behind=statistics.abandoned,
            stage_marks=self._state.in_doubt is not None and self._state.handler_marks,
            shared=self._context.settings.queue.shared,
            holds=summary[2],
            ended=ended,
        )
        await self._context.bridge.rows(self._table.save_future(self._context.queue, record))
        self._written = asyncio.get_running_loop().time()
        self._reported = summary
        self._finished.append(finished)

    def _listed(self) -> tuple[InFlightMail, ...]:
        """Mails in handlers first, the oldest of them first; then those that wait for one."""
        now = asyncio.get_running_loop().time()
        in_hand = self._state.in_hand.values()
        handed = [delivery for delivery in in_hand if delivery.handed_at is not None]
        begun = sorted(handed, key=lambda delivery: delivery.handed_at or now)
        waiting = (delivery for delivery in in_hand if delivery.handed_at is None)
        mails = chain(
            (_of_delivery(delivery, now) for delivery in chain(begun, waiting)),
            (_of_message(item, message, now) for item, message in self._received()),
        )
        return tuple(_without_large_messages(islice(mails, MAX_LISTED)))


def _of_delivery(delivery: Delivery, now: float) -> InFlightMail:
    begun = delivery.handed_at is not None
    message = delivery.message
    seconds = now - (message.arrived if delivery.handed_at is None else delivery.handed_at)
    return InFlightMail(
        enqueue_id=delivery.item.enqueue_id,
        name=delivery.item.mail.name,
        held=timedelta(seconds=max(0.0, seconds)),
        stage=delivery.stage,
        attempt=delivery.attempt,
        begun=begun,
        returned=delivery.lease.is_lost,
        partition=partition_in(message.headers),
        message=delivery.encoded if begun and seconds >= _LONG else None,
    )


def _of_message(item: QueuedMail, message: Message, now: float) -> InFlightMail:
    duration = timedelta(seconds=max(0.0, now - message.arrived))
    fields = (item.enqueue_id, item.mail.name, duration, "received", 1)
    returned, partition = not message.link.is_open, partition_in(message.headers)
    return InFlightMail(*fields, begun=False, returned=returned, partition=partition)


def _without_large_messages(mails: Iterable[InFlightMail]) -> Iterator[InFlightMail]:
    """Leaves out message bodies beyond 1 MiB in all: the mails' rows have them."""
    room = _MAX_MESSAGE_BYTES
    for mail in mails:
        room -= len(mail.message or b"")
        yield mail if room >= 0 else replace(mail, message=None)
