"""Figures for the pages. A cache serves all viewers, so that not every viewer queries the stores.

The first query opens the stores. After an error of a store the next query opens them again.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from mailslice.maintenance.health import Health, HealthVerdict, unanswered
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.overview import QueueOverview, has_result, last_reported, overview
from mailslice.maintenance.postal_health import PostalOverview, postal_overview
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import STORE_ERRORS, BadSetting, StoreUnavailable, TryAgain
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, load_settings
from mailslice.stores import Stores, has_cassandra, open_stores

log = logging.getLogger(__name__)

FRESH = timedelta(seconds=5)
"""A younger overview is shown as it is. An older one is shown while a new one is made."""
STALE = timedelta(minutes=1)
"""An overview older than this is not shown while the stores answer."""
PATIENCE = timedelta(seconds=5)
"""How long a page waits for a store. Then it shows the last known figures and their age."""
_TREND_FRESH = timedelta(minutes=5)
_TREND_RUNS = 96
"""A day of measurements, one each 15 minutes."""
_MAX_CACHED = 5000
"""Most answers in the cache; beyond it the cache is cleared."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The queues at a moment, the worst first. `problem`: why nothing newer is known.

    `postal`: None where there is no Postal.
    """

    at: datetime
    queues: tuple[QueueOverview, ...]
    problem: str | None = None
    postal: PostalOverview | None = None


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """A measurement: when, and how many mails were live."""

    at: datetime
    size: int


@dataclass(frozen=True, slots=True)
class CachedAnswer(Generic[T]):
    """A store's last answer and its time, None without one. `problem`: why it is not newer."""

    value: T | None
    at: datetime | None
    problem: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class Facts:
    """Safe to share between threads. Raises StoreUnavailable where nothing is known at all."""

    load: Callable[[], Settings] = load_settings
    clock: Clock = system_clock
    overviews: Callable[[Stores, Clock], list[QueueOverview]] = overview
    open_stores: Callable[[Settings], Stores] = open_stores
    patience: timedelta = PATIENCE
    _open_lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _opened: Stores | None = field(default=None, init=False)
    _users: Counter[Stores] = field(default_factory=Counter, init=False)
    _attempt_lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _attempt: Future[Snapshot] | None = field(default=None, init=False)
    _attempted_at: datetime = field(default=datetime.min.replace(tzinfo=UTC), init=False)
    _snapshot: Snapshot | None = field(default=None, init=False)
    _cache: dict[Hashable, tuple[datetime, Any]] = field(default_factory=dict, init=False)

    @property
    def now(self) -> datetime:
        """The time from which ages are counted."""
        return self.clock()

    def snapshot(self) -> Snapshot:
        """Every queue. At most a minute old, unless a store does not answer: `problem` says so.

        Takes at most `patience`, whatever the stores do.
        """
        # After the clock was set back, a negative age must not count as fresh.
        known, age = self._snapshot, abs(self.clock() - self._attempted_at)
        if known is not None and age < FRESH:
            return known
        attempt = self._running_attempt()
        if known is not None and age < STALE:
            return known
        return self._result(attempt)

    def expire(self) -> None:
        """Call after an action: the next page waits for a new overview, up to `patience`."""
        with self._attempt_lock:
            self._attempted_at, self._attempt = datetime.min.replace(tzinfo=UTC), None

    def queue(self, name: str) -> tuple[QueueOverview | None, Snapshot]:
        """One queue, and the snapshot that has it; None: there is no such queue.

        A queue that the snapshot lacks may be new, so this waits for a new overview.
        """
        snapshot = self.snapshot()
        if all(one.queue != name for one in snapshot.queues):
            snapshot = self._result(self._running_attempt())
        queue = next((one for one in snapshot.queues if one.queue == name), None)
        if queue is None and snapshot.problem:
            raise StoreUnavailable(f"queue {name!r} may exist or not: {snapshot.problem}")
        return queue, snapshot

    def _result(self, attempt: Future[Snapshot]) -> Snapshot:
        """The new overview, or the last one where the new one takes longer than `patience`."""
        known = self._snapshot
        try:
            return attempt.result(self.patience.total_seconds())
        except FutureTimeoutError:
            seconds = f"{self.patience.total_seconds():g}"
            problem = f"The stores have not answered for {seconds} s"
            if known is None:
                raise StoreUnavailable(problem) from None
            return replace(known, problem=problem)

    def trend(self, queue: QueueName) -> tuple[TrendPoint, ...] | None:
        """The sizes that were measured since yesterday, the oldest first; None: no answer."""
        key, since = ("trend", queue), self.clock() - timedelta(days=1)
        known = self.cached(key, lambda stores: tuple(_trend(stores, queue, since)), _TREND_FRESH)
        return known.value

    def cached(
        self, key: Hashable, query: Callable[[Stores], T], fresh: timedelta = timedelta(0)
    ) -> CachedAnswer[T]:
        """The stores' answer to `query`, cached for `fresh`. When they do not answer: their last
        answer, and why it is not newer.
        """
        now = self.clock()
        at, value = self._cache.get(key, (None, None))
        if at is not None and abs(now - at) < fresh:
            return CachedAnswer(value, at)
        try:
            with self.stores() as stores:
                value = query(stores)
        except STORE_ERRORS as error:
            return CachedAnswer(value, at, str(error))
        if len(self._cache) > _MAX_CACHED:
            self._cache.clear()
        self._cache[key] = now, value
        return CachedAnswer(value, now)

    @contextmanager
    def stores(self) -> Iterator[Stores]:
        """The open stores. After an error of a store the next query opens new ones. The last user
        closes the old ones: closed during a query, they would open again and stay open.
        """
        with self._open_lock:
            if self._opened is None:
                self._opened = self.open_stores(self.load())
                self._users[self._opened] += 1  # counts as a user while they are open
            stores = self._opened
            self._users[stores] += 1
        try:
            yield stores
        except STORE_ERRORS:
            self.close(stores)
            raise
        finally:
            self._release(stores)

    @property
    def settings(self) -> Settings:
        return self.load()

    def close(self, failed: Stores | None = None) -> None:
        """Close the stores, or only the `failed` ones, after their last query. A query reopens."""
        with self._open_lock:
            stores = self._opened
            if stores is None or failed not in {None, stores}:
                return
            self._opened = None
        self._release(stores)

    def _release(self, stores: Stores) -> None:
        with self._open_lock:
            self._users[stores] -= 1
            if self._users[stores]:
                return
            del self._users[stores]
        stores.close()

    def _running_attempt(self) -> Future[Snapshot]:
        """The running attempt at an overview, or a new one."""
        with self._attempt_lock:
            if self._attempt is None or self._attempt.done():
                self._attempt = Future()
                threading.Thread(target=self._run, args=(self._attempt,), daemon=True).start()
            return self._attempt

    def _run(self, attempt: Future[Snapshot]) -> None:
        try:
            snapshot = self._make_snapshot()
            with self._attempt_lock:
                if self._attempt is attempt:  # no action expired it meanwhile
                    self._snapshot, self._attempted_at = snapshot, self.clock()
        except BaseException as error:  # noqa: BLE001 - `_result` raises it
            if not isinstance(error, TryAgain):
                log.warning("the overview of queues could not be made anew: %s", error)
            attempt.set_exception(error)
        else:
            attempt.set_result(snapshot)

    def _make_snapshot(self) -> Snapshot:
        known, settings, postal = self._snapshot, self.settings, None
        try:
            with self.stores() as stores:
                if settings.postal.url is not None:
                    postal = postal_overview(stores, self.clock)
                read = self.overviews if has_cassandra(settings) else lambda *_: []
                queues = tuple(read(stores, self.clock))
                errors = [error for one in queues for error in one.unanswered.values()]
                if BadSetting in map(type, (*errors, postal and postal.unanswered)):
                    self.close(stores)
        except STORE_ERRORS as error:
            before = known or self._from_ledger(error, postal)
            queues = _downgraded(before.queues, error)
            return replace(before, queues=queues, problem=str(error), postal=postal)
        problems = dict.fromkeys(map(str, errors))
        if problems and known is not None:
            queues = tuple(_with_earlier_figures(one, known.queues) for one in queues)
        return Snapshot(self.clock(), queues, "; ".join(problems) or None, postal)

    def _from_ledger(self, error: TryAgain | BadSetting, postal: PostalOverview | None) -> Snapshot:
        try:
            with self.stores() as stores:
                queues = tuple(last_reported(stores, error))
        except STORE_ERRORS as other:
            raise StoreUnavailable(f"{error}; {other}") from error
        if not queues and postal is None:
            raise error
        return Snapshot(self.clock(), queues)


def _downgraded(queues: Iterable[QueueOverview], error: Exception) -> tuple[QueueOverview, ...]:
    """The queues while RabbitMQ does not answer: a verdict better than UNKNOWN becomes UNKNOWN."""
    unknown = HealthVerdict(Health.UNKNOWN, unanswered("RabbitMQ", error), "mailslice config check")
    return tuple(
        replace(one, verdict=min(unknown, one.verdict, key=lambda verdict: verdict.health.severity))
        for one in queues
    )


def _with_earlier_figures(one: QueueOverview, earlier: Iterable[QueueOverview]) -> QueueOverview:
    """The queue with its earlier figures where Cassandra gave none. Each figure has its age."""
    before = next((queue for queue in earlier if queue.queue == one.queue), None)
    if not one.unanswered or before is None or one.size is not None:
        return one
    return replace(
        one,
        size=before.size,
        size_at=before.size_at,
        oldest=before.oldest,
        reports=one.reports or before.reports,
    )


def _trend(stores: Stores, queue: QueueName, since: datetime) -> Iterator[TrendPoint]:
    for report in reversed(Ledger(stores, stores.settings).list("queue_size", queue, _TREND_RUNS)):
        if has_result("queue_size", report) and datetime.fromisoformat(report["started"]) >= since:
            yield TrendPoint(datetime.fromisoformat(report["measuredAt"]), report["size"])
