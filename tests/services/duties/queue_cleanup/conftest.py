"""A queue view on a real Cassandra that tests fill row by row, and the cleanup's steps on it, in
this process with one Spark session.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.admin import queues
from mailslice.duties.queue_cleanup import marks
from mailslice.maintenance.run_request import STEPS, RunRequest
from mailslice.maintenance.runner import Tools
from mailslice.model.clock import Clock, system_clock
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.view.configuration import ConfigurationGuard
from tests.services.duties.world import World, as_set, in_process

WINDOW = timedelta(seconds=10)
GRACE = "2s"


@dataclass
class View(World):
    """One queue.

    Slices have numbers: `at(0)` is the newest slice that is certainly closed, `at(-1)` is the slice
    before it, `at(10)` is open.
    """

    duty = "queue_cleanup"
    base: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    params: dict[str, object] = field(default_factory=lambda: {"grace": GRACE})

    def at(self, number: int) -> datetime:
        return self.base + number * WINDOW

    def insert(
        self,
        number: int,
        *,
        dead: bool,
        bucket: int = 0,
        table: EnqueuedMails | None = None,
        enqueue_id: EnqueueId | None = None,
    ) -> EnqueueId:
        """Inserts one row into the slice with this number; returns its id."""
        start = self.at(number)
        item = QueuedMail(
            enqueue_id or EnqueueId(uuid.uuid4()),
            Mail("mail", "a@b.example", ("c@d.example",)),
            BlobId("h"),
            BlobId("b"),
        )
        row = ViewRow(self.queue, Partition(start, bucket), start + timedelta(seconds=1), item)
        (table or self.stores.tables.v4).insert_future(row).result()
        if dead:
            self.mark(row.enqueue_id)
        return row.enqueue_id

    def start_at(
        self, number: int | datetime, content: int | datetime | str | None = "same"
    ) -> None:
        """Writes browseStart and contentStart. `content`: the same by default; None writes none."""
        browse = number if isinstance(number, datetime) else self.at(number)
        self.stores.tables.browse_starts.insert_first(self.queue, browse)
        if content is not None:
            wanted = (
                browse
                if content == "same"
                else content
                if isinstance(content, datetime)
                else self.at(content)
            )
            self.stores.tables.content_starts.insert_first(self.queue, wanted)

    def james_writes_browse_start(self, when: datetime) -> None:
        """Writes browseStart as James does: a plain write with the present time."""
        self.stores.tables.browse_starts.write(self.queue, when, micros(datetime.now(UTC)))

    @property
    def browse_start(self) -> datetime | None:
        start = self.stores.tables.browse_starts.get(self.queue)
        return start.value if start else None

    @property
    def content_start(self) -> datetime | None:
        start = self.stores.tables.content_starts.get(self.queue)
        return start.value if start else None

    def rows(self, number: int, bucket: int = 0) -> set[EnqueueId]:
        """The ids of a slice in all tables."""
        world = Partition(self.at(number), bucket)
        return {
            row.enqueue_id
            for table in self.stores.tables.existing
            for row in table.ids(self.queue, world)
        }

    def request(self, run: str = "", **params: object) -> RunRequest:
        return super().request(run, **{**self.params, **params})

    def clean(self, clock: Clock = system_clock, **params: object) -> dict:
        """Runs all steps; returns the report."""
        return self.run(clock=clock, **params)

    def steps(self, request: RunRequest, *steps: str, clock: Clock = system_clock) -> dict:
        """Runs these steps of a run, or all; returns the summary of the last."""
        return super().steps(request, *(steps or STEPS), clock=clock)


def micros(when: datetime) -> int:
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _settings(fresh, **more: object) -> Settings:
    settings = fresh.but(
        MAILSLICE_QUEUE_SLICE_WINDOW="10s",
        MAILSLICE_DUTY_SPARK_MASTER="local[2]",
        MAILSLICE_QUEUE_SHARED="false",
    ).settings
    return settings.model_copy(update=more)


@pytest.fixture
def tools(request: pytest.FixtureRequest) -> Tools:
    """Tools that run workers' code in this process without Data Docs; `with_spark` uses both."""
    if "with_spark" in request.fixturenames:
        return Tools(agree=as_set)
    return in_process(agree=as_set)


@pytest.fixture(scope="session")
def _one_place(make_fresh) -> Iterator[tuple[Settings, Stores]]:
    settings = _settings(make_fresh())
    with open_stores(settings) as stores:
        queues.create(stores, "first")
        yield settings, stores


@pytest.fixture(scope="session")
def _two_tables(make_fresh) -> Iterator[tuple[Settings, Stores]]:
    settings = _settings(make_fresh())
    v3 = settings.model_copy(
        update={"queue": settings.queue.model_copy(update={"table": QueueTable.V3})}
    )
    with open_stores(v3) as old:
        old.tables.create()
    with open_stores(settings) as stores:
        queues.create(stores, "first")
        yield settings, stores


def _view(settings: Settings, stores: Stores, tools: Tools) -> View:
    name = queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")
    base = slice_start(datetime.now(UTC), WINDOW) - 30 * WINDOW
    return View(settings, stores, name, tools, base)


@pytest.fixture
def view(_one_place: tuple[Settings, Stores], tools: Tools) -> View:
    """A fresh queue.

    Only mailslice works on it (shared is false), so a cleanup drops marks with their rows.
    """
    return _view(*_one_place, tools)


@pytest.fixture
def shared_view(view: View, monkeypatch: pytest.MonkeyPatch) -> View:
    """As `view`, on a queue that James shares.

    A test says when the queue is known to be empty: when RabbitMQ has figures of a new queue is
    random.
    """
    monkeypatch.setattr(marks, "take_sample", lambda *_, **__: None)
    view.settings = view.settings.model_copy(
        update={"queue": view.settings.queue.model_copy(update={"shared": True})}
    )
    return view


@pytest.fixture
def view_of_two(_two_tables: tuple[Settings, Stores], tools: Tools) -> View:
    """As `view`, with both tables, V3 and V4."""
    return _view(*_two_tables, tools)


@pytest.fixture
def older_view(make_fresh: Callable, tools: Tools) -> Iterator[View]:
    """As `view`, beside James 3.5 or 3.6: only V3 exists, and there is no contentStart."""
    settings = _settings(make_fresh(new_keyspaces=True))
    v3 = settings.model_copy(
        update={"queue": settings.queue.model_copy(update={"table": QueueTable.V3})}
    )
    with open_stores(v3) as old:
        queue = queues.create(old, "spool")
        old.cassandra.execute(f"DROP TABLE {settings.cassandra.keyspace}.contentstart")
    base = slice_start(datetime.now(UTC), WINDOW) - 30 * WINDOW
    with open_stores(settings) as stores:
        yield View(settings, stores, queue, tools, base)


@pytest.fixture
def own_view(make_fresh: Callable, tools: Tools) -> Iterator[View]:
    """As `view`, in own keyspaces, for tests that change the stored configuration."""
    settings = _settings(make_fresh())
    with open_stores(settings) as stores:
        queues.create(stores, "first")
        yield _view(settings, stores, tools)


def store_configuration(view: View, window: timedelta, buckets: int = 1) -> None:
    """Appends a configuration to James' events, and changes the settings to match it."""
    configuration = ViewConfiguration(window, buckets)
    ConfigurationGuard(view.stores.tables, view.settings).apply(configuration)
    queue = view.settings.queue.model_copy(update={"slice_window": window, "bucket_count": buckets})
    view.settings = view.settings.model_copy(update={"queue": queue})


__all__ = ["GRACE", "WINDOW", "View", "micros", "replace", "store_configuration"]
