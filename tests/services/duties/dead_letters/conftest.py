"""A queue on real stores whose dead letters tests plant one by one, and the duty's steps over it, in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest

from mailslice.admin import queues
from mailslice.codec import message
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_all, run_step
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.services.duties import running


@dataclass
class Letters:
    """One queue."""

    settings: Settings
    stores: Stores
    queue: QueueName
    environ: dict[str, str]

    @property
    def names(self) -> RabbitNames:
        return RabbitNames(self.queue)

    def mail(
        self,
        name: str = "m",
        *,
        row: bool = True,
        content: bool = True,
        marked: bool = False,
        sender: str | None = "a@b.example",
    ) -> QueuedMail:
        """A mail of the view, without its message."""
        blobs = BlobId(str(uuid.uuid4())), BlobId(str(uuid.uuid4()))
        item = QueuedMail(EnqueueId(uuid.uuid4()), Mail(name, sender, ("c@d.example",)), *blobs)
        if row:
            now = datetime.now(UTC)
            world = Partition(slice_start(now, self.settings.queue.slice_window), 0)
            self.stores.tables.v4.insert_many([ViewRow(self.queue, world, now, item)])
            self.stores.tables.browse_starts.insert_first(self.queue, world.slice_start)
        if content:
            for blob in blobs:
                self.stores.blobs.put(blob, b"x")
        if marked:
            self.mark(item)
        return item

    def mark(self, item: QueuedMail) -> None:
        self.stores.tables.deleted.mark_many(self.queue, [item.enqueue_id])

    def letter(
        self,
        what: QueuedMail | bytes,
        reason: str = "rejected",
        age: timedelta = timedelta(),
        **headers: Any,
    ) -> None:
        """A dead letter as the broker makes it: of a mail, or of any bytes."""
        body = what if isinstance(what, bytes) else message.encode(what)
        death = {
            "reason": reason,
            "count": 1,
            "queue": self.names.work_queue,
            "exchange": self.names.exchange,
            "routing-keys": [""],
        }
        death["time"] = datetime.now(UTC) - age
        told = {
            "x-dead-letter-routing-key": "",
            "x-first-death-reason": reason,
            "x-death": [death],
            **headers,
        }
        self.publish(
            self.names.dead_letter_exchange,
            body,
            {name: value for name, value in told.items() if value is not None},
        )

    def publish(self, exchange: str, body: bytes, headers: dict[str, Any]) -> None:
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(
                exchange,
                "",
                body,
                pika.BasicProperties(delivery_mode=2, headers=headers),
                mandatory=True,
            )

    def taken(self, name: str) -> list[tuple[Any, bytes]]:
        """Takes everything off a RabbitMQ queue: (properties, body)."""
        found = []
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            while (got := channel.basic_get(name, auto_ack=True))[2] is not None:
                found.append((got[1], got[2]))
        return found

    def work(self) -> list[str]:
        """The names of the mails on the work queue, which they leave."""
        return [message.decode(body).mail.name for _, body in self.taken(self.names.work_queue)]

    def dead(self) -> list[bytes]:
        """The bodies on the dead letter queue, in order; they stay."""
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            found = []
            while (got := channel.basic_get(self.names.dead_letter_queue))[2] is not None:
                found.append(got[2])
            return found

    def dead_names(self) -> list[str]:
        return [message.decode(body).mail.name for body in self.dead()]

    def reject_all(self) -> None:
        """As a worker rejects: everything on the work queue dies."""
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            while (got := channel.basic_get(self.names.work_queue))[0] is not None:
                channel.basic_reject(got[0].delivery_tag, requeue=False)

    def request(self, **params: object) -> RunRequest:
        return RunRequest(
            "dead_letters", self.queue, f"r-{uuid.uuid4().hex[:8]}", who="tester", params=params
        )

    def run(self, **params: object) -> dict[str, Any]:
        """A whole run; its report."""
        return run_all(self.request(**params), self.settings)

    def steps(self, request: RunRequest, *steps: str) -> dict[str, Any]:
        summary: dict[str, Any] = {}
        for step in steps:
            summary = run_step(step, request, self.settings)
        return summary

    def kill(self, step: str, request: RunRequest, point: str) -> None:
        """The step, in a process that dies at `point`."""
        running.kill(step, request, self.environ, point)

    def let_the_lock_run_out(self) -> None:
        """What 60 s would do."""
        running.let_run_out(self.stores, f"dead_letters/{self.queue}")


@pytest.fixture(autouse=True)
def _without_data_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    running.without_docs(monkeypatch)


@pytest.fixture(scope="module")
def _partition(fresh_module: Any) -> Iterator[tuple[Settings, Stores, dict[str, str]]]:
    with open_stores(fresh_module.settings) as stores:
        yield fresh_module.settings, stores, fresh_module.environ


@pytest.fixture
def letters(_partition: tuple[Settings, Stores, dict[str, str]]) -> Letters:
    """A fresh queue."""
    settings, stores, environ = _partition
    return Letters(settings, stores, queues.create(stores, f"q-{uuid.uuid4().hex[:8]}"), environ)
