"""The figures of workers, by their records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mailslice.cli.worker_top import of_workers
from mailslice.stores.cassandra.own import WorkerRecord

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def record(worker: str, *, ended: bool) -> WorkerRecord:
    return WorkerRecord(
        worker=worker,
        host="h",
        pid=1,
        started=NOW,
        every=timedelta(seconds=5),
        beat=3,
        settled=10,
        completed=7,
        ended=ended,
        heartbeat=NOW,
        read_at=NOW,
    )


def test_a_worker_that_has_ended_is_not_counted() -> None:
    figures = of_workers([record("a", ended=False), record("b", ended=True)])
    assert (figures["workers"], figures["completed"], figures["notCompleted"]) == (1, 7, 3)
