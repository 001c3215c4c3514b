"""Prometheus figures of `worker smtp-in`: one process, so they are its own."""

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client import generate_latest as shown

from mailslice.model.mail import QueueName
from mailslice.worker.health import Answer
from mailslice.worker.metrics import QueueMetrics


class SmtpMetrics(QueueMetrics):
    """What was answered to clients, labelled with the queue that their mails go to."""

    def __init__(self, queue: QueueName) -> None:
        super().__init__(queue)
        answers = "Mails by the answer to them; 250 = enqueued"
        self._mails = self._counter("smtp_mails", answers, "code")
        self.bytes = self._counter("smtp_bytes", "Bytes of the mails enqueued").labels(queue)
        refused = "Connections refused: too many of all clients, or of one"
        self._refused = self._counter("smtp_connections_refused", refused, "of")
        self.wrong_passwords = self._counter("smtp_wrong_passwords", "Logins refused").labels(queue)
        self.connections = self._gauge("smtp_connections", "Clients connected")
        for code in ("250", "451", "550", "552", "554"):
            self._mails.labels(queue, code)
        for of in ("all", "client"):
            self._refused.labels(queue, of)

    def answered(self, answer: str) -> None:
        self._mails.labels(self._queue, answer[:3]).inc()

    def refused(self, of: str) -> None:
        self._refused.labels(self._queue, of).inc()

    def page(self) -> Answer:
        return 200, CONTENT_TYPE_LATEST, shown(self._registry)
