"""Which mails the workers of a queue have, and which they completed, by table `worker_records`.

A record lists a thousand mails in hand. It also names completed mails: at least the newest 500, and
all since the last record but one. A reader that looks often enough misses none. A mail that may
have been missed counts as unknown, never as not completed.
"""

from collections.abc import Callable
from datetime import timedelta

from mailslice.model.clock import elapsed_seconds
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import WorkerRecord
from mailslice.stores.cassandra.own.worker_records import MAX_LISTED
from mailslice.stores.rabbitmq.blocking_publisher import has_consumers

_NAMED, _NAMED_RECORDS = 500, 2
"""A record names at least 500 completed mails, and all that the last two records cover."""
_TICK = 1.0
_LEAST_INTERVAL = 0.1


class WorkerHistory:
    """From `begin` on. `done`: ids of completed mails; `missed`: it may have overlooked others."""

    def __init__(
        self, stores: Stores, queue: QueueName, sleep: Callable[[float], None], patience: timedelta
    ) -> None:
        """`patience`: how long `wait_for_handlers` waits for handlers that have a mail."""
        self._stores = stores
        self._queue = queue
        self._sleep = sleep
        self._patience = patience.total_seconds()
        self._intervals = {_seconds(stores.settings.worker.record_every)}
        self.begin()

    def begin(self) -> None:
        """Forgets what it knows. The next `observe` is the base for later ones."""
        self.done: set[EnqueueId] = set()
        self.missed = self.is_cut = False
        """`is_cut`: a worker may have more mails than its last record lists."""
        self._last: dict[str, WorkerRecord] | None = None
        self._alive: set[str] = set()

    def observe(self) -> frozenset[EnqueueId]:
        """Reads the records. Returns the mails in the hands of workers that were ever seen alive. A
        mail that a worker gave back counts: its handler may still run.
        """
        records = {one.worker: one for one in self._stores.own.worker_records.list(self._queue)}
        last = records if self._last is None else self._last
        for worker, record in records.items():
            before = last.get(worker)
            beat, settled = (before.beat, before.settled) if before is not None else (0, 0)
            late = record.beat > beat + _NAMED_RECORDS
            self.missed |= late and record.settled > settled + _NAMED
            self.done.update(record.done)
            self._intervals.add(_seconds(record.every))
            if record.is_alive:
                self._alive.add(worker)
        self._last = records
        living = [record for worker, record in records.items() if worker in self._alive]
        self.is_cut = any(len(record.in_flight) >= MAX_LISTED for record in living)
        self.missed |= self.is_cut
        return frozenset(mail.enqueue_id for record in living for mail in record.in_flight)

    def observe_twice(self) -> frozenset[EnqueueId]:
        """`observe` now, and again after the live workers have written their next record."""
        in_flight = self.observe()
        if self._alive:
            self._sleep(max(self._intervals) + _TICK)
        return in_flight | self.observe()

    def wait_for_handlers(
        self, ids: set[EnqueueId], meanwhile: Callable[[], None]
    ) -> frozenset[EnqueueId]:
        """Waits. Returns those of the marked mails `ids` that a handler still has at the end.

        A worker that was given a mail before its mark says so by its second next record. A worker
        that had mails and does not write that record may have completed any mail: this sets
        `missed`. Calls `meanwhile` after each pause.
        """
        in_flight = self.observe() & ids
        if not ids or not self.has_workers():
            return in_flight
        due = self._due()
        longest = max((record.dead_after.total_seconds() for record, _ in due), default=0.0)
        waited = 0.0
        while waited < 2 * max(self._intervals) + _TICK or (
            waited < longest and self._is_silent(due)
        ):
            pause = min(*self._intervals, _TICK)  # a worker that began meanwhile adds an interval
            waited += pause
            in_flight = self._observed_after(pause, meanwhile) & ids
        self.missed |= self._is_silent(due)
        end = elapsed_seconds() + self._patience
        while in_flight and elapsed_seconds() < end:
            in_flight = self._observed_after(_TICK, meanwhile) & ids
        return in_flight

    def has_workers(self) -> bool:
        """Whether the queue may have a consumer, or a worker was alive at an observation."""
        rabbitmq, work_queue = self._stores.settings.rabbitmq, RabbitNames(self._queue).work_queue
        try:
            return bool(self._alive) or has_consumers(rabbitmq, work_queue)
        except StoreUnavailable:  # an error between mark and proof would leave a doubt
            return True

    def _observed_after(
        self, seconds: float, meanwhile: Callable[[], None]
    ) -> frozenset[EnqueueId]:
        self._sleep(seconds)
        meanwhile()
        return self.observe()

    def _due(self) -> list[tuple[WorkerRecord, int]]:
        """The last record of each live worker that has mails, and the beat that it must reach."""
        return [
            (record, record.beat + _NAMED_RECORDS)
            for worker, record in (self._last or {}).items()
            if worker in self._alive and record.in_flight and not record.ended
        ]

    def _is_silent(self, due: list[tuple[WorkerRecord, int]]) -> bool:
        last = self._last or {}
        now = [(last.get(record.worker, record), beat) for record, beat in due]
        return any(record.beat < beat and not record.ended for record, beat in now)


def _seconds(interval: timedelta) -> float:
    return max(_LEAST_INTERVAL, interval.total_seconds())
