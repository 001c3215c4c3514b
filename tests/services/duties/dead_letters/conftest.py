"""A queue on real stores into which tests put dead letters one by one, and the duty's steps."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.admin import queues
from mailslice.codec import message
from mailslice.maintenance.runner import Tools
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.services.duties.running import judged
from tests.services.duties.world import World, queued_mail


@dataclass
class Letters(World):
    """One queue."""

    duty = "dead_letters"

    def mail(
        self,
        name: str = "m",
        *,
        row: bool = True,
        content: bool = True,
        marked: bool = False,
        sender: str | None = "a@b.example",
    ) -> QueuedMail:
        """Inserts a mail into the view, without its message."""
        item = queued_mail(name, sender=sender)
        if row:
            now = datetime.now(UTC)
            start = slice_start(now, self.settings.queue.slice_window)
            self.insert_row(item, now, start)
            self.stores.tables.browse_starts.insert_first(self.queue, start)
        if content:
            self.put_content(item)
        if marked:
            self.mark(item)
        return item

    def delete_row(self, enqueue_id: EnqueueId) -> None:
        """Deletes the row of a mail and nothing else."""
        cassandra, keyspace = self.stores.cassandra, self.settings.cassandra.keyspace
        view = self.stores.tables.v4
        row = next(view.find(self.queue, list(view.partitions(self.queue)), enqueue_id))
        statement = cassandra.prepare(
            f"DELETE FROM {keyspace}.enqueuedmailsv4 WHERE queuename = ? AND timerangestart = ? "
            "AND bucketid = ? AND enqueueid = ?"
        )
        where = row.partition
        cassandra.execute(statement, [self.queue, where.slice_start, where.bucket, enqueue_id])

    def letter(
        self,
        content: QueuedMail | bytes,
        reason: str = "rejected",
        age: timedelta = timedelta(),
        timestamp: int | None = None,
        **headers: Any,
    ) -> None:
        """Publishes a dead letter of a mail or of any bytes, as the broker would."""
        body = content if isinstance(content, bytes) else message.encode(content)
        death = {
            "reason": reason,
            "count": 1,
            "queue": self.names.work_queue,
            "exchange": self.names.exchange,
            "routing-keys": [""],
        }
        death["time"] = datetime.now(UTC) - age
        all_headers = {
            "x-dead-letter-routing-key": "",
            "x-first-death-reason": reason,
            "x-death": [death],
            **headers,
        }
        self.publish(
            self.names.dead_letter_exchange,
            body,
            headers={name: value for name, value in all_headers.items() if value is not None},
            timestamp=timestamp,
        )

    def taken(self, name: str) -> list[tuple[Any, bytes]]:
        """Takes all messages off a RabbitMQ queue: (properties, body)."""
        return [(properties, body) for _, properties, body in self.read_messages(name, take=True)]

    def work(self) -> list[str]:
        """Takes all mails off the work queue; returns their names."""
        return [message.decode(body).mail.name for _, body in self.taken(self.names.work_queue)]

    def dead(self) -> list[bytes]:
        """The bodies on the dead letter queue, in order. The messages stay."""
        return [body for _, _, body in self.read_messages(self.names.dead_letter_queue)]

    def dead_names(self) -> list[str]:
        return [message.decode(body).mail.name for body in self.dead()]

    def reject_all(self) -> None:
        """Rejects all messages on the work queue as a worker does: they are dead-lettered."""
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            while (got := channel.basic_get(self.names.work_queue))[0] is not None:
                channel.basic_reject(got[0].delivery_tag, requeue=False)


@pytest.fixture(scope="module")
def _partition(fresh_module: Any) -> Iterator[tuple[Settings, Stores]]:
    with open_stores(fresh_module.settings) as stores:
        yield fresh_module.settings, stores


@pytest.fixture
def letters(_partition: tuple[Settings, Stores]) -> Letters:
    """A fresh queue."""
    settings, stores = _partition
    queue = queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")
    return Letters(settings, stores, queue, Tools(judged))
