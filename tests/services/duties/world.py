"""The test world of the duties: stores, requests and steps of runs, and killed steps.

Steps run in this process without Spark, without Data Docs, and with gates that plain Python
passes. Spark, pages and Great Expectations cost seconds, and the tests are about interleavings in
stores. A test with the fixture `with_spark` uses all three.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar, Self

import pika

from mailslice.bench.clearing import drop_marks
from mailslice.codec import message
from mailslice.engine.frames import InProcess
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.maintenance.runner import Tools, run_all, run_step
from mailslice.model.clock import Clock, system_clock
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores import Stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.services.duties.counter_repair.in_process import PLAIN
from tests.services.duties.running import judged


def in_process(duty: str = "", **more: Any) -> Tools:
    """Tools that run the Spark workers' code of that duty in this process."""
    logic = PLAIN if duty == "counter_repair" else None
    return Tools(**{"evaluator": judged, "session": InProcess(), "logic": logic, **more})


def run_all_in_process(
    request: RunRequest, settings: Settings, *, clock: Clock = system_clock, **tools: Any
) -> dict:
    """Runs all steps; returns the report."""
    return run_all(request, settings, clock=clock, tools=in_process(request.duty, **tools))


def run_step_in_process(step: str, request: RunRequest, settings: Settings) -> dict:
    """Runs one step; returns its summary."""
    return run_step(step, request, settings, tools=in_process(request.duty))


def as_set(stores: Stores, _queue: QueueName) -> Settings:
    """For `Tools.agree`: in tests one deployment has own and shared queues in turn."""
    return stores.settings


@dataclass
class World:
    """One deployment, or one of its queues, and the steps of a duty on it."""

    duty: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, object]] = {}
    """Default params of its runs."""
    locks: ClassVar[Sequence[str]] = ("{duty}/{queue}",)

    settings: Settings
    stores: Stores
    queue: QueueName = NO_QUEUE
    tools: Tools = None  # type: ignore[assignment]
    """Defaults to tools that work in this process."""

    def __post_init__(self) -> None:
        self.tools = self.tools or in_process(self.duty)

    def request(self, run: str = "", *, duty: str = "", **params: object) -> RunRequest:
        run = run or f"r-{uuid.uuid4().hex[:8]}"
        params = {**self.defaults, **params}
        return RunRequest(duty or self.duty, self.queue, run, who="tester", params=params)

    def run(self, *, clock: Clock = system_clock, duty: str = "", **params: object) -> dict:
        """Runs all steps; returns the report."""
        return self.run_request(self.request(duty=duty, **params), clock)

    def run_request(self, request: RunRequest, clock: Clock = system_clock) -> dict:
        return run_all(request, self.settings, clock=clock, tools=self.tools)

    def steps(self, request: RunRequest, *steps: str, clock: Clock = system_clock) -> dict:
        """Runs these steps of a run; returns the summary of the last."""
        summary: dict = {}
        for step in steps:
            summary = run_step(step, request, self.settings, clock=clock, tools=self.tools)
        return summary

    def kill(
        self, step: str, request: RunRequest, point: str, *, ahead: float = 0, **environ: str
    ) -> None:
        """Runs the step in a process that dies at `point`. Its clock is `ahead` hours ahead."""
        kill(step, request, {**environment(self.settings), **environ}, point, ahead)

    def let_the_locks_run_out(self) -> None:
        """Deletes the locks of a killed process, as their TTL of 60 s would."""
        names = [name.format(duty=self.duty, queue=self.queue) for name in self.locks]
        let_run_out(self.stores, *names)

    def folder(self, request: RunRequest) -> RunFolder:
        return RunFolder(artifacts(self.settings), request.duty, request.queue, request.run)

    def but(self, **changes: Any) -> Self:
        """A copy of this world with other settings of the queue."""
        queue = self.settings.queue.model_copy(update=changes)
        return replace(self, settings=self.settings.model_copy(update={"queue": queue}))

    @property
    def names(self) -> RabbitNames:
        return RabbitNames(self.queue)

    def insert_row(self, item: QueuedMail, at: datetime, start: datetime, bucket: int = 0) -> None:
        row = ViewRow(self.queue, Partition(start, bucket), at, item)
        self.stores.tables.v4.insert_many([row])

    def start_at(self, browse: datetime, content: datetime | None = None) -> None:
        """Writes browseStart and contentStart."""
        self.stores.tables.content_starts.insert_first(self.queue, content or browse)
        self.stores.tables.browse_starts.insert_first(self.queue, browse)

    def put_content(self, item: QueuedMail, header: bytes = b"x", body: bytes = b"x") -> None:
        self.stores.blobs.put(item.header_blob_id, header)
        self.stores.blobs.put(item.body_blob_id, body)

    def mark(self, *mails: QueuedMail | ViewRow | EnqueueId) -> None:
        self.stores.tables.deleted.mark_many(self.queue, [id_of(mail) for mail in mails])

    def unmark(self, *mails: QueuedMail | EnqueueId) -> None:
        drop_marks(self.stores.tables.deleted, self.queue, [id_of(mail) for mail in mails])

    def is_marked(self, mail: QueuedMail | EnqueueId) -> bool:
        return self.stores.tables.deleted.is_marked(self.queue, id_of(mail))

    def publish(self, exchange: str, body: QueuedMail | bytes, key: str = "", **more: Any) -> None:
        """Publishes a persistent message with a confirm. `more`: its other properties."""
        data = body if isinstance(body, bytes) else message.encode(body)
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(delivery_mode=2, **more)
            channel.basic_publish(exchange, key, data, properties, mandatory=True)

    def read_messages(self, name: str = "", *, take: bool = False) -> list[tuple[Any, Any, bytes]]:
        """(frame, properties, body) of a RabbitMQ queue's messages. Requeues them unless `take`."""
        rows = []
        with blocking_connection(self.settings.rabbitmq) as connection:
            channel = connection.channel()
            read = partial(channel.basic_get, name or self.names.work_queue, auto_ack=take)
            while (row := read())[0] is not None:
                rows.append(row)
        return rows


def id_of(mail: QueuedMail | ViewRow | EnqueueId) -> EnqueueId:
    return getattr(mail, "enqueue_id", mail)


def queued_mail(
    name: str = "m",
    *,
    sender: str | None = "a@b.example",
    recipients: tuple[str, ...] = ("c@d.example",),
    blobs: tuple[str, str] | None = None,
    enqueue_id: EnqueueId | None = None,
) -> QueuedMail:
    """A mail with random blob ids, unless `blobs` gives them."""
    header, body = blobs or (str(uuid.uuid4()), str(uuid.uuid4()))
    mail = Mail(name, sender, recipients)
    return QueuedMail(enqueue_id or EnqueueId(uuid.uuid4()), mail, BlobId(header), BlobId(body))


def ahead(by: timedelta) -> Clock:
    """A clock that is ahead by this time."""
    return lambda: system_clock() + by


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a child process that works on the same stores, with MAILSLICE_*."""
    secret = settings.s3.secret_key
    own = {
        "MAILSLICE_CASSANDRA_CONTACT_POINTS": settings.cassandra.contact_points[0],
        "MAILSLICE_CASSANDRA_PORT": str(settings.cassandra.port),
        "MAILSLICE_CASSANDRA_KEYSPACE": settings.cassandra.keyspace,
        "MAILSLICE_OWN_KEYSPACE": settings.own.keyspace,
        "MAILSLICE_OWN_BUCKET": settings.own.bucket,
        "MAILSLICE_RABBITMQ_URL": settings.rabbitmq.url.get_secret_value(),
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": settings.rabbitmq.management_url.get_secret_value(),
        "MAILSLICE_S3_ENDPOINT": settings.s3.endpoint,
        "MAILSLICE_S3_BUCKET": settings.s3.bucket,
        "MAILSLICE_S3_ACCESS_KEY": settings.s3.access_key or "",
        "MAILSLICE_S3_SECRET_KEY": secret.get_secret_value() if secret else "",
        "MAILSLICE_S3_REGION": settings.s3.region,
        "MAILSLICE_ARTIFACTS": settings.duty.artifacts,
        "MAILSLICE_GC_ABSENT_SOURCES": ",".join(settings.gc.absent_sources),
        "MAILSLICE_QUEUE_SLICE_WINDOW": f"{settings.queue.slice_window.total_seconds():.0f}s",
        "MAILSLICE_QUEUE_SHARED": str(settings.queue.shared).lower(),
        "MAILSLICE_QUEUE_BUCKET_COUNT": str(settings.queue.bucket_count),
    }
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("MAILSLICE_")},
        **own,
    }


def kill(
    step: str, request: RunRequest, environ: Mapping[str, str], point: str, ahead: float = 0
) -> None:
    """Runs the step in a process that dies at `point`. Its clock is `ahead` hours ahead."""
    from tests.services.duties import killed_step

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([killed_step.__name__])
    with NamedTemporaryFile() as log:
        given = (step, request, dict(environ), point, ahead, log.name)
        process = processes.Process(target=killed_step.killed_step, args=given)
        process.start()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL, Path(log.name).read_text()


def let_run_out(stores: Stores, *locks: str) -> None:
    """Deletes locks of a killed process, as their TTL of 60 s would."""
    for name in locks:
        if (holder := stores.own.locks.holder(name)) is not None:
            stores.own.locks.release(name, holder)


def raising(error: Exception) -> Callable[..., Any]:
    """A function that raises this error, whatever its arguments."""

    def function(*_: object, **__: object) -> Any:
        raise error

    return function
