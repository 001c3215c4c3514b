"""What the workers' records say, and which workers are alive.

A worker is alive when it writes a record after this very look began. The age of a heartbeat proves
nothing, and neither does a beat since an earlier look: the broker has given back the mails of a
worker that was killed a moment ago. So each worker that lists a mail is waited for until it speaks
again (it is alive) or has been silent for too long (it is dead). Only the records are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mailslice.model.mail import EnqueueId
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord

_PAUSE = 0.5
_MARGIN = timedelta(seconds=5)
P99 = 0.99


@dataclass(frozen=True, slots=True)
class Seen:
    """`alive` have proved it, `dead` have been silent for too long, of `silent` nothing is known; workers that list nothing are in neither."""

    alive: tuple[WorkerRecord, ...]
    dead: tuple[WorkerRecord, ...]
    silent: tuple[WorkerRecord, ...]
    all: tuple[WorkerRecord, ...]

    @property
    def times(self) -> ProcessingTimes:
        """How long the queue's mails take, by all workers of the last day."""
        whole = ProcessingTimes()
        for record in self.all:
            if record.times is not None:
                whole.merge(record.times)
        return whole

    @property
    def in_flight(self) -> list[InFlightMail]:
        """Mails that the broker has given to workers who live, and not taken back."""
        return [mail for record in self.alive for mail in record.in_flight if not mail.returned]

    def record(self, worker: str) -> WorkerRecord | None:
        """The record of a worker that is alive."""
        return next((record for record in self.alive if record.worker == worker), None)

    def done(self) -> set[EnqueueId]:
        """Mails that workers say they have completed."""
        return {each for record in self.all for each in record.done}


@dataclass(frozen=True, slots=True)
class Stuck:
    """A mail and the living worker that has held it for too long."""

    record: WorkerRecord
    mail: InFlightMail

    @property
    def age(self) -> timedelta:
        """How long it has been held."""
        return self.record.age(self.mail)


def look(
    read: Callable[[], Sequence[WorkerRecord]], sleep: Callable[[float], None] = time.sleep
) -> Seen:
    """The records of the queue, once it is known who lives."""
    found = {record.worker: record for record in read()}
    before = {worker: record.beat for worker, record in found.items()}
    waited = timedelta(0)
    patience = (
        max(
            (record.dead_after for record in found.values() if record.in_flight),
            default=timedelta(0),
        )
        + _MARGIN
    )
    while waited < patience and any(_in_doubt(record, before) for record in found.values()):
        sleep(_PAUSE)
        waited += timedelta(seconds=_PAUSE)
        found.update({record.worker: record for record in read() if record.worker in found})
    holding = [record for record in found.values() if record.in_flight]
    alive = tuple(record for record in holding if record.beat > before[record.worker])
    dead = tuple(
        record for record in holding if record.beat <= before[record.worker] and not record.is_alive
    )
    silent = tuple(record for record in holding if record not in alive and record not in dead)
    return Seen(alive, dead, silent, tuple(found.values()))


def _in_doubt(record: WorkerRecord, before: Mapping[str, int]) -> bool:
    return bool(record.in_flight) and record.beat <= before[record.worker] and record.is_alive


def lock_timeout(times: ProcessingTimes, *, factor: float, at_least: timedelta) -> timedelta:
    """When a mail counts as stuck: so many times the p99 of its queue, and at least so long."""
    p99 = times.quantile(P99)
    return at_least if p99 is None else max(at_least, timedelta(seconds=p99) * factor)


def stuck(seen: Seen, timeout: timedelta) -> list[Stuck]:
    """Mails that a handler has had for longer than `timeout`, the oldest first.

    A mail that waits for a handler is not stuck: nothing was begun. One whose connection is gone is the broker's again. Of several holders the newest counts.
    """
    newest: dict[EnqueueId, Stuck] = {}
    for record in seen.alive:
        for mail in record.in_flight:
            holder = Stuck(record, mail)
            if not mail.returned and (
                mail.enqueue_id not in newest or holder.age < newest[mail.enqueue_id].age
            ):
                newest[mail.enqueue_id] = holder
    return sorted(
        (each for each in newest.values() if each.mail.begun and each.age > timeout),
        key=lambda each: (-each.age, each.mail.enqueue_id),
    )
