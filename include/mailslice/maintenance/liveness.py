"""Which workers live, and which mails they have held for too long, by their records alone.

A worker is alive when it writes a record after this very look began. The age of a heartbeat proves
nothing, and neither does a beat since an earlier look: the broker has given back the mails of a
worker that was killed a moment ago. So each worker that lists a mail is waited for until it writes
again (it is alive) or has been silent for too long (it is dead).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mailslice.model.mail import EnqueueId
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord

Sleep = Callable[[float], None]
_PAUSE = 0.5
_MARGIN = timedelta(seconds=5)
P99 = 0.99


@dataclass(frozen=True, slots=True)
class WorkerLiveness:
    """The records of a queue's workers; those without a mail are in `all` only.

    `alive` have proved it, `dead` have been silent for too long, of `silent` nothing is known.
    """

    alive: tuple[WorkerRecord, ...] = ()
    dead: tuple[WorkerRecord, ...] = ()
    silent: tuple[WorkerRecord, ...] = ()
    all: tuple[WorkerRecord, ...] = ()

    @property
    def mute(self) -> tuple[WorkerRecord, ...]:
        return (*self.dead, *self.silent)

    @property
    def times(self) -> ProcessingTimes:
        """How long the queue's mails take, by all workers of the last day."""
        merged = ProcessingTimes()
        for record in self.all:
            if record.times is not None:
                merged.merge(record.times)
        return merged

    @property
    def in_flight(self) -> list[InFlightMail]:
        """Mails that the broker has given to workers who live, and not taken back."""
        return [mail for record in self.alive for mail in record.in_flight if not mail.returned]


@dataclass(frozen=True, slots=True)
class Stuck:
    """A mail and a worker whose record has it: of `stuck_mails` a living one, for too long."""

    record: WorkerRecord
    mail: InFlightMail

    @property
    def age(self) -> timedelta:
        return self.record.age(self.mail)


def observe(
    read: Callable[[], Sequence[WorkerRecord]], sleep: Sleep = time.sleep
) -> WorkerLiveness:
    """The records that `read` gives, once it is known who lives."""
    records = {record.worker: record for record in read()}
    before = {worker: record.beat for worker, record in records.items()}
    limits = [record.dead_after for record in records.values() if record.in_flight]
    patience, waited = max(limits, default=timedelta(0)) + _MARGIN, timedelta(0)
    while waited < patience and any(
        record.in_flight and record.beat <= before[record.worker] and record.is_alive
        for record in records.values()
    ):
        sleep(_PAUSE)
        waited += timedelta(seconds=_PAUSE)
        records.update({record.worker: record for record in read() if record.worker in records})
    holding = [record for record in records.values() if record.in_flight]
    # Who has written may have died since, while others were waited for.
    dead = tuple(record for record in holding if not record.is_alive)
    alive = tuple(one for one in holding if one.is_alive and one.beat > before[one.worker])
    silent = tuple(one for one in holding if one.is_alive and one.beat <= before[one.worker])
    return WorkerLiveness(alive, dead, silent, tuple(records.values()))


def lock_timeout(times: ProcessingTimes, *, factor: float, at_least: timedelta) -> timedelta:
    """When a mail counts as stuck: so many times the p99 of its queue, and at least so long."""
    p99 = times.quantile(P99)
    return at_least if p99 is None else max(at_least, timedelta(seconds=p99) * factor)


def stuck_mails(liveness: WorkerLiveness, timeout: timedelta) -> list[Stuck]:
    """Mails that a handler has had for longer than `timeout`, the oldest first.

    Of several holders the newest counts. A mail that waits for a handler is not stuck: nothing was
    begun. One whose connection is gone is the broker's again. One in stage settling has left it.
    """
    newest: dict[EnqueueId, Stuck] = {}
    for record in liveness.alive:
        for mail in record.in_flight:
            holder, other = Stuck(record, mail), newest.get(mail.enqueue_id)
            if not mail.returned and (other is None or holder.age < other.age):
                newest[mail.enqueue_id] = holder
    handled = (one for one in newest.values() if one.mail.begun and one.mail.stage != "settling")
    return sorted(
        (stuck for stuck in handled if stuck.age > timeout),
        key=lambda stuck: (-stuck.age, stuck.mail.enqueue_id),
    )
