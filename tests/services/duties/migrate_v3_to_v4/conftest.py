"""A queue whose view is in V3, as James 3.5 leaves it, and the duty's steps on it.

Workers' code runs in this process unless a test asks for Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.maintenance.runner import Tools
from mailslice.model.clock import system_clock
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.slices import bucket_of, slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from tests.services.duties.world import World, in_process

HOUR = timedelta(hours=1)
BUCKETS = 2


@dataclass
class OldView(World):
    """One queue. Slice 0 is the slice of an hour ago, -1 is the slice before it."""

    duty = "migrate_v3_to_v4"
    locks = ("{duty}/{queue}", "queue_cleanup/{queue}")

    def at(self, number: int) -> datetime:
        return slice_start(datetime.now(UTC), HOUR) + (number - 1) * HOUR

    def row(self, number: int = 0, name: str | None = None, **changes: Any) -> ViewRow:
        mail = Mail(
            **{
                "name": name or f"m-{uuid.uuid4().hex[:6]}",
                "sender": "a@b.example",
                "recipients": ("c@d.example", "e@f.example"),
                **changes,
            }
        )
        item = QueuedMail(EnqueueId(uuid.uuid4()), mail, BlobId("h"), BlobId("b"))
        start = self.at(number)
        return ViewRow(
            self.queue,
            Partition(start, bucket_of(mail.name, BUCKETS)),
            start + timedelta(minutes=7, milliseconds=123),
            item,
        )

    def insert(
        self,
        number: int = 0,
        *,
        dead: bool = False,
        table: EnqueuedMails | None = None,
        **changes: Any,
    ) -> ViewRow:
        """Inserts one row, into V3 unless `table` is given."""
        row = self.row(number, **changes)
        (table or self.stores.tables.v3).insert_future(row).result()
        if dead:
            self.mark(row)
        return row

    def start_at(self, number: int) -> None:
        super().start_at(self.at(number))

    def of(self, table: EnqueuedMails) -> dict[EnqueueId, tuple[ViewRow, int | None]]:
        """Every row of the queue in a table, with its write time."""
        return {
            row.enqueue_id: (row, at)
            for _, page in table.written_rows_of(self.queue, list(table.partitions(self.queue)))
            for row, at in page
        }

    @property
    def v3(self) -> dict[EnqueueId, tuple[ViewRow, int | None]]:
        return self.of(self.stores.tables.v3)

    @property
    def v4(self) -> dict[EnqueueId, tuple[ViewRow, int | None]]:
        return self.of(self.stores.tables.v4)

    @property
    def mail_queue(self) -> MailQueue:
        return MailQueue(self.stores, self.queue, system_clock)


def settings_of(fresh: Any, **more: str) -> Settings:
    given = {
        "MAILSLICE_DUTY_SPARK_MASTER": "local[2]",
        "MAILSLICE_QUEUE_BUCKET_COUNT": str(BUCKETS),
        **more,
    }
    settings: Settings = fresh.but(**given).settings
    return settings


@pytest.fixture(scope="module")
def _partition(fresh_module: Any) -> Iterator[tuple[Settings, Stores]]:
    settings = settings_of(fresh_module)
    v3 = settings.model_copy(
        update={"queue": settings.queue.model_copy(update={"table": QueueTable.V3})}
    )
    with open_stores(v3) as old:
        old.tables.create()
    with open_stores(settings) as stores:
        yield settings, stores


@pytest.fixture
def old(_partition: tuple[Settings, Stores], request: pytest.FixtureRequest) -> OldView:
    """A fresh queue with both tables, V3 and V4."""
    settings, stores = _partition
    tools = Tools() if "with_spark" in request.fixturenames else in_process()
    return OldView(settings, stores, queues.create(stores, f"q-{uuid.uuid4().hex[:8]}"), tools)
