"""A queue whose workers exist only as records, and the duty's steps in this process.

For each worker a thread writes records, as the task of a real worker does.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.admin import queues
from mailslice.admin.quarantine import Quarantine
from mailslice.codec import message
from mailslice.maintenance.runner import Tools
from mailslice.model.clock import system_clock
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import Partition, QueuedMail, ViewRow
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.worker_records import InFlightMail, WorkerRecord
from tests.services.duties.running import judged_plainly, without_pages
from tests.services.duties.world import World, queued_mail

HEADER, BODY = b"Subject: x\r\n\r\n", b"body \xff"
TIMEOUT = "1m"
DAY = timedelta(days=1)


class Speaker:
    """A worker that exists as a record, written ten times a second until `fall_silent`."""

    def __init__(self, world: StuckQueue, *mails: InFlightMail, **changes: Any) -> None:
        self.partition = world
        self.began = datetime.now(UTC)
        self.record = replace(
            WorkerRecord(
                f"host:{uuid.uuid4().hex[:6]}",
                "host",
                1,
                self.began,
                timedelta(seconds=0.2),
                0,
                mails,
                stage_marks=False,
            ),
            **changes,
        )
        self.name = self.record.worker
        self._end = threading.Event()
        self._lock = threading.Lock()
        self.say()
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def say(self, **changes: Any) -> None:
        """Writes one more record."""
        with self._lock:
            self.record = replace(self.record, beat=self.record.beat + 1, **changes)
            stores, queue = self.partition.stores, self.partition.queue
            with suppress(MailsliceError), stores.cassandra.translating():
                stores.own.worker_records.save_future(queue, self.record).result()

    def fall_silent(self) -> None:
        """Stops writing records, as after SIGKILL or SIGSTOP."""
        self._end.set()
        self._thread.join()

    def _speak(self) -> None:
        while not self._end.wait(0.1):
            self.say()


@dataclass
class StuckQueue(World):
    """A queue, and the state that tests check."""

    duty = "stuck_mails"
    defaults = {"lock_timeout": TIMEOUT}  # noqa: RUF012
    speakers: list[Speaker] = field(default_factory=list)

    def mail(self, name: str = "m", recipients: tuple[str, ...] = ("c@d.example",)) -> QueuedMail:
        """Writes blobs and row of a mail, as an enqueue does."""
        item = queued_mail(name, recipients=recipients)
        self.put_content(item, HEADER, BODY)
        row = ViewRow(self.queue, self.where, system_clock(), item)
        self.stores.tables.written.insert_many([row])
        self.start_at(self.where.slice_start)
        return item

    @property
    def where(self) -> Partition:
        return Partition(slice_start(system_clock() - DAY / 24, timedelta(hours=1)), 0)

    def held(self, item: QueuedMail, seconds: float = 120.0, **changes: Any) -> InFlightMail:
        """The mail as a worker record lists it: in a handler for `seconds`."""
        mail = InFlightMail(
            item.enqueue_id,
            item.mail.name,
            timedelta(seconds=seconds),
            "loaded",
            1,
            begun=True,
            partition=self.where,
            message=message.encode(item),
        )
        return replace(mail, **changes)

    def worker(self, *mails: InFlightMail, **changes: Any) -> Speaker:
        self.speakers.append(Speaker(self, *mails, **changes))
        return self.speakers[-1]

    @property
    def quarantine(self) -> Quarantine:
        return Quarantine(self.stores, self.queue, system_clock, sleep=lambda _: None)

    def kept(self) -> list[QuarantinedMail]:
        return list(self.quarantine.mails())

    def decisions(self) -> list[DecisionRow]:
        now = system_clock()
        return list(self.stores.own.decisions.list(self.queue, now - DAY, now + DAY))


@pytest.fixture
def real_gate() -> None:
    """Makes a test evaluate gates by Great Expectations."""


@pytest.fixture(scope="module")
def _opened(make_fresh: Any) -> Iterator[tuple[Settings, Stores]]:
    settings = make_fresh().settings
    with open_stores(settings) as stores:
        queues.create(stores, "first")
        stores.own_blobs.ensure_bucket()
        yield settings, stores


@pytest.fixture
def world(_opened: tuple[Settings, Stores], request: pytest.FixtureRequest) -> Iterator[StuckQueue]:
    """A queue. Plain Python evaluates its gates, a second faster each, unless `real_gate`."""
    settings, stores = _opened
    tools = Tools(without_pages if "real_gate" in request.fixturenames else judged_plainly)
    queue = queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")
    stuck_queue = StuckQueue(settings, stores, queue, tools)
    yield stuck_queue
    for speaker in stuck_queue.speakers:
        speaker.fall_silent()
