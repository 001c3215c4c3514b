"""Evidence about a queue: RabbitMQ's figures, workers' records, dead letters, and a census.

A census takes all messages of the work queue. Then it reads what consumers hold, the dead letters,
and what came into the work queue meanwhile, in this order. A mail that leaves a consumer comes into
the work queue or the dead letters. So a mail that is found nowhere was nowhere at the census's end.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mailslice.admin.evidence import quarantine_reasons
from mailslice.duties.queue_audit.rules import BrokerCounts, Evidence
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.liveness import observe
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import WorkerRecord
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.stores.rabbitmq.traffic import in_delay_queues, traffic
from mailslice.stores.rabbitmq.work_census import WorkQueueCensus, take_census

log = logging.getLogger(__name__)

HOLD = timedelta(seconds=15)
"""The shortest hold: RabbitMQ's figures are up to 10 s old (reference/rabbitmq.md)."""
LONGEST_HOLD = timedelta(seconds=45)
"""The longest hold, if each worker writes its record every ten seconds or more often."""
_LONGEST_WAIT = timedelta(minutes=3)
"""Time for three records at the greatest MAILSLICE_WORKER_RECORD_EVERY (consumer_timeout: 30m)."""
_RECORDS = 3
"""Records of a worker to wait for: one of the hold, then two after RabbitMQ's figure."""
SETTLED = timedelta(seconds=20)
"""Within this time after its row, or within two MAILSLICE_RABBITMQ_TIMEOUT if these are longer, an
enqueue has published or marked its mail."""
_PAUSE = 1.0
_BYTES_A_MESSAGE = 5_000


def gather(
    context: Run,
    *,
    census: bool,
    youngest: datetime | None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Evidence, dict[str, Any] | None]:
    """The evidence about mails enqueued until `youngest`, and a report of the census, if any.

    Raises Refused for a census that would do harm.
    """
    if census and youngest is not None:
        return _with_census(context, youngest, sleep)
    stores, queue = context.stores, context.queue
    now, counts = context.clock(), counts_of(stores, queue)
    workers = observe(lambda: stores.own.worker_records.list(queue), sleep)
    evidence = Evidence(
        now=now,
        shared=context.settings.queue.shared,
        counts=counts,
        in_flight=_in_flight(workers.alive),
        done=_done(workers.all),
        quarantined=quarantine_reasons(stores, queue),
        dead_letters=_dead_letters(context),
    )
    return evidence, None


def counts_of(stores: Stores, queue: QueueName) -> BrokerCounts:
    """RabbitMQ's figures; None for those that it does not give."""
    names = RabbitNames(queue)
    try:
        moving = traffic(stores.management)
    except MailsliceError as error:
        log.warning("RabbitMQ gives no figures of %s: %s", queue, error)
        return BrokerCounts()
    work, dead = moving.get(names.work_queue), moving.get(names.dead_letter_queue)
    depth, letters = work.depth if work else None, dead.depth if dead else None
    return BrokerCounts(
        ready=depth.ready if depth else None,
        unacknowledged=depth.unacknowledged if depth else None,
        consumers=depth.consumers if depth else None,
        delayed=in_delay_queues(moving, names),
        dead_letters=letters.total if letters else None,
        head=work.oldest if work else None,
    )


def _with_census(
    context: Run, youngest: datetime, sleep: Callable[[float], None]
) -> tuple[Evidence, dict[str, Any]]:
    stores, queue = context.stores, context.queue
    context.require_clock()
    if youngest + context.settings.duty.grace > context.clock():  # by its writer's clock
        sleep(max(SETTLED, 2 * context.settings.rabbitmq.timeout).total_seconds())
    before, undisturbed = stores.own.worker_records.list(queue), counts_of(stores, queue)
    longest = max_checkout_time(before)
    _announce(stores, queue, undisturbed, longest)
    began = context.clock()
    with take_census(context.settings, queue, stores.management) as hold:
        hold.drain()
        crash.point("plan:census-held")
        hold.wait(HOLD.total_seconds())
        consumers = explained_consumers(stores, queue, hold, before, longest)
        # A message that leaves a consumer may be parked, and goes from there to the work queue.
        # Reading in this order, and draining last, misses none.
        parked = hold.parked()
        letters = hold.beside(lambda: _dead_letters(context))
        hold.drain()
        delayed = counts_of(stores, queue).delayed
        unproved = why_unproved(stores, consumers, parked)
        if letters is None:
            unproved = "the dead letters could not be looked through"
        elif delayed != 0 and next(stores.own.delayed_mails.rows(queue), None) is None:
            unproved = unproved or "messages may wait in delay levels, and no row tells of any"
        ended = context.clock()
    evidence = Evidence(
        now=ended,
        shared=context.settings.queue.shared,
        counts=undisturbed.model_copy(update={"delayed": delayed}),
        in_flight=_in_flight(consumers.records),
        done=_done(stores.own.worker_records.list(queue)),
        quarantined=quarantine_reasons(stores, queue),
        dead_letters=letters,
        census=frozenset(hold.ids),
        unproved=unproved,
    )
    report = {
        "began": iso(began),
        "ended": iso(ended),
        "seconds": round((ended - began).total_seconds(), 3),
        "held": hold.messages,
        "notMails": hold.not_mails,
        "withConsumers": consumers.unacknowledged,
        "recorded": consumers.explained,
        "unproved": unproved,
    }
    return evidence, report


def _announce(stores: Stores, queue: QueueName, counts: BrokerCounts, longest: timedelta) -> None:
    """Log what a census changes, before it begins."""
    name, ready = RabbitNames(queue).work_queue, "ready messages"
    if counts.ready is not None:
        megabytes = counts.ready * _BYTES_A_MESSAGE // 1_000_000 + 1
        ready = f"{counts.ready} {ready} (about {megabytes} MB in the broker)"
    order = "they keep their order"
    if (stores.management.arguments(name) or {}).get("x-queue-type") == "quorum":
        order = "they go to the back of the queue, and their delivery count grows by one"
    log.warning(
        "census of %s: its %s are held on one channel for %d to %d s and then all given back; "
        "meanwhile workers get no mail of it; afterwards each of them is marked redelivered, "
        "and %s",
        name,
        ready,
        HOLD.total_seconds(),
        longest.total_seconds(),
        order,
    )


def max_checkout_time(records: Iterable[WorkerRecord]) -> timedelta:
    """How long a hold may last: three records of each living worker, three minutes at most."""
    rarest = max((record.every for record in records if record.is_alive), default=timedelta(0))
    return max(LONGEST_HOLD, HOLD + min(_RECORDS * rarest, _LONGEST_WAIT))


@dataclass(frozen=True, slots=True)
class Consumers:
    """`records` of workers, written since the hold began; how many messages consumers hold (None:
    unknown), and how many of these the records explain.
    """

    records: list[WorkerRecord]
    unacknowledged: int | None
    explained: int = 0


def explained_consumers(
    stores: Stores,
    queue: QueueName,
    hold: WorkQueueCensus,
    before: Iterable[WorkerRecord],
    longest: timedelta,
) -> Consumers:
    """The messages that consumers hold. Reads until records explain all, or `longest` is over.

    Only records that were made after RabbitMQ's figure explain it. Consumers get no new mail, so a
    mail of such a record was with them at the time of the figure. An earlier record may list mails
    that were done by then, and so hide as many messages that no record lists. A record is written a
    moment after it is made: only the second record read after the figure was surely made after it.
    A mail in the census explains nothing. Nor does a mail that has a lease, or that was marked in
    its handler: its message may be acknowledged.
    """
    began = {record.worker: record.beat for record in before}
    deadline = time.monotonic() + (longest - HOLD).total_seconds()
    while True:
        figure = hold.elsewhere()
        consumers = Consumers(_records_since(stores, queue, began), figure)
        first = {record.worker: record.beat for record in stores.own.worker_records.list(queue)}
        second: dict[str, int] = {}
        while figure and time.monotonic() < deadline:
            hold.wait(_PAUSE)
            records = _records_since(stores, queue, began)
            proved = [one for one in records if one.beat > second.get(one.worker, one.beat)]
            new = {one.worker: one.beat for one in records if one.beat > first.get(one.worker, 0)}
            second = new | second
            mails = _in_flight(proved).keys()
            gone = stores.own.delayed_mails.waiting(queue, mails).keys() | hold.ids
            gone |= stores.tables.deleted.marked(queue, mails)
            consumers = Consumers(records, figure, len(mails - gone))
            if consumers.explained == figure:
                return consumers
            if all(one in proved for one in records if _in_flight([one]).keys() - hold.ids):
                break
        if figure == 0 or time.monotonic() >= deadline:
            return consumers
        if figure is None:
            hold.wait(_PAUSE)


def _records_since(
    stores: Stores, queue: QueueName, beats: Mapping[str, int]
) -> list[WorkerRecord]:
    """The records of living workers that were written after `beats`."""
    records = stores.own.worker_records.list(queue)
    return [one for one in records if one.is_alive and one.beat > beats.get(one.worker, -1)]


def why_unproved(stores: Stores, consumers: Consumers, parked: int | None) -> str | None:
    """Why a mail that was not found may still be in the broker; None if nothing says so."""
    explained, count = consumers.explained, consumers.unacknowledged
    if parked:
        return f"{parked} messages are parked until a store answers for them"
    if parked is None or count is None:
        unknown = "what is parked" if parked is None else "what consumers hold"
        return f"RabbitMQ gives no figures of {unknown}"
    if count > explained:
        return f"consumers hold {count - explained} messages of which no worker's record tells"
    if count < explained:
        recorded = f"workers' records tell of {explained} messages"
        return f"{recorded} where RabbitMQ says that consumers hold {count}"
    if alarms := stores.management.alarms():
        late = "what publishers could not send yet comes later"
        return f"the broker has an alarm ({alarms[0]}): {late}"
    return None


def _in_flight(records: Iterable[WorkerRecord]) -> Mapping[EnqueueId, str]:
    return {
        mail.enqueue_id: f"worker {record.worker} has held it for "
        f"{record.age(mail).total_seconds():.0f} s ({mail.stage})"
        for record in records
        for mail in record.in_flight
        if not mail.returned
    }


def _done(records: Iterable[WorkerRecord]) -> Mapping[EnqueueId, str]:
    """Mails that workers recorded as completed. Records of dead workers count, too."""
    return {
        enqueue_id: f"worker {record.worker} was handed it and completed it"
        for record in records
        for enqueue_id in record.done
    }


def _dead_letters(context: Run) -> frozenset[EnqueueId] | None:
    """The ids among the dead letters; None if they could not be read."""
    try:
        return frozenset(dead_letter_ids(context.settings, context.queue))
    except MailsliceError as error:
        log.warning("the dead letters of %s could not be looked through: %s", context.queue, error)
        return None
