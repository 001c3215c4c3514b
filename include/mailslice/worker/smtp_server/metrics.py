"""Prometheus figures of `worker smtp-in`: one process, so they are its own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge
from prometheus_client import generate_latest as shown

from mailslice.model.mail import QueueName
from mailslice.worker.health import Answer


class SmtpMetrics:
    """What was answered to clients, labelled with the queue that their mails go to."""

    def __init__(self, queue: QueueName) -> None:
        self._queue = queue
        self._registry = CollectorRegistry()
        self._mails = self._counter("mails", "Mails by the answer to them; 250 = enqueued", "code")
        self._bytes = self._counter("bytes", "Bytes of the mails enqueued").labels(queue)
        text = "Connections refused: too many of all clients, or of one"
        self._refused = self._counter("connections_refused", text, "of")
        self._wrong_passwords = self._counter("wrong_passwords", "Logins refused").labels(queue)
        self._connections = Gauge(
            "mailslice_smtp_connections", "Clients connected", ("queue",), registry=self._registry
        ).labels(queue)
        for code in ("250", "451", "550", "552", "554"):
            self._mails.labels(queue, code)
        for of in ("all", "client"):
            self._refused.labels(queue, of)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        labels = ("queue", *labels)
        return Counter(f"mailslice_smtp_{name}", text, labels, registry=self._registry)

    def answered(self, answer: str) -> None:
        self._mails.labels(self._queue, answer[:3]).inc()

    def enqueued(self, size: int) -> None:
        self._bytes.inc(size)

    def refused(self, of: str) -> None:
        self._refused.labels(self._queue, of).inc()

    def wrong_password(self) -> None:
        self._wrong_passwords.inc()

    def count_connections(self, number: Callable[[], float]) -> None:
        """`number` is called for the number of clients."""
        self._connections.set_function(number)

    def page(self) -> Answer:
        return 200, CONTENT_TYPE_LATEST, shown(self._registry)
