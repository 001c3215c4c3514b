"""A queue for audits. Tests put row, content and message of a mail independently.

A real worker can hold some of the mails.

The packages queue_audit and republish_lost use the fixtures.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pika
import pytest

from mailslice.admin import queues
from mailslice.codec import message
from mailslice.duties.queue_audit import evidence
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.audits import lock_name, newest_audit
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import Tools
from mailslice.model.clock import Clock, system_clock
from mailslice.model.dead_letters import MAX_CHECKED_OUT
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.model.verdicts import MailVerdict
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.own import DelayedMail
from mailslice.stores.rabbitmq.checkout import Checkout
from mailslice.stores.rabbitmq.work_census import WorkQueueCensus
from mailslice.worker import open_worker
from tests.services.duties.running import judged_plainly
from tests.services.duties.world import World, as_set, in_process

MINUTE = timedelta(minutes=1)
AGE = 30 * MINUTE
WINDOW = 10 * MINUTE


@dataclass
class Spool(World):
    """One queue.

    By default mails are half an hour old and complete: row, content and message.
    """

    locks = (lock_name(QueueName("{queue}")),)
    tools: Tools = field(default_factory=lambda: PLAINLY)

    def put(
        self,
        name: str = "mail",
        *,
        age: timedelta = AGE,
        message: bool = True,
        content: bool = True,
        row: bool = True,
        to: str | None = None,
    ) -> EnqueueId:
        at = datetime.now(UTC) - age
        at = at.replace(microsecond=at.microsecond // 1000 * 1000)
        ids = BlobId(str(uuid.uuid4())), BlobId(str(uuid.uuid4()))
        item = QueuedMail(
            EnqueueId(uuid.uuid4()), Mail(name, "secret.person@a.example", ("c@d.example",)), *ids
        )
        if content:
            self.stores.blobs.put(item.header_blob_id, b"Subject: x\r\n\r\n")
            self.stores.blobs.put(item.body_blob_id, b"body")
        world = Partition(slice_start(at, WINDOW), 0)
        self.stores.tables.v4.insert_many([ViewRow(self.queue, world, at, item)])
        self.stores.tables.content_starts.insert_first(
            self.queue, world.slice_start - timedelta(days=1)
        )
        self.stores.tables.browse_starts.insert_first(
            self.queue, world.slice_start - timedelta(days=1)
        )
        if message:
            self.publish(self.names.exchange if to is None else to, item)
        return item.enqueue_id

    def delay(self, enqueue_id: EnqueueId, due: datetime, body: bytes = b"{}") -> None:
        self.stores.own.delayed_mails.write_future(
            self.queue, DelayedMail(enqueue_id, due, uuid.uuid4(), False, None, body)
        ).result()

    def row(self, enqueue_id: EnqueueId) -> ViewRow | None:
        table = self.stores.tables.v4
        return next(table.find(self.queue, list(table.partitions(self.queue)), enqueue_id), None)

    def messages(self, name: str = "") -> list[tuple[EnqueueId, pika.BasicProperties, bool]]:
        """The messages of the RabbitMQ queue in their order. Requeues all.

        Each is (enqueue id, properties, redelivered).
        """
        return [
            (message.decode(body).enqueue_id, properties, frame.redelivered)
            for frame, properties, body in self.read_messages(name)
        ]

    def request(self, duty: str, run: str = "", **params: object) -> RunRequest:
        return super().request(run, duty=duty, **params)

    def audit(self, *, clock: Clock = system_clock, **params: object) -> dict:
        """Runs all steps; returns the report."""
        return self.run_request(self.request("queue_audit", **params), clock)

    def republish(self, *, clock: Clock = system_clock, **params: object) -> dict:
        return self.run_request(self.request("republish_lost", **params), clock)

    def judged(self) -> Iterator[MailVerdict]:
        """The verdicts of the last audit, with their reasons."""
        return newest_audit(self.stores, self.queue).mails(artifacts(self.settings))

    def verdicts(self) -> dict[EnqueueId, str]:
        """The verdict of each mail in the last audit."""
        return {EnqueueId(uuid.UUID(mail.enqueue_id)): mail.verdict for mail in self.judged()}

    def why(self, enqueue_id: EnqueueId) -> str:
        return next(mail.why for mail in self.judged() if mail.enqueue_id == str(enqueue_id))

    def shared(self, yes: bool = True) -> Spool:
        """The same queue with the setting that James works on it, or does not."""
        return self.but(shared=yes)


@contextmanager
def working(spool: Spool, *, complete: int = 0) -> Iterator[list[EnqueueId]]:
    """Runs a worker in a thread of its own; gives the ids that it gets.

    The worker completes the first `complete` mails, then holds one until the end.
    """
    handed: list[EnqueueId] = []
    holds, over = threading.Event(), threading.Event()

    async def work() -> None:
        async with open_worker(spool.settings, spool.queue) as worker:
            deliveries = worker.deliveries(1)
            for number in range(complete + 1):
                delivery = await anext(deliveries)
                handed.append(delivery.item.enqueue_id)
                if number < complete:
                    await delivery.complete()
            holds.set()
            await asyncio.to_thread(over.wait)
            await deliveries.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert holds.wait(30), "the worker got no mail"
        yield handed
    finally:
        over.set()
        thread.join(30)


PLAINLY = in_process(evaluator=judged_plainly, agree=as_set)
"""Tools: workers' code and gates run in this process; settings are taken as they are."""


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """Makes the waits of audits as short as possible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "HOLD", timedelta(seconds=5.5))
        patch.setattr(Checkout.messages, "__defaults__", (MAX_CHECKED_OUT, 0.1))
        yield


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a census not wait for figures of RabbitMQ: no consumer holds messages in these tests."""
    monkeypatch.setattr(evidence, "HOLD", timedelta(0))
    monkeypatch.setattr(WorkQueueCensus, "elsewhere", lambda _: 0)


@pytest.fixture(scope="module")
def one_place(make_fresh) -> Iterator[tuple[Settings, Stores]]:
    settings = (
        make_fresh()
        .but(
            MAILSLICE_QUEUE_SLICE_WINDOW="10m",
            MAILSLICE_QUEUE_SHARED="false",
            MAILSLICE_WORKER_RECORD_EVERY="1s",
        )
        .settings
    )
    with open_stores(settings) as stores:
        queues.create(stores, "first")
        yield settings, stores


def new_spool(settings: Settings, stores: Stores) -> Spool:
    return Spool(settings, stores, queues.create(stores, f"q-{uuid.uuid4().hex[:8]}"))


@pytest.fixture
def spool(one_place: tuple[Settings, Stores]) -> Spool:
    """A fresh queue on which only mailslice works."""
    return new_spool(*one_place)


@pytest.fixture(scope="module")
def make_spool(one_place: tuple[Settings, Stores]):
    return lambda: new_spool(*one_place)
