"""The figures of `mailslice exporter`: what each store says of queues and duties.

A round makes three requests to RabbitMQ's management API (one for all queues), and reads the ledger
(the few newest reports of each duty and queue) and the workers' records. It reads at most 500 rows
of a view, and no file of the artifacts. A store that does not answer has no figures: unknown is
never zero.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mailslice.cli.worker_top import worker_figures
from mailslice.duties.queue_size.metrics import samples as size_samples
from mailslice.duties.stuck_mails_postal.metrics import samples as postal_samples
from mailslice.maintenance.alerts import alerts, readings
from mailslice.maintenance.health import Health
from mailslice.maintenance.metrics import Sample, duty_samples, exposition, verdict_samples
from mailslice.maintenance.overview import has_result, newest_reports, overview
from mailslice.maintenance.postal_health import postal_overview
from mailslice.maintenance.report import is_dry
from mailslice.model.clock import system_clock
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import WorkerRecord, WorkerRecords
from mailslice.stores.rabbitmq.traffic import Traffic, delayed, parked, traffic
from mailslice.worker.health import Answer

log = logging.getLogger(__name__)

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class _Known:
    """The figures of a store, when it gave them (monotonic), and the seconds that it took."""

    samples: tuple[Sample, ...] = ()
    at: float | None = None
    took: float = 0.0
    up: bool = False
    error: str = "not asked yet"


class Exporter:
    """Gathers figures in a thread of its own. `page` answers at once with the last ones."""

    def __init__(
        self,
        stores: Callable[[], Stores],
        interval: float,
        clock: Callable[[], float],
        sources: Mapping[str, Callable[[Stores], Iterable[Sample]]] | None = None,
    ) -> None:
        """`stores` opens the stores, again after one failed. `sources`: store -> its figures."""
        self._open = stores
        self._stores: Stores | None = None
        self._interval = interval
        self._clock = clock
        self._sources = JAMES if sources is None else sources
        self._known = {name: _Known() for name in self._sources}
        self._stop = threading.Event()
        self._round_began = clock()
        self._thread = threading.Thread(target=self._run, name="gather", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(1)
        self._close()

    def gather(self) -> None:
        """One round. A store that does not answer is down, whatever the reason."""
        self._round_began = self._clock()
        for name, source in self._sources.items():
            began = self._clock()
            try:
                self._stores = self._stores or self._open()
                samples = tuple(source(self._stores))
                self._known[name] = _Known(samples, self._clock(), self._clock() - began, up=True)
            except Exception as error:  # noqa: BLE001 - no failure may end the exporter
                log.warning("%s: %s", name, error, extra={"action": "exporter_store_down"})
                last, took = self._known[name].at, self._clock() - began
                self._known[name] = _Known((), last, took, up=False, error=str(error))
                self._close()

    def page(self) -> Answer:
        """/metrics: always 200."""
        samples = [sample for known in self._known.values() for sample in known.samples]
        ordered = sorted(samples, key=lambda sample: sample.name)
        return 200, _TYPE, exposition([*self._own(), *ordered])

    def readyz(self) -> Answer:
        """200 when every store answered in the last round."""
        down = {name: known.error for name, known in self._known.items() if not known.up}
        body = json.dumps({"ready": not down, "down": down}).encode() + b"\n"
        return 503 if down else 200, "application/json", body

    def livez(self) -> Answer:
        """200 while rounds go on."""
        hangs = self._clock() - self._round_began > self._interval + _LONGEST_ROUND
        body = json.dumps({"live": not hangs}).encode() + b"\n"
        return 503 if hangs else 200, "application/json", body

    def _own(self) -> Iterator[Sample]:
        now = self._clock()
        up = "1 when the store answered in the last round"
        age = "Seconds since the store last answered; its figures are so old"
        took = "Seconds that the last round took with the store"
        for name, known in self._known.items():
            labels = {"store": name}
            yield Sample("mailslice_exporter_up", up, labels, int(known.up))
            if known.at is not None:
                yield Sample("mailslice_exporter_age_seconds", age, labels, now - known.at)
            yield Sample("mailslice_exporter_round_seconds", took, labels, known.took)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.gather()
            self._stop.wait(self._interval)

    def _close(self) -> None:
        stores, self._stores = self._stores, None
        if stores is not None:
            stores.close()


_LONGEST_ROUND = 300.0
"""Seconds. Every request to a store has a time-out: a longer round has hung."""


def broker_samples(stores: Stores) -> Iterator[Sample]:
    """Depths, consumers and the head's age of every mail queue, and the broker's alarms."""
    moving = traffic(stores.management)
    alarms = "Memory and disk alarms of the broker, nodes that are down, blocked connections"
    yield Sample("mailslice_broker_alarms", alarms, {}, len(stores.management.alarms()))
    for queue in stores.management.mail_queues():
        yield from _broker_queue_samples(queue, moving)


def _broker_queue_samples(queue: QueueName, moving: Mapping[str, Traffic]) -> Iterator[Sample]:
    names = RabbitNames(queue)
    text = "Messages by kind of queue; parked and delayed ones are all counted as ready"
    work, dead = moving.get(names.work_queue), moving.get(names.dead_letter_queue)
    depths: dict[tuple[str, str], int | None] = {
        ("delay", "ready"): delayed(moving, names),
        ("park", "ready"): parked(moving, names),
    }
    for kind, entry in (("work", work), ("dead", dead)):
        depth = entry.depth if entry is not None else None
        depths[kind, "ready"] = depth.ready if depth else None
        depths[kind, "unacknowledged"] = depth.unacknowledged if depth else None
    for (kind, state), count in depths.items():
        if count is not None:
            labels = {"queue": queue, "kind": kind, "state": state}
            yield Sample("mailslice_broker_messages", text, labels, count)
    label = {"queue": queue}
    if work is not None and work.depth is not None:
        text = "Consumers of the work queue"
        yield Sample("mailslice_broker_consumers", text, label, work.depth.consumers)
    if work is not None and work.oldest is not None:
        age = max(0.0, (system_clock() - work.oldest).total_seconds())
        text = "Age of the message at the head of the work queue; a hint"
        yield Sample("mailslice_broker_head_age_seconds", text, label, age)


def ledger_samples(stores: Stores) -> Iterator[Sample]:
    """Last runs of every duty, measurements, verdicts, workers."""
    yield from report_samples(stores)
    records = WorkerRecords.existing(stores.cassandra, stores.settings)
    by_queue = {} if records is None else records.by_queue([*records.queues()])
    for queue, workers in by_queue.items():
        yield from _worker_samples(queue, workers)
    try:
        yield from health_samples(stores)
    except MailsliceError as error:  # RabbitMQ is down, as its source says, or a wrong setting
        log.warning("no health of queues: %s", error, extra={"action": "exporter_no_health"})


def report_samples(stores: Stores) -> Iterator[Sample]:
    """Last runs of every duty, and their figures of the queue. For a ledger in any store."""
    for duty, _, reports in newest_reports(stores.existing_runs()):
        # A dry run says nothing of the work that waits, nor of the run that failed before it.
        if newest := next((report for report in reports if not is_dry(report)), None):
            now, limits = system_clock(), stores.settings.alert
            current = readings(newest, limits, now)
            firing = alerts(current, newest.get("alerts") or (), now, limits)
            yield from duty_samples(newest, current, firing)
        yield from _result_samples(duty, reports)
    if stores.settings.postal.url is not None:
        health = postal_overview(stores, system_clock).verdict.health
        text = "1 for the word that says how Postal's queue is: LOST?, STUCK, UNKNOWN, HELD, OK"
        for word in Health:
            labels = {"health": word.value}
            yield Sample("mailslice_postal_health", text, labels, int(word is health))


def health_samples(stores: Stores) -> Iterator[Sample]:
    """One of each queue's health words is 1, the others are 0: see `maintenance.health`."""
    text = "1 for the word that says how the queue is: LOST?, STUCK, NO WORKERS, LATE, OK, ..."
    for one in overview(stores, system_clock):
        for health in Health:
            labels = {"queue": one.queue, "health": health.value}
            yield Sample("mailslice_queue_health", text, labels, int(health is one.verdict.health))


def _result_samples(duty: str, reports: Iterable[dict[str, Any]]) -> Iterable[Sample]:
    """The newest measurement, or the newest verdicts, of the reports of one duty and queue."""
    for report in (one for one in reports if has_result(duty, one)):
        queue = str(report.get("queue"))
        if duty == "queue_size" and report.get("published") and report.get("shape"):
            return size_samples(queue, report, domains=False)
        if duty == "queue_audit":
            return verdict_samples(queue, report["verdicts"])
        if duty == "stuck_mails_postal":
            return postal_samples(report)
    return ()


def _worker_samples(queue: QueueName, records: Sequence[WorkerRecord]) -> Iterator[Sample]:
    silent = sum(not record.is_alive and bool(record.in_flight) for record in records)
    figures, label = worker_figures(records), {"queue": queue}
    text = "Worker processes by their records; silent ones held mails when they were last heard"
    for state, count in (("alive", figures["workers"]), ("silent", silent)):
        yield Sample("mailslice_workers", text, label | {"state": state}, count)
    text = "Mails in the hands of live workers"
    for state, count in (("handling", figures["inHandlers"]), ("fetched", figures["fetched"])):
        yield Sample("mailslice_workers_mails", text, label | {"state": state}, count)
    longest = figures["longestSeconds"] or 0.0
    text = "For how long the oldest mail has been in a handler"
    yield Sample("mailslice_workers_longest_seconds", text, label, longest)


def bucket_samples(stores: Stores) -> Iterator[Sample]:
    exists = stores.blobs.bucket_exists()
    text = "1 when the bucket of the mails' content exists"
    yield Sample("mailslice_bucket_exists", text, {}, int(exists))


JAMES: Mapping[str, Callable[[Stores], Iterable[Sample]]] = {
    "rabbitmq": broker_samples,
    "cassandra": ledger_samples,
    "s3": bucket_samples,
}
"""Store -> its figures, where there are queues of James."""
POSTAL_ALONE: Mapping[str, Callable[[Stores], Iterable[Sample]]] = {"mariadb": report_samples}
"""Store -> its figures, for an installation of Postal alone."""
