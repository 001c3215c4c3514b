"""A bucket, James' tables and mailslice's own tables on real stores, which tests fill blob by blob,
and the steps of blob_gc on them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.duties.blob_gc.duty import BlobGc
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import Tools
from mailslice.model.mail import BlobId, QueueName
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.session import CassandraSession
from tests.services.duties.world import World, ahead, in_process, queued_mail

OLD = timedelta(hours=1)
"""How far the clock of runs is ahead: for it, blobs that were just put are past the grace."""


@dataclass
class Heap(World):
    """One deployment.

    Blobs are put now. Runs have a clock that is ahead, so no test waits for the grace.
    """

    duty = "blob_gc"
    locks = ("blob_gc",)
    params: dict[str, object] = field(
        default_factory=lambda: {"grace": "10m", "delete_after": "1h", "max_share": 1}
    )
    used: set[str] = field(default_factory=set)
    """James' tables to empty after the test; each takes 0.1 s."""

    def blob(self, key: str = "", content: bytes = b"content") -> str:
        key = key or str(uuid.uuid4())
        self.stores.blobs.put(BlobId(key), content)
        return key

    def keys(self) -> set[str]:
        return {blob.key for blob in self.stores.blobs.list()}

    def kept(self) -> set[str]:
        return {blob.key.split("/", 3)[3] for blob in self.stores.own_blobs.list("kept/")}

    def row(self, header: str, body: str) -> None:
        """Inserts a mail into the queue view that refers to both blobs."""
        start = datetime(2026, 11, 1, tzinfo=UTC)
        self.used.add("enqueuedmailsv4")
        item = queued_mail(blobs=(header, body))
        replace(self, queue=QueueName("spool")).insert_row(item, start, start)

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
        return super().request(run, **{**self.params, **params})

    def collect(self, at: timedelta = timedelta(0), **params: object) -> dict:
        """Runs all steps, as if `at` after the first run; returns the report."""
        return self.run(clock=ahead(OLD + at), **params)

    def twice(self, **params: object) -> dict:
        """Runs both phases; returns the report of the second."""
        first = self.collect(**params)
        assert (first["gcedBlobCount"], first["candidates"]) == (0, first["orphans"])
        return self.collect(timedelta(hours=2), **params)

    def steps(self, request: RunRequest, *steps: str, at: timedelta = timedelta(0)) -> dict:
        return super().steps(request, *steps, clock=ahead(OLD + at))

    def using(self, **parts: Any) -> Heap:
        """A copy of this world with other parts of the duty."""
        return replace(self, tools=replace(self.tools, logic=BlobGc(**parts)))


JAMES = (
    (
        "CREATE TABLE {}.messagev3 (messageid timeuuid PRIMARY KEY, bodycontent text, "
        "headercontent text, attachments list<frozen<map<text, text>>>)"
    ),
    (
        "CREATE TABLE {}.attachmentv2 (idasuuid uuid PRIMARY KEY, blobid text, id text, "
        "message_id timeuuid, size bigint, type text)"
    ),
    (
        "CREATE TABLE {}.mailrepositorycontentv2 (urlprefix text, mailkey text, headerblobid "
        "text, bodyblobid text, PRIMARY KEY (urlprefix, mailkey))"
    ),
    (
        "CREATE TABLE {}.extension (owner text, at timestamp, id text, avatar text, files "
        "set<text>, PRIMARY KEY ((owner, at), id))"
    ),
)


@pytest.fixture(autouse=True)
def _clocks_that_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(0))
    monkeypatch.setattr(CassandraSession, "longest_statement", timedelta(0))


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
def heap(
    _partition: tuple[Settings, Stores],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Heap]:
    """An empty deployment. Everything that the test puts into it is removed."""
    settings, stores = _partition
    for bucket in (stores.blobs, stores.own_blobs):
        bucket.ensure_bucket()
    tools = Tools() if "with_spark" in request.fixturenames else in_process()
    heap = Heap(settings, stores, tools=tools)
    yield heap
    monkeypatch.undo()  # a patched delete would leave blobs to the next test
    for name in heap.used:
        stores.cassandra.execute(f"TRUNCATE {settings.cassandra.keyspace}.{name}")
    for bucket in (stores.blobs, stores.own_blobs):
        bucket.delete_many([blob.key for blob in bucket.list()])
    artifacts(settings).remove_folder("runs")
