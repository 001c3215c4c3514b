"""Queues in every state of health, with mails to look at, on own stores."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from mailslice.admin import holds, queues
from mailslice.maintenance.health import Health
from mailslice.maintenance.overview import overview
from mailslice.model.clock import system_clock
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.own.worker_records import InFlightMail, WorkerRecord
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker.outcome import Retry
from mailslice.worker.sync_queue import open_queue

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = '"<script>alert(2)</script>"@example.org'
TURNED = '"\u202egnp.exe\x1b[31m"@example.org'
ANSWER = "451 4.7.1 greylisted, come back later <script>alert(3)</script>"
UNCOUNTED = 501
"""More rows than the cockpit counts at once."""
WORDS = {
    "lost": Health.LOST,
    "stuck": Health.STUCK,
    "idle": Health.NO_WORKERS,
    "late": Health.LATE,
    "large": Health.UNKNOWN,
    "held": Health.HELD,
    "quiet": Health.OK,
}
"""Queue -> its health word."""
WAITING = 130
"""Mails of the queue `idle`: more than a page shows."""


def mail(name: str, sender: str = "alice@example.org", to: str = "bob@example.net") -> Mail:
    """A mail without content."""
    return Mail(name, sender, (to,))


@contextmanager
def world(settings: Settings) -> Iterator[Stores]:
    """Brings each queue into the health of WORDS, and keeps it there during the block."""
    with ExitStack() as stack:
        stores = stack.enter_context(open_stores(settings))
        for queue in WORDS:
            queues.create(stores, queue)
        enqueue(settings, "lost", [(timedelta(minutes=5), mail(f"lost-{n}")) for n in (1, 2)])
        with blocking_connection(settings.rabbitmq) as connection:
            connection.channel().queue_purge(RabbitNames(QueueName("lost")).work_queue)
        hung = enqueue(settings, "stuck", [(timedelta(minutes=40), mail("hung"))])
        stack.enter_context(_silent_worker(stores, *hung))
        enqueue(settings, "idle", _waiting())
        _rows(stores, "large", UNCOUNTED)
        enqueue(settings, "held", [(timedelta(minutes=1), mail("patient"))])
        why = {"who": "ada", "reason": "the next hop is being moved"}
        holds.hold(stores, QueueName("held"), system_clock, **why)
        stack.enter_context(_in_hands(settings, "late"))
        _until_words_are_true(stores)
        yield stores


def _waiting() -> Iterator[tuple[timedelta, Mail]]:
    """The mails of `idle` with their ages. Mails of strangers are the oldest."""
    yield timedelta(hours=20), mail(IMAGE, SCRIPT, TURNED)
    yield timedelta(hours=19), replace(mail("tide"), error_message=ANSWER)
    for number in range(WAITING - 2):
        domain = ("example.net", "mills.example", "tides.example")[number % 3]
        age = timedelta(minutes=WAITING - number)
        yield age, mail(f"m{number:03}", f"s{number % 7}@example.org", f"r{number}@{domain}")


def enqueue(
    settings: Settings, queue: str, mails: Iterable[tuple[timedelta, Mail]]
) -> list[QueuedMail]:
    """Enqueues each mail as if at its age (a timedelta) before now, oldest first."""
    age = timedelta(0)

    def clock() -> datetime:
        return system_clock() - age

    with open_queue(queue, settings, clock=clock) as opened:
        items = []
        for age, each in mails:  # noqa: B007 - the clock's
            items.append(opened.enqueue(each, b"Subject: tides\r\n\r\nThe body of a mail."))
        return items


def _rows(stores: Stores, queue: str, count: int) -> None:
    """Inserts rows without messages, whose number is unknown until they are counted."""
    now = system_clock()
    start = slice_start(now, timedelta(hours=1))
    name = QueueName(queue)
    stores.tables.content_starts.insert_first(name, start)
    stores.tables.browse_starts.insert_first(name, start)
    blob = BlobId(str(uuid.uuid4()))
    stores.tables.written.insert_many(
        ViewRow(
            name,
            Partition(start, 0),
            now,
            QueuedMail(EnqueueId(uuid.uuid4()), mail(f"large-{number}"), blob, blob),
        )
        for number in range(count)
    )


@contextmanager
def _silent_worker(stores: Stores, item: QueuedMail) -> Iterator[None]:
    """Writes the record of a silent worker that holds the mail of the queue `stuck`, and opens a
    connection to which the broker delivers the message.
    """
    held = InFlightMail(
        item.enqueue_id, item.mail.name, timedelta(minutes=38), "DATA", 3, begun=True
    )
    began, every = system_clock() - timedelta(hours=2), timedelta(milliseconds=1)
    record = WorkerRecord("host-7:4711:a", "host-7", 4711, began, every, 9, (held,))
    stores.own.worker_records.save_future(QueueName("stuck"), record).result()
    with blocking_connection(stores.settings.rabbitmq, heartbeat=3600) as connection:
        assert connection.channel().basic_get(RabbitNames(QueueName("stuck")).work_queue)[0]
        yield


@contextmanager
def _in_hands(settings: Settings, queue: str) -> Iterator[None]:
    """Runs a worker that holds a mail of two days. An older mail was refused and is delayed for
    half an hour.
    """
    enqueue(settings, queue, [(timedelta(days=3), mail("grey", to="r@slow.example"))])

    def refuse(_mail: Mail, _content: bytes) -> Retry:
        return Retry(after=timedelta(minutes=30), why=ANSWER)

    with open_queue(queue, settings) as opened:
        opened.consume(refuse, most=1)
        enqueue(settings, queue, [(timedelta(days=2), mail("old", to="r@slow.example"))])
        deliveries = opened.deliveries(idle=timedelta(minutes=5))
        next(deliveries)
        yield
        deliveries.close()


def _until_words_are_true(stores: Stores) -> None:
    end = time.monotonic() + 60
    while True:
        words = {str(one.queue): one.verdict for one in overview(stores, system_clock)}
        if {queue: verdict.health for queue, verdict in words.items()} == WORDS:
            return
        assert time.monotonic() < end, words
        time.sleep(0.5)
