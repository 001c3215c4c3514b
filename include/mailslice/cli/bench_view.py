"""How fast the view is counted, browsed and cleaned: with live mails among dead rows, before and after a cleanup."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mailslice.cli.bench_rows import bench_queue
from mailslice.cli.bench_spark import StepCpu, peak_memory, settle, start_spark
from mailslice.cli.door import who
from mailslice.model.clock import system_clock
from mailslice.model.mail import QueueName

if TYPE_CHECKING:
    from mailslice.cli.bench_rows import BenchQueue
    from mailslice.model.settings import Settings

Say = Callable[[str], None]
GRACE = "2s"


def measure_view(
    settings: Settings, name: QueueName, *, live: int, dead: int, slices: int, say: Say
) -> dict[str, Any]:
    """Fill, count, browse, clean, count and browse again. Rates in rows a second, times in seconds, memory in MiB."""
    with bench_queue(settings, name, synthetic=True, say=say) as queue:
        say(f"{dead} dead rows in {slices} slices and {live} live ones: inserting")
        begun = time.perf_counter()
        queue.fill(dead, slices, dead=True)
        queue.fill(live, 1, dead=False)
        filled = time.perf_counter() - begun
        result: dict[str, Any] = {
            "live": live,
            "dead": dead,
            "slices": slices,
            "fill_rate": _rate(live + dead, filled),
        }
        settle(queue.stores)
        say("size and browse before the cleanup")
        result["before"] = _looked(queue, live, live + dead)
        say("cleanup")
        result["cleanup"] = _cleaned(queue.stores.settings, name, dead)
        say("size and browse after the cleanup")
        result["after"] = _looked(queue, live, live)
        return result


def _looked(queue: BenchQueue, live: int, rows: int) -> dict[str, Any]:
    """Size, and the browse of everything; RuntimeError when they do not find the live mails, for a wrong answer has no speed."""
    from mailslice.queue.filters import MailFilter
    from mailslice.queue.mail_queue import MailQueue

    mails = MailQueue(queue.stores, queue.name, system_clock)
    size, size_seconds = _timed(mails.size)
    browsed, browse_seconds = _timed(lambda: sum(1 for _ in mails.browse(MailFilter(), None)))
    if (size, browsed) != (live, live):
        raise RuntimeError(
            f"queue {queue.name} holds {live} live mails; size says {size}, browse gives {browsed}"
        )
    return {
        "size_seconds": round(size_seconds, 3),
        "size_rows_per_second": _rate(rows, size_seconds),
        "browse_seconds": round(browse_seconds, 3),
        "browse_rows_per_second": _rate(rows, browse_seconds),
    }


def _cleaned(settings: Settings, name: QueueName, dead: int) -> dict[str, Any]:
    from mailslice.duty.request import RunRequest, new_run
    from mailslice.duty.road import run_all

    request = RunRequest(
        "queue_cleanup",
        name,
        new_run(system_clock),
        None,
        who(),
        {"grace": GRACE, "reason": "mailslice bench"},
    )
    with peak_memory(settings) as peak:
        _, start = _timed(lambda: start_spark(settings))
        cpu = StepCpu(settings)
        report, seconds = _timed(lambda: run_all(request, settings, on_step=cpu.step))
    if report["applied"] != dead:
        raise RuntimeError(
            f"the cleanup of {dead} dead rows applied {report['applied']}: {report.get('message')}"
        )
    steps = report["seconds"]
    return {
        "rows": dead,
        "seconds": round(seconds, 2),
        "spark_start_seconds": round(start, 2),
        "step_seconds": steps,
        "plan_rows_per_second": _rate(dead, steps.get("plan", 0)),
        "apply_rows_per_second": _rate(dead, steps.get("apply", 0)),
        "cpu": cpu.by_rows(dead),
        **peak.as_json(),
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begun


def _rate(count: int, seconds: float) -> int | None:
    return round(count / seconds) if seconds else None
