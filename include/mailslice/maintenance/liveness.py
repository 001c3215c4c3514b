"""Decides from the workers' records which workers are alive and which mails are stuck.

A worker is alive when it writes a record after `observe` began. Neither the age of a heartbeat nor
a beat since an earlier observation proves that: the worker may have been killed a moment ago, and
the broker has then requeued its mails. So `observe` waits for each worker that lists a mail, until
it writes again (it is alive) or has been silent for too long (it is dead).
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
    """The records of a queue's workers. Those without a mail are in `all` only.

    `alive`: wrote since `observe` began. `dead`: silent for too long. `silent`: not known.
    """

    alive: tuple[WorkerRecord, ...] = ()
    dead: tuple[WorkerRecord, ...] = ()
    silent: tuple[WorkerRecord, ...] = ()
    all: tuple[WorkerRecord, ...] = ()

    @property
    def not_alive(self) -> tuple[WorkerRecord, ...]:
        return (*self.dead, *self.silent)

    @property
    def times(self) -> ProcessingTimes:
        """The processing times of the queue's mails, of all workers of the last day."""
        merged = ProcessingTimes()
        for record in self.all:
            if record.times is not None:
                merged.merge(record.times)
        return merged

    @property
    def in_flight(self) -> list[InFlightMail]:
        """Mails that the broker delivered to live workers and has not taken back."""
        return [mail for record in self.alive for mail in record.in_flight if not mail.returned]


@dataclass(frozen=True, slots=True)
class Stuck:
    """A mail, and the record of a worker that lists it."""

    record: WorkerRecord
    mail: InFlightMail

    @property
    def age(self) -> timedelta:
        return self.record.age(self.mail)


def observe(
    read: Callable[[], Sequence[WorkerRecord]], sleep: Sleep = time.sleep
) -> WorkerLiveness:
    """Read the records by `read` until it is known which workers are alive."""
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
    # A worker that wrote may have died since, while this waited for others.
    dead = tuple(record for record in holding if not record.is_alive)
    alive = tuple(one for one in holding if one.is_alive and one.beat > before[one.worker])
    silent = tuple(one for one in holding if one.is_alive and one.beat <= before[one.worker])
    return WorkerLiveness(alive, dead, silent, tuple(records.values()))


def lock_timeout(times: ProcessingTimes, *, factor: float, at_least: timedelta) -> timedelta:
    """The age of a stuck mail: `factor` times the p99 of its queue, and at least `at_least`."""
    p99 = times.quantile(P99)
    return at_least if p99 is None else max(at_least, timedelta(seconds=p99) * factor)


def stuck_mails(liveness: WorkerLiveness, timeout: timedelta) -> list[Stuck]:
    """Mails that a handler of a live worker has had for longer than `timeout`, the oldest first.

    If several workers list a mail, the last that got it counts. Not stuck are mails that wait for
    a handler, that the broker took back, or whose handler has returned (stage settling).
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
