"""Prometheus figures of the consumer. prometheus-client decides at import whether figures are shared between processes: import this after
PROMETHEUS_MULTIPROC_DIR is set (`child`), never in the parent, which only sums up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from mailslice.model.mail import QueueName
from mailslice.worker.doings import Doings
from mailslice.worker.outcome import Disposition

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ConsumerMetrics:
    """The figures of one consumer process, labelled with its queue."""

    def __init__(self, queue: QueueName, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._outcomes = Counter(
            "mailslice_mails",
            "Mails by what became of them",
            ("queue", "outcome"),
            registry=registry,
        )
        self._queue = queue
        self._observed = (0, 0)
        for outcome in Disposition:
            self._outcomes.labels(queue, outcome.value)
        self._failures = Counter(
            "mailslice_handler_errors",
            "Handlers that ended in an exception",
            ("queue",),
            registry=registry,
        ).labels(queue)
        self._store_errors = Counter(
            "mailslice_store_errors",
            "Requests a store did not answer",
            ("queue",),
            registry=registry,
        ).labels(queue)
        self._prepare_faults = Counter(
            "mailslice_prepare_faults",
            "Attempts at a delivery that ended in a fault of mailslice before the handler",
            ("queue",),
            registry=registry,
        ).labels(queue)
        self._held = Gauge(
            "mailslice_mails_held",
            "Mails that wait in this process for a store to answer",
            ("queue",),
            multiprocess_mode="livesum",
            registry=registry,
        ).labels(queue)
        self._parked = Counter(
            "mailslice_mails_parked",
            "Messages that were put aside for a minute because a store did not answer for them",
            ("queue",),
            registry=registry,
        ).labels(queue)
        self._in_doubt = Counter(
            "mailslice_recipients_failed_in_doubt",
            "Recipients failed because their sender ended before the answer was written",
            ("queue",),
            registry=registry,
        ).labels(queue)
        self._destinations = Counter(
            "mailslice_destinations_asked",
            "Mails for a destination with a limit, by the rule and whether it took them",
            ("queue", "rule", "answer"),
            registry=registry,
        )
        self._hops = Counter(
            "mailslice_delay_hops",
            "Copies of delayed mails put into a delay level",
            ("queue",),
            registry=registry,
        ).labels(queue)
        self._left_behind = Counter(
            "mailslice_enqueues_left_behind",
            "Failed enqueues whose undoing was given up",
            ("queue",),
            registry=registry,
        ).labels(queue)
        self._undoing = Gauge(
            "mailslice_enqueues_undoing",
            "Failed enqueues that are being taken back",
            ("queue",),
            multiprocess_mode="livesum",
            registry=registry,
        ).labels(queue)
        self._in_flight = Gauge(
            "mailslice_mails_in_flight",
            "Mails in a handler",
            ("queue",),
            multiprocess_mode="livesum",
            registry=registry,
        ).labels(queue)
        self._latency = Histogram(
            "mailslice_handling_seconds",
            "From the start of the handler until the outcome is stored",
            ("queue",),
            buckets=_SECONDS,
            registry=registry,
        ).labels(queue)

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Counts a mail as in flight."""
        self._in_flight.inc()
        try:
            yield
        finally:
            self._in_flight.dec()

    def settled(self, outcome: Disposition, seconds: float) -> None:
        """An outcome is stored."""
        self._outcomes.labels(self._queue, outcome.value).inc()
        self._latency.observe(seconds)

    def handler_failed(self) -> None:
        """A handler ended in an exception."""
        self._failures.inc()

    def prepare_failed(self) -> None:
        """A delivery could not be prepared, and no store said why."""
        self._prepare_faults.inc()

    def held(self, more: int) -> None:
        """So many deliveries more, or less, wait for a store."""
        self._held.inc(more)

    def parked(self) -> None:
        """A message was parked."""
        self._parked.inc()

    def failed_in_doubt(self, recipients: int) -> None:
        """So many recipients failed by their stage."""
        self._in_doubt.inc(recipients)

    def destination_asked(self, rule: str, granted: bool) -> None:
        """A destination with a limit took a mail, or put it off. By rule, of which there are few, and not by domain."""
        self._destinations.labels(self._queue, rule, "granted" if granted else "throttled").inc()

    def observe(self, doings: Doings) -> None:
        """What a worker counts by itself, as it stands now."""
        hops, left_behind = self._observed
        self._hops.inc(doings.hops - hops)
        self._left_behind.inc(doings.left_behind - left_behind)
        self._undoing.set(doings.undoing)
        self._observed = (doings.hops, doings.left_behind)

    def store_failed(self) -> None:
        """A store did not answer."""
        self._store_errors.inc()
