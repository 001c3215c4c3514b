"""A bucket, James' tables and mailslice's own on real stores that tests fill blob by blob, and the collector's steps over them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.checks import gate
from mailslice.engine import worker_stores
from mailslice.engine.frames import InProcess
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.context import StepContext
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.maintenance.runner import run_all, run_step
from mailslice.model.clock import Clock, system_clock
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.session import CassandraSession

OLD = timedelta(hours=1)
"""How far ahead the clock of runs is: blobs that were just put are older than the grace by then."""


@dataclass
class Heap:
    """One deployment. Blobs are put now; runs are made by a clock that is ahead, so that nothing has to be waited for."""

    settings: Settings
    stores: Stores
    params: dict[str, object] = field(
        default_factory=lambda: {"grace": "10m", "delete_after": "1h", "max_share": 1}
    )

    used: set[str] = field(default_factory=set)
    """James' tables that are to be emptied: each costs a tenth of a second."""

    def blob(self, key: str = "", content: bytes = b"content") -> str:
        key = key or str(uuid.uuid4())
        self.stores.blobs.put(BlobId(key), content)
        return key

    def keys(self) -> set[str]:
        return {blob.key for blob in self.stores.blobs.list()}

    def kept(self) -> set[str]:
        return {blob.key.split("/", 3)[3] for blob in self.stores.own_blobs.list("kept/")}

    def row(self, header: str, body: str) -> None:
        """A mail of the queue view refers to both."""
        item = QueuedMail(
            EnqueueId(uuid.uuid4()),
            Mail("mail", "a@b.example", ("c@d.example",)),
            BlobId(header),
            BlobId(body),
        )
        start = datetime(2026, 11, 1, tzinfo=UTC)
        self.used.add("enqueuedmailsv4")
        self.stores.tables.v4.insert_future(
            ViewRow(QueueName("spool"), Partition(start, 0), start, item)
        ).result()

    def message(self, header: str, body: str) -> uuid.UUID:
        message_id = uuid.uuid1()
        self.cql(
            "INSERT INTO {}.messagev3 (messageid, headercontent, bodycontent) VALUES (%s, %s, %s)",
            message_id,
            header,
            body,
        )
        return message_id

    def cql(self, statement: str, *values: object) -> None:
        self.used.update(re.findall(r"\{\}\.(\w+)", statement))
        self.stores.cassandra.execute(statement.format(self.settings.cassandra.keyspace), values)

    def request(self, run: str = "", **params: object) -> RunRequest:
        return RunRequest(
            "blob_gc",
            NO_QUEUE,
            run or f"r-{uuid.uuid4().hex[:8]}",
            who="tester",
            params={**self.params, **params},
        )

    def collect(self, at: timedelta = timedelta(0), **params: object) -> dict:
        """A whole run, as if made `at` after the first; its report."""
        return run_all(self.request(**params), self.settings, clock=self.clock(at))

    def twice(self, **params: object) -> dict:
        """Both phases; the report of the second."""
        first = self.collect(**params)
        assert (first["gcedBlobCount"], first["candidates"]) == (0, first["orphans"])
        return self.collect(timedelta(hours=2), **params)

    def steps(self, request: RunRequest, *steps: str, at: timedelta = timedelta(0)) -> dict:
        summary: dict = {}
        for step in steps:
            summary = run_step(step, request, self.settings, clock=self.clock(at))
        return summary

    def clock(self, at: timedelta) -> Clock:
        return lambda: system_clock() + OLD + at

    def folder(self, request: RunRequest) -> RunFolder:
        return RunFolder(artifacts(self.settings), request.duty, request.queue, request.run)


JAMES = (
    "CREATE TABLE {}.messagev3 (messageid timeuuid PRIMARY KEY, bodycontent text, headercontent text, attachments list<frozen<map<text, text>>>)",
    "CREATE TABLE {}.attachmentv2 (idasuuid uuid PRIMARY KEY, blobid text, id text, message_id timeuuid, size bigint, type text)",
    "CREATE TABLE {}.mailrepositorycontentv2 (urlprefix text, mailkey text, headerblobid text, bodyblobid text, PRIMARY KEY (urlprefix, mailkey))",
    "CREATE TABLE {}.extension (owner text, at timestamp, id text, avatar text, files set<text>, PRIMARY KEY ((owner, at), id))",
)


@pytest.fixture(autouse=True)
def _without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleavings are about stores: here the workers' code runs in this process and Data Docs are not rendered. `with_spark` has both."""
    monkeypatch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(0))
    monkeypatch.setattr(CassandraSession, "longest_statement", timedelta(0))
    if "with_spark" not in request.fixturenames:
        monkeypatch.setattr(StepContext, "spark", lambda _: InProcess())
        monkeypatch.setattr(gate, "_publish", lambda *_: "not rendered")


@pytest.fixture(scope="session", autouse=True)
def _close_what_in_process_workers_opened() -> Iterator[None]:
    yield
    worker_stores.close_all()


@pytest.fixture
def with_spark() -> None:
    """Real Spark jobs and rendered Data Docs, as in production."""


@pytest.fixture(scope="module")
def _partition(make_fresh: Callable) -> Iterator[tuple[Settings, Stores]]:
    fresh = make_fresh().but(
        MAILSLICE_GC_ABSENT_SOURCES="enqueuedMailsV3", MAILSLICE_DUTY_SPARK_MASTER="local[2]"
    )
    with open_stores(fresh.settings) as stores:
        stores.tables.create()
        for statement in JAMES:
            stores.cassandra.execute(statement.format(fresh.settings.cassandra.keyspace))
        yield fresh.settings, stores


@pytest.fixture
def heap(_partition: tuple[Settings, Stores], monkeypatch: pytest.MonkeyPatch) -> Iterator[Heap]:
    """An empty deployment; what the test puts into it is removed."""
    settings, stores = _partition
    for bucket in (stores.blobs, stores.own_blobs):
        bucket.ensure_bucket()
    heap = Heap(settings, stores)
    yield heap
    monkeypatch.undo()  # a patched delete would leave its blobs to the next test
    for name in heap.used:
        stores.cassandra.execute(f"TRUNCATE {settings.cassandra.keyspace}.{name}")
    for bucket in (stores.blobs, stores.own_blobs):
        bucket.delete_many([blob.key for blob in bucket.list()])
    artifacts(settings).remove_folder("runs")
