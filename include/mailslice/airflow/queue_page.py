"""Data of the page "Mail queues": queues, measurements, cleanups, reports, pictures, Data Docs.

Stores are opened at the first request and kept until an error of theirs. Domains come from mails:
they are escaped here, and put into the page as text, never as HTML.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mailslice.codec.shown import shown
from mailslice.maintenance.artifacts import RunFolder, artifacts, iso
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import MailsliceError, TryAgain
from mailslice.model.names import RabbitNames, queue_name
from mailslice.model.settings import Settings, load_settings

if TYPE_CHECKING:
    from mailslice.stores import Stores

DOCS = "data_docs"
HISTORY = 8
_REPORTS = 200
# fmt: off
_CLEANUP = (
    "run", "dagRun", "status", "message", "who", "reason", "started", "finished", "planned",
    "applied", "skipped", "failed", "skippedBy", "before", "after", "seconds",
)
_SIZE = (
    "run", "dagRun", "status", "measuredAt", "size", "live", "dead", "unproven", "oldest",
    "browseStart", "contentStart", "shape", "deadLetters", "lastSeenEmpty", "advice", "plot",
)
# fmt: on
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".gif": "image/gif",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".otf": "font/otf",
    ".ttf": "font/ttf",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}


class QueuePage:
    """Answers of the page. Safe to share between threads. Raises StoreUnavailable and BadInput."""

    def __init__(
        self,
        settings: Settings | None = None,
        clock: Clock = system_clock,
        load: Callable[[], Settings] = load_settings,
    ) -> None:
        self._fixed_settings = settings
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: Stores | None = None

    def queues(self) -> dict[str, Any]:
        """`{"at", "queues": [...]}`: every queue with its newest measurement and cleanups."""
        with self._stores() as stores:
            names = stores.rabbitmq.names()
            return {
                "at": iso(self._clock()),
                "queues": [self._queue(stores, name) for name in names],
            }

    def size(self, queue: str) -> dict[str, Any]:
        """`{"queue", "size"}`: exact, now. Costs a browse of ids: cheap after a cleanup."""
        from mailslice.admin.mail_queue import MailQueue

        with self._stores() as stores:
            return {
                "queue": queue,
                "size": MailQueue(stores, queue, self._clock).size(),
                "at": iso(self._clock()),
            }

    def reports(self, duty: str, dag_run: str) -> list[dict[str, Any]]:
        """The reports of one Airflow run, one a queue."""
        from mailslice.maintenance.ledger import Ledger

        with self._stores() as stores:
            rows = Ledger(stores, stores.settings).list(duty, None, _REPORTS)
        return [_report(row) for row in rows if row.get("dagRun") == dag_run]

    def picture(self, queue: str, run: str) -> bytes | None:
        """The slices of a measurement, SVG; None when it was pruned or never drawn."""
        location = artifacts(self._settings())
        request = RunRequest("queue_size", queue_name(queue), run)  # refuses a run that is a path
        return location.read(
            RunFolder(location, "queue_size", queue, request.run).file("slices.svg")
        )

    def docs(self, path: str) -> tuple[bytes, str] | None:
        """A file of Data Docs and its media type; None if there is none of that path."""
        if not safe_path(path):
            return None
        location = artifacts(self._settings())
        name = f"{DOCS}/{path}"
        if location.bucket is None and not Path(location.path(name)).resolve().is_relative_to(
            Path(location.path(DOCS)).resolve()
        ):
            return None
        kind = _KINDS.get(PurePosixPath(path).suffix.lower())
        data = location.read(name) if kind else None
        return (data, kind) if data is not None and kind is not None else None

    def close(self) -> None:
        """Close the stores; the next question opens them again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _queue(self, stores: Stores, name: str) -> dict[str, Any]:
        from mailslice.maintenance.ledger import Ledger

        queue = queue_name(name)
        ledger = Ledger(stores, stores.settings)
        measured = ledger.last("queue_size", queue)
        cleanups = ledger.list("queue_cleanup", queue, HISTORY)
        depth, letters = _depths(stores, RabbitNames(queue))
        tables = stores.tables
        browse, content = tables.browse_starts.get(queue), tables.content_starts.get(queue)
        return {
            "queue": queue,
            "ready": depth.ready if depth else None,
            "unacknowledged": depth.unacknowledged if depth else None,
            "deadLetters": letters.total if letters else None,
            "browseStart": iso(browse.value) if browse else None,
            "contentStart": iso(content.value) if content else None,
            "measured": _size(measured) if measured and "size" in measured else None,
            "cleanups": [_report(cleanup) for cleanup in cleanups],
        }

    def _settings(self) -> Settings:
        return self._fixed_settings or self._load()

    @contextmanager
    def _stores(self) -> Iterator[Stores]:
        from mailslice.stores import open_stores

        with self._lock:
            if self._opened is None:
                self._opened = open_stores(self._settings())
            stores = self._opened
        try:
            yield stores
        except TryAgain:
            self.close()
            raise


def safe_path(path: str) -> bool:
    """Whether a path stays below its folder: no `.`, `..`, backslash or control character."""
    parts = path.split("/")
    return (
        bool(path)
        and all(part not in {"", ".", ".."} for part in parts)
        and not re.search(r"[\x00-\x1f\x7f\\]", path)
    )


def docs_path(link: str | None) -> str | None:
    """The path below `docs/` of a link to a gate's page, which may be file:// or s3a://."""
    _, separator, path = (link or "").rpartition(f"/{DOCS}/")
    path = unquote(path) if (link or "").startswith("file:") else path
    return path if separator and safe_path(path) else None


def _report(report: dict[str, Any]) -> dict[str, Any]:
    fields = {name: report.get(name) for name in ("duty", "queue", *_CLEANUP, "live", "dead")}
    more = {"docs": docs_path(report.get("dataDocs")), "lasted": _lasted(report)}
    return {**fields, **more}


def _size(report: dict[str, Any]) -> dict[str, Any]:
    fields = {name: report.get(name) for name in _SIZE}
    shape = report.get("shape") or {}
    domains = [{**row, "domain": shown(str(row["domain"]))} for row in shape.get("domains", [])]
    docs = docs_path(report.get("dataDocs"))
    return {**fields, "shape": {**shape, "domains": domains}, "docs": docs}


def _lasted(report: dict[str, Any]) -> float | None:
    if not report.get("started") or not report.get("finished"):
        return None
    return (
        datetime.fromisoformat(report["finished"]) - datetime.fromisoformat(report["started"])
    ).total_seconds()


def _depths(stores: Stores, names: RabbitNames) -> tuple[Any, Any]:
    """Depths of work queue and dead letter queue; None when RabbitMQ does not answer."""
    try:
        return stores.management.depth(names.work_queue), stores.management.depth(
            names.dead_letter_queue
        )
    except MailsliceError:
        return None, None
