"""Measures how fast a sweep lists deleted marks without a row, and the next run drops them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mailslice.bench.clearing import marked_ids
from mailslice.bench.queues import bench_queue
from mailslice.bench.spark_runs import (
    DutyRun,
    own_stores,
    peak_memory,
    rate,
    run_duty,
    settle,
    start_spark,
    timed,
)
from mailslice.model.mail import EnqueueId

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

KEYSPACE = "mailslice_bench_marks"
_DEAD_ROWS = 100
"""A queue without rows has no browseStart, and a cleanup has nothing to do."""
_WINDOW = timedelta(seconds=1)
_GRACE = timedelta(seconds=1)
_CLOSED_S = 4.0
"""Longer than window and grace, so that the slices of the time of the listing are closed."""


def measure_marks(
    settings: Settings, *, queue: QueueName, rows: int, print_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Inserts marks into an own keyspace, then runs a cleanup with `sweep` and one without.

    Rates in marks a second, times in seconds, memory in MiB, CPU in microseconds a mark. Spark is
    started before. The first run lists the marks, the second proves and drops them (ADR 41).
    """
    queue_settings = {"slice_window": _WINDOW, "shared": False}
    groups = {"queue": queue_settings, "duty": {"small_rows": 0, "grace": _GRACE}}
    with (
        own_stores(settings, KEYSPACE, buckets=True, **groups) as stores,
        bench_queue(stores.settings, queue, synthetic=True, print_progress=print_progress) as view,
    ):
        print_progress(f"{rows} marks: inserting")
        _, filled = timed(lambda: view.mark(EnqueueId(uuid4()) for _ in range(rows)))
        view.fill(_DEAD_ROWS, 1, dead=True)
        settle(stores)
        with peak_memory(settings) as peak:
            start_spark(stores.settings)
            print_progress("the run that lists them")
            listing = run_duty(stores.settings, "queue_cleanup", queue, sweep=True)
            time.sleep(_CLOSED_S)
            print_progress("the run that drops them")
            dropping = run_duty(stores.settings, "queue_cleanup", queue)
        listed, dropped = listing.report["marks"], dropping.report["marks"]
        if (listed["listed"], dropped["dropped"]) != (rows, rows):
            raise RuntimeError(f"{rows} marks were planted; {listed} listed, {dropped} dropped")
        remaining = len(marked_ids(stores.tables.deleted, queue))
        if remaining:
            raise RuntimeError(f"{remaining} of {rows} marks remain")
    return {
        "rows": rows,
        "fill_rate": rate(rows, filled),
        **_figures("listed", listing, rows),
        **_figures("dropped", dropping, rows),
        **peak.as_json(),
    }


def _figures(name: str, run: DutyRun, rows: int) -> dict[str, Any]:
    steps = run.report["seconds"]
    return {
        f"{name}_marks_per_second": rate(rows, steps["apply"]),
        f"{name}_run_seconds": round(run.seconds, 2),
        f"{name}_step_seconds": steps,
        f"{name}_cpu": run.cpu.by_rows(rows, "apply")["apply"],
    }
