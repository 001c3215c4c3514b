"""Measures how fast a view with live and dead rows is counted, browsed and cleaned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.bench.queues import BenchQueue, bench_queue
from mailslice.bench.spark_runs import (
    StepCpu,
    peak_memory,
    rate,
    run_duty,
    settle,
    start_spark,
    timed,
)
from mailslice.model.clock import system_clock

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

GRACE = "2s"


def measure_view(
    settings: Settings,
    *,
    queue: QueueName,
    live: int,
    dead: int,
    slices: int,
    print_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Fills the view, counts, browses and cleans it, then counts and browses it again.

    Rates in rows a second, dead rows included; times in seconds, memory in MiB.
    """
    with bench_queue(settings, queue, synthetic=True, print_progress=print_progress) as view:
        print_progress(f"{dead} dead rows in {slices} slices and {live} live ones: inserting")
        _, dead_seconds = timed(lambda: view.fill(dead, slices, dead=True))
        _, live_seconds = timed(lambda: view.fill(live, 1, dead=False))
        settle(view.stores)
        print_progress("size and browse before the cleanup")
        before = _read(view, live, live + dead)
        print_progress("cleanup")
        cleanup = _clean(view.stores.settings, queue, dead)
        print_progress("size and browse after the cleanup")
        return {
            "live": live,
            "dead": dead,
            "slices": slices,
            "fill_rate": rate(live + dead, dead_seconds + live_seconds),
            "before": before,
            "cleanup": cleanup,
            "after": _read(view, live, live),
        }


def measure_size(settings: Settings, **sizes: Any) -> dict[str, Any]:
    """`measure_view` without its cleanup."""
    view = measure_view(settings, **sizes)
    return {name: value for name, value in view.items() if name != "cleanup"}


def measure_cleanup(settings: Settings, *, rows: int, slices: int, **more: Any) -> dict[str, Any]:
    """Only the cleanup of `measure_view`."""
    view = measure_view(settings, live=1000, dead=rows, slices=slices, **more)
    return {"slices": slices, **view["cleanup"]}


def _read(queue: BenchQueue, live: int, rows: int) -> dict[str, Any]:
    """Counts and browses the queue. Raises RuntimeError if either misses live mails."""
    mails = MailQueue(queue.stores, queue.name, system_clock)
    cpu = StepCpu(queue.stores.settings)
    size, size_seconds = timed(mails.size)
    cpu.step("size")
    browsed, browse_seconds = timed(lambda: sum(1 for _ in mails.browse(MailFilter(), None)))
    cpu.step("browse")
    if (size, browsed) != (live, live):
        raise RuntimeError(
            f"queue {queue.name} holds {live} live mails; size says {size}, browse gives {browsed}"
        )
    return {
        "size_seconds": round(size_seconds, 3),
        "size_rows_per_second": rate(rows, size_seconds),
        "browse_seconds": round(browse_seconds, 3),
        "browse_rows_per_second": rate(rows, browse_seconds),
        "cpu": cpu.by_rows(rows, "size", "browse"),
    }


def _clean(settings: Settings, name: QueueName, dead: int) -> dict[str, Any]:
    with peak_memory(settings) as peak:
        _, start = timed(lambda: start_spark(settings))
        run = run_duty(settings, "queue_cleanup", name, grace=GRACE)
    report = run.report
    if report["applied"] != dead:
        raise RuntimeError(
            f"the cleanup of {dead} dead rows applied {report['applied']}: {report.get('message')}"
        )
    steps = report["seconds"]
    return {
        "rows": dead,
        "seconds": round(run.seconds, 2),
        "spark_start_seconds": round(start, 2),
        "step_seconds": steps,
        "plan_rows_per_second": rate(dead, steps.get("plan", 0)),
        "apply_rows_per_second": rate(dead, steps.get("apply", 0)),
        "cpu": run.cpu.by_rows(dead, "plan", "apply"),
        **peak.as_json(),
    }
