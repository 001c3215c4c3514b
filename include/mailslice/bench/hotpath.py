"""`bench hotpath`: measures the hot path in its own queue; medians and spread of several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from mailslice.bench.backlog import measure_waiting
from mailslice.bench.distance import at_distance
from mailslice.bench.event_lines import event_cost
from mailslice.bench.isolated import isolated
from mailslice.bench.measure import Work, measure_hotpath
from mailslice.bench.paced import measure_paced
from mailslice.bench.processes import measure_processes
from mailslice.bench.queues import bench_queue
from mailslice.bench.store_limits import measure_stores
from mailslice.bench.warm_up import own_mails, warm_stores
from mailslice.cli.queue_session import run
from mailslice.model.durations import format_duration

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

ProgressPrinter = Callable[[str], None]
_BYTES_ALONE = 96 * 1024 * 1024
_INPUTS = ("queue", "count", "size", "in_flight")
_SPREAD = (
    "enqueue_rate",
    "dequeue_rate",
    "enqueue_ms",
    "enqueue_in_flight_ms",
    "dequeue_ms",
    "cpu_seconds_per_1000",
    "enqueue_cpu_seconds_per_1000",
    "dequeue_cpu_seconds_per_1000",
    "stores_cpu_seconds_per_1000",
    "share_of_cpu_bound_rate",
    "peak_mib",
    "limits",
)
_OF_CURVE = (
    "enqueue_rate",
    "enqueue_ms",
    "enqueue_in_flight_ms",
    "dequeue_rate",
    "dequeue_ms",
    "window_limit",
)
CURVE = (1, 2, 4, 8, 16, 32, 64, 128)
_CURVE_LEAST, _CURVE_ROUNDS = 200, 25
"""Mails of a point of the curve: the least, and how many for each mail in flight."""
_BLOBS_A_MAIL = 2
_ASKED, WINDOWS, _TURNS = 64, (4, 8, 16, 32, 64, 128), 2
"""To compare the adaptive window with fixed ones: mails in flight, fixed windows, turns."""
_PACED_SECONDS = 5.0
_OPERATIONS, _LEAST_OPERATIONS = 2000, 200
"""Most and least operations of each store alone; between them, one for each mail."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What to measure.

    `load`: also measures latencies at this share of the peak rate. `processes`: also measures with
    each of these numbers of processes. `waiting`: also measures with this many mails waiting.
    `warm_up`: longest warm-up. `curve`: also measures 1 to 128 mails in flight, and the adaptive
    window against fixed ones. `rtt`: round trip time to S3; 0 adds none.
    """

    mails: int
    size: int
    in_flight: int
    repeats: int = 1
    load: float = 0.0
    processes: tuple[int, ...] | None = None
    waiting: int = 0
    warm_up: timedelta = timedelta(seconds=30)
    curve: bool = False
    rtt: timedelta = timedelta(0)

    def work(self, settings: Settings, queue: QueueName, nearby: Settings) -> Work:
        """The work of a measuring process, which first warms itself up with a few mails."""
        warm = own_mails(self.size, self.in_flight) if self.warm_up else 1
        return Work(settings, queue, self.mails, self.size, self.in_flight, warm, nearby)


def measure(
    settings: Settings, *, queue: QueueName, print_progress: ProgressPrinter, **options: Any
) -> dict[str, Any]:
    """Measures what `options`, the fields of Spec, ask for. Figures are medians of the repeats.

    Rates a second, latencies in ms, CPU seconds, peak MiB.

    `limits`: rates of the stores alone. `runs`: min, median and max. Each repeat runs in a new
    process, so that its peak memory does not include earlier work.
    """
    spec = Spec(**options)
    with (
        bench_queue(settings, queue, synthetic=False, print_progress=print_progress),
        at_distance(settings, spec.rtt) as far,
    ):
        work = spec.work(far, queue, settings)
        warm_up = None
        if spec.warm_up:
            print_progress(f"warm-up, for {format_duration(spec.warm_up)} at most")
            warm_up = isolated(warm_stores, work, spec.warm_up)
        runs = []
        for number in range(spec.repeats):
            print_progress(f"run {number + 1} of {spec.repeats}")
            runs.append(isolated(measure_hotpath, work) | run(measure_stores(_alone(work))))
        figures = [{key: run[key] for key in run if key not in _INPUTS} for run in runs]
        result = {key: runs[0][key] for key in _INPUTS} | combined(figures, middle)
        result["warm_up"] = warm_up
        result["events"] = isolated(event_cost, result["dequeue_cpu_seconds_per_1000"])
        if spec.rtt:
            result["rtt_ms"] = spec.rtt / timedelta(milliseconds=1)
        if spec.load:
            print_progress(f"the hot path at {spec.load:.0%} of its rate")
            result["paced"] = {"load": spec.load, **_paced(work, spec.load, result)}
        if spec.processes:
            print_progress("several processes")
            result["scaling"] = [measure_processes(work, number) for number in spec.processes]
        if spec.curve:
            result["curve"] = _curve(work, print_progress)
            result["window"] = _window(work, print_progress)
        if spec.waiting:
            print_progress(f"the hot path with {spec.waiting} mails waiting")
            result["waiting"] = isolated(measure_waiting, work, spec.waiting)
    return {
        **result,
        "repeats": spec.repeats,
        "runs": combined([{key: run[key] for key in _SPREAD} for run in runs], spread),
    }


def _alone(work: Work) -> Work:
    """The work for each store alone. The worker's memory budget limits what is in flight."""
    in_flight = max(1, min(work.in_flight, _BYTES_ALONE // work.size))
    count = min(_OPERATIONS, max(_LEAST_OPERATIONS, work.count))
    return replace(work, count=count, in_flight=in_flight)


def _paced(work: Work, load: float, peak: Mapping[str, Any]) -> dict[str, Any]:
    """Measures at this share of the peak rates: five seconds, or all mails if they take less."""
    enqueue_rate, dequeue_rate = load * peak["enqueue_rate"], load * peak["dequeue_rate"]
    count = int(_PACED_SECONDS * min(enqueue_rate, dequeue_rate))
    paced = replace(work, count=max(1, min(work.count, count)))
    return measure_paced(paced, enqueue_rate, dequeue_rate)


def _curve(work: Work, print_progress: ProgressPrinter) -> list[dict[str, Any]]:
    """A row for each number of mails in flight and each window; `fixed` is as large as needed."""
    rows = []
    for in_flight in CURVE:
        point = replace(_short(work, in_flight), in_flight=in_flight)
        for window, limit in (("fixed", _BLOBS_A_MAIL * in_flight), ("adaptive", None)):
            print_progress(f"{in_flight} in flight, {window} window")
            rows.append({"in_flight": in_flight, "window": window, **_point(point, limit)})
    return rows


def _short(work: Work, in_flight: int) -> Work:
    count = min(work.count, max(_CURVE_LEAST, in_flight * _CURVE_ROUNDS))
    return replace(work, count=count)


def _window(work: Work, print_progress: ProgressPrinter) -> dict[str, Any]:
    """Compares, in turns and with 64 mails in flight, the adaptive window with the best fixed one.

    The best has the most enqueues a second. `ratio`: adaptive window divided by the best one.
    """
    asked = replace(work, in_flight=_ASKED)
    runs: dict[int | None, list[dict[str, Any]]] = {window: [] for window in (*WINDOWS, None)}
    for turn in range(_TURNS):
        for window, points in runs.items():
            print_progress(
                f"turn {turn + 1} of {_TURNS}: window {window or 'that follows latency'}"
            )
            points.append(_point(_short(asked, WINDOWS[-1]), window))
    fixed = [{"window": window, **combined(runs[window], middle)} for window in WINDOWS]
    adaptive = combined(runs[None], middle)
    best = max(fixed, key=lambda row: row["enqueue_rate"])
    rates = "enqueue_rate", "dequeue_rate"
    latencies = "enqueue_ms", "enqueue_in_flight_ms", "dequeue_ms"
    ratio = {name: round(adaptive[name] / best[name], 2) for name in rates} | {
        f"{name}_p99": round(adaptive[name]["p99"] / best[name]["p99"], 2) for name in latencies
    }
    return {
        "asked": _ASKED,
        "fixed": fixed,
        "adaptive": adaptive,
        "best": best["window"],
        "ratio": ratio,
    }


def _point(work: Work, window: int | None) -> dict[str, Any]:
    figures = isolated(measure_hotpath, work, window)
    return {key: figures[key] for key in _OF_CURVE}


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Min, median and max."""
    return {"min": min(figures), "median": middle(figures), "max": max(figures)}


def middle(figures: Sequence[float]) -> float:
    return round(median(figures), 3)


def combined(
    runs: Sequence[Mapping[str, Any]], of: Callable[[Sequence[float]], Any]
) -> dict[str, Any]:
    """Combines each figure of all runs by `of`, in nested objects and lists, too.

    A figure is None if any run has None. Values that are not numbers are left out.
    """
    result: dict[str, Any] = {}
    for key, value in runs[0].items():
        values = [run[key] for run in runs]
        if isinstance(value, Mapping):
            result[key] = combined(values, of)
        elif isinstance(value, list):
            result[key] = [of(each) for each in zip(*values, strict=True)]
        elif any(each is None for each in values):
            result[key] = None
        elif isinstance(value, int | float):
            result[key] = of(values)
    return result
