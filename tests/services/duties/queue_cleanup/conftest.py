"""A queue view on a real Cassandra that tests fill row by row, and the cleanup's steps over it, in
this process with one Spark session.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.admin import queues
from mailslice.checks import gate
from mailslice.duties.queue_cleanup import marks
from mailslice.engine import worker_stores
from mailslice.engine.frames import InProcess
from mailslice.maintenance import runner
from mailslice.maintenance.context import StepContext
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_all, run_step, steps_of
from mailslice.model.clock import Clock, system_clock
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.view.configuration import ConfigurationGuard

WINDOW = timedelta(seconds=10)
GRACE = "2s"


@dataclass
class View:
    """One queue.

    Slices are numbered: `at(0)` is the newest slice that is surely closed, `at(-1)` the one before
    it, `at(10)` is open.
    """

    settings: Settings
    stores: Stores
    queue: QueueName
    base: datetime
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
        """One row, in the slice of that number."""
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

    def mark(self, enqueue_id: EnqueueId) -> None:
        self.stores.tables.deleted.mark_future(self.queue, enqueue_id).result()

    def unmark(self, enqueue_id: EnqueueId) -> None:
        self.stores.tables.deleted.drop_many(self.queue, [enqueue_id])

    def is_marked(self, enqueue_id: EnqueueId) -> bool:
        return self.stores.tables.deleted.is_marked(self.queue, enqueue_id)

    def start_at(
        self, number: int | datetime, content: int | datetime | str | None = "same"
    ) -> None:
        """Write browseStart, and contentStart: the same when nothing is said, none when None."""
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
        """As James: a plain write with the time of now."""
        self.stores.tables.browse_starts.write(self.queue, when, micros(datetime.now(UTC)))

    @property
    def browse_start(self) -> datetime | None:
        start = self.stores.tables.browse_starts.read(self.queue)
        return start.value if start else None

    @property
    def content_start(self) -> datetime | None:
        start = self.stores.tables.content_starts.read(self.queue)
        return start.value if start else None

    def rows(self, number: int, bucket: int = 0) -> set[EnqueueId]:
        """The ids in a slice, over all tables."""
        world = Partition(self.at(number), bucket)
        return {
            row.enqueue_id
            for table in self.stores.tables.existing
            for row in table.ids(self.queue, world)
        }

    def request(self, run: str = "", **params: object) -> RunRequest:
        return RunRequest(
            "queue_cleanup",
            self.queue,
            run or f"r-{uuid.uuid4().hex[:8]}",
            who="tester",
            params={**self.params, **params},
        )

    def clean(self, clock: Clock = system_clock, **params: object) -> dict:
        """A whole run; its report."""
        return run_all(self.request(**params), self.settings, clock=clock)

    def steps(self, request: RunRequest, *steps: str) -> dict:
        """Some steps of a run; the summary of the last."""
        summary: dict = {}
        for step in steps or steps_of_all():
            summary = run_step(step, request, self.settings)
        return summary


def steps_of_all() -> tuple[str, ...]:
    from mailslice.duties.queue_cleanup.params import Params

    return steps_of(Params())


def micros(when: datetime) -> int:
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _settings(fresh, **more: object) -> Settings:
    settings = fresh.but(
        MAILSLICE_QUEUE_SLICE_WINDOW="10s",
        MAILSLICE_DUTY_SPARK_MASTER="local[2]",
        MAILSLICE_QUEUE_SHARED="false",
    ).settings
    return settings.model_copy(update=more)


@pytest.fixture(autouse=True)
def _without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleavings are about stores: here the workers' code runs in this process and Data Docs are
    not rendered. `with_spark` has both.
    """
    # One deployment plays a queue of its own and a shared one in turn.
    monkeypatch.setattr(runner, "agree", lambda stores: stores.settings)
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


def _view(settings: Settings, stores: Stores) -> View:
    name = queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")
    return View(settings, stores, name, slice_start(datetime.now(UTC), WINDOW) - 30 * WINDOW)


@pytest.fixture
def view(_one_place: tuple[Settings, Stores]) -> View:
    """A fresh queue.

    mailslice alone works on it (shared is false), so that marks go with their rows.
    """
    return _view(*_one_place)


@pytest.fixture
def shared_view(view: View, monkeypatch: pytest.MonkeyPatch) -> View:
    """As `view`, on a queue that James shares.

    That it is empty is known of it when a test says so: how soon RabbitMQ has figures of a new
    queue is chance.
    """
    monkeypatch.setattr(marks, "sample_again", lambda *_, **__: None)
    view.settings = view.settings.model_copy(
        update={"queue": view.settings.queue.model_copy(update={"shared": True})}
    )
    return view


@pytest.fixture
def view_of_two(_two_tables: tuple[Settings, Stores]) -> View:
    """As `view`, where V3 and V4 both exist."""
    return _view(*_two_tables)


@pytest.fixture
def own_view(make_fresh: Callable) -> Iterator[View]:
    """As `view`, in keyspaces of its own: for tests that change the stored configuration."""
    settings = _settings(make_fresh())
    with open_stores(settings) as stores:
        queues.create(stores, "first")
        yield _view(settings, stores)


def store_configuration(view: View, window: timedelta, buckets: int = 1) -> None:
    """Append a configuration to James' events, and let the settings follow it."""
    configuration = ViewConfiguration(window, buckets)
    ConfigurationGuard(view.stores.tables, view.settings).apply(configuration)
    queue = view.settings.queue.model_copy(update={"slice_window": window, "bucket_count": buckets})
    view.settings = view.settings.model_copy(update={"queue": queue})


__all__ = ["GRACE", "WINDOW", "View", "micros", "replace", "store_configuration"]
