"""`bench hotpath`: the worker's measurement in a queue of its own, and the median of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from mailslice.cli.bench_rows import bench_queue
from mailslice.cli.loop import run

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

_LIMITS = {"s3_puts": "s3_put_rate", "view_inserts": "view_insert_rate", "confirmed_publishes": "confirmed_publish_rate"}

_BYTES_ALONE = 96 * 1024 * 1024


def measure(settings: Settings, queue: QueueName, *, mails: int, each: int, in_flight: int, repeat: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Rates a second, latencies in ms, CPU seconds of this process, peak MiB; `limits` are the stores alone. The median of `repeat` runs."""
    from mailslice.worker.bench import measure_hotpath, measure_stores

    runs: list[dict[str, Any]] = []
    with bench_queue(settings, queue, synthetic=False):
        for number in range(repeat):
            say(f"run {number + 1} of {repeat}: the hot path")
            found = dict(run(measure_hotpath(settings, queue, count=mails, size=each, in_flight=in_flight)))
            say(f"run {number + 1} of {repeat}: each store alone")
            together = max(1, min(in_flight, _BYTES_ALONE // each))  # as the worker's own memory budget bounds large mails
            alone = dict(run(measure_stores(settings, queue, size=each, in_flight=together)))
            limits = {name: alone.pop(key) for name, key in _LIMITS.items()}
            runs.append(found | {"limits": limits} | alone)
    return {**runs[0], **_median(runs), "queue": queue, "runs": repeat}


def _median(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each number, in objects within objects, too."""
    result: dict[str, Any] = {}
    for key, value in runs[0].items():
        if isinstance(value, Mapping):
            result[key] = _median([run[key] for run in runs])
        elif isinstance(value, int | float):
            result[key] = median(run[key] for run in runs)
    return result
