"""`bench clients`: compares the S3 client for small objects with obstore on the same stores."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mailslice.bench.hotpath import combined, middle
from mailslice.bench.isolated import isolated
from mailslice.bench.measure import Work, measure_hotpath
from mailslice.bench.queues import bench_queue
from mailslice.bench.store_limits import measure_blobs
from mailslice.bench.warm_up import own_mails, warm_stores

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

_CLIENTS = ("small", "obstore")
_RATES = "enqueue_rate", "dequeue_rate"
_CPU = "enqueue_cpu_seconds_per_1000", "dequeue_cpu_seconds_per_1000"


def measure_clients(
    settings: Settings,
    *,
    queue: QueueName,
    mails: int,
    size: int,
    in_flight: int,
    turns: int,
    warm_up: timedelta,
    print_progress: Callable[[str], None],
) -> dict[str, Any]:
    """For each client: the medians of all turns, for whole mails and for PUTs and GETs alone.

    `ratio`: each figure of the client for small objects, divided by that of obstore.
    """
    work = Work(settings, queue, mails, size, in_flight, own_mails(size, in_flight))
    runs: dict[str, list[dict[str, Any]]] = {client: [] for client in _CLIENTS}
    with bench_queue(settings, queue, synthetic=False, print_progress=print_progress):
        if warm_up:
            isolated(warm_stores, work, warm_up)
        for turn in range(turns):
            for client in _CLIENTS if turn % 2 == 0 else _CLIENTS[::-1]:
                print_progress(f"turn {turn + 1} of {turns}: {client}")
                runs[client].append(isolated(_measure, work, by_obstore=client == "obstore"))
    figures = {client: combined(runs[client], middle) for client in _CLIENTS}
    small, obstore = figures.values()
    return {
        "count": mails,
        "size": size,
        "in_flight": in_flight,
        "turns": turns,
        **figures,
        "ratio": {name: round(small[name] / obstore[name], 2) for name in small},
    }


async def _measure(work: Work, *, by_obstore: bool) -> dict[str, float]:
    mails = await measure_hotpath(work, by_obstore=by_obstore)
    blobs = await measure_blobs(work, by_obstore=by_obstore)
    figures = {name: mails[name] for name in (*_RATES, *_CPU)}
    for name in ("s3_puts", "s3_gets"):
        figures[f"{name}_rate"] = blobs[name].rate
        figures[f"{name}_cpu_seconds_per_1000"] = blobs[name].per_thousand(blobs[name].cpu_seconds)
    return figures
