"""What the pages show, shared by all viewers: the stores are asked once in a while, not by each.

The stores are opened at the first question, and anew after an error of theirs.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mailslice.maintenance.overview import QueueOverview, overview
from mailslice.maintenance.postal_health import PostalOverview, postal_overview
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import MailsliceError, TryAgain
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, load_settings
from mailslice.stores import has_cassandra

if TYPE_CHECKING:
    from mailslice.stores import Stores

log = logging.getLogger(__name__)

FRESH = timedelta(seconds=5)
"""An overview so old is shown as it is; an older one is shown, too, while a new one is made."""
STALE = timedelta(minutes=1)
"""An overview older than this is not shown while the stores answer."""
_TREND_FRESH = timedelta(minutes=5)
_TREND_RUNS = 96
"""A day of measurements, one each 15 minutes."""


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


class Facts:
    """Safe to share between threads. Raises StoreUnavailable where nothing is known at all."""

    def __init__(
        self,
        load: Callable[[], Settings] = load_settings,
        clock: Clock = system_clock,
        look: Callable[[Stores, Clock], list[QueueOverview]] = overview,
        open_stores: Callable[[Settings], Stores] | None = None,
    ) -> None:
        self._load = load
        self._clock = clock
        self._look = look
        self._open = open_stores or _open
        self._opening = threading.Lock()
        self._opened: Stores | None = None
        self._refreshing = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._trends: dict[str, tuple[datetime, tuple[TrendPoint, ...]]] = {}

    @property
    def now(self) -> datetime:
        """The time that ages are reckoned from."""
        return self._clock()

    def snapshot(self) -> Snapshot:
        """Every queue. At most a minute old, unless a store does not answer: `problem` says so."""
        known = self._snapshot
        age = timedelta.max if known is None else self._clock() - known.at
        if known is not None and age < FRESH:
            return known
        if known is not None and age < STALE:
            threading.Thread(target=self._refresh_unless_busy, daemon=True).start()
            return known
        with self._refreshing:
            if self._snapshot is not known:  # somebody else has waited for the same
                return self.snapshot()
            return self._refresh()

    def queue(self, name: str) -> QueueOverview | None:
        """One queue as the snapshot has it; None: there is no such queue."""
        return next((one for one in self.snapshot().queues if one.queue == name), None)

    def trend(self, queue: QueueName) -> tuple[TrendPoint, ...]:
        """The sizes that were measured since yesterday, the oldest first."""
        now = self._clock()
        at, points = self._trends.get(queue, (datetime.min.replace(tzinfo=now.tzinfo), ()))
        if now - at >= _TREND_FRESH:
            with self.stores() as stores:
                points = tuple(_trend(stores, queue, now - timedelta(days=1)))
            self._trends[queue] = now, points
        return points

    @contextmanager
    def stores(self) -> Iterator[Stores]:
        """The stores; closed, and opened anew for the next question, after an error of theirs."""
        with self._opening:
            if self._opened is None:
                self._opened = self._open(self._load())
            stores = self._opened
        try:
            yield stores
        except TryAgain:
            self.close()
            raise

    @property
    def settings(self) -> Settings:
        """The deployment's settings."""
        return self._load()

    def close(self) -> None:
        """Close the stores; the next question opens them again."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _refresh_unless_busy(self) -> None:
        if self._refreshing.acquire(blocking=False):
            try:
                self._refresh()
            except MailsliceError as error:
                log.warning("the overview of queues could not be made anew: %s", error)
            finally:
                self._refreshing.release()

    def _refresh(self) -> Snapshot:
        known = self._snapshot
        try:
            with self.stores() as stores:
                has_james = has_cassandra(self.settings)
                queues = tuple(self._look(stores, self._clock)) if has_james else ()
                has_postal = self.settings.postal.url is not None
                postal = postal_overview(stores, self._clock) if has_postal else None
                found = Snapshot(self._clock(), queues, postal=postal)
        except TryAgain as error:
            if known is None:
                raise
            return replace(known, problem=str(error))
        self._snapshot = found
        return found


def _open(settings: Settings) -> Stores:
    from mailslice.stores import open_stores

    return open_stores(settings)


def _trend(stores: Stores, queue: QueueName, since: datetime) -> Iterator[TrendPoint]:
    runs = stores.existing_runs()
    rows = runs.of("queue_size", queue, _TREND_RUNS) if runs is not None else ()
    for row in reversed(rows):
        report: dict[str, Any] = json.loads(row.report)
        if row.started >= since and report.get("size") is not None:
            yield TrendPoint(datetime.fromisoformat(report["measuredAt"]), report["size"])
