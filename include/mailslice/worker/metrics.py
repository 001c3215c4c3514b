"""Prometheus figures of the consumer: import it after PROMETHEUS_MULTIPROC_DIR is set."""

from collections import Counter as Counts
from contextlib import AbstractContextManager
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from mailslice.model.mail import QueueName
from mailslice.worker.io.statistics import LEFT_BEHIND, UNDOING, WorkerStatistics
from mailslice.worker.outcome import Disposition

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class QueueMetrics:
    """Figures of one process, labelled with its queue.

    `TOTALS` and `LEVELS`: fields of `WorkerStatistics` -> name and description of the figure.
    """

    TOTALS: ClassVar[dict[str, tuple[str, str]]] = {"abandoned": LEFT_BEHIND}
    LEVELS: ClassVar[dict[str, tuple[str, str]]] = {"undoing": UNDOING}

    def __init__(self, queue: QueueName, registry: CollectorRegistry | None = None) -> None:
        self._queue = queue
        self._registry = registry or CollectorRegistry()
        names = self.TOTALS.items()
        self._totals = {key: self._counter(*words).labels(queue) for key, words in names}
        self._levels = {key: self._gauge(*words) for key, words in self.LEVELS.items()}
        self._observed: Counts[object] = Counts()

    def observe(self, statistics: WorkerStatistics) -> None:
        for name, level in self._levels.items():
            level.set(getattr(statistics, name))
        for name, total in self._totals.items():
            self._add(name, getattr(statistics, name), total)

    def _add(self, key: object, count: int, total: Counter) -> None:
        total.inc(count - self._observed[key])
        self._observed[key] = count

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        labels = ("queue", *labels)
        return Counter(f"mailslice_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        name = f"mailslice_{name}"
        made = Gauge(name, text, ("queue",), registry=self._registry, multiprocess_mode="livesum")
        return made.labels(self._queue)


class ConsumerMetrics(QueueMetrics):
    """The figures of one consumer process."""

    TOTALS = QueueMetrics.TOTALS | {
        "faults": ("prepare_faults", "Deliveries that a fault of mailslice kept from the handler"),
        "parked": ("mails_parked", "Messages put aside because a store did not answer for them"),
        "set_aside": ("mails_set_aside", "Mails delayed because a domain of theirs is held"),
        "in_doubt": (
            "recipients_failed_in_doubt",
            "Recipients failed because their sender ended before the answer was written",
        ),
        "hops": ("delay_hops", "Copies of delayed mails put into a delay level"),
    }
    LEVELS = QueueMetrics.LEVELS | {
        "waiting": ("mails_held", "Mails that wait in this process for a store to answer"),
        "held_whole": ("queue_held", "Processes that take no mail because the queue is held"),
        "held_domains": ("domains_held", "Domains that are held, summed over processes"),
        "holds_unknown": (
            "holds_unknown",
            "Processes that cannot read holds, and go by the last ones",
        ),
    }

    def __init__(self, queue: QueueName, registry: CollectorRegistry | None = None) -> None:
        super().__init__(queue, registry)
        self._outcomes = self._counter("mails", "Mails by what became of them", "outcome")
        for outcome in Disposition:
            self._outcomes.labels(queue, outcome.value)
        failures = self._counter("handler_errors", "Handlers that ended in an exception")
        self._failures = failures.labels(queue)
        store_errors = self._counter("store_errors", "Requests a store did not answer")
        self._store_errors = store_errors.labels(queue)
        self._destinations = self._counter(
            "destinations_asked",
            "Mails for a destination with a limit, by the rule and whether it took them",
            "rule",
            "answer",
        )
        self._in_flight = self._gauge("mails_in_flight", "Mails in a handler")
        self._latency = Histogram(
            "mailslice_handling_seconds",
            "From the start of the handler until the outcome is stored",
            ("queue",),
            buckets=_SECONDS,
            registry=self._registry,
        ).labels(queue)

    def handling(self) -> AbstractContextManager[None]:
        return self._in_flight.track_inprogress()

    def settled(self, outcome: Disposition, seconds: float) -> None:
        self._outcomes.labels(self._queue, outcome.value).inc()
        self._latency.observe(seconds)

    def handler_failed(self) -> None:
        self._failures.inc()

    def store_failed(self) -> None:
        self._store_errors.inc()

    def observe(self, statistics: WorkerStatistics) -> None:
        super().observe(statistics)
        for (rule, answer), count in statistics.destinations.items():
            self._add((rule, answer), count, self._destinations.labels(self._queue, rule, answer))
