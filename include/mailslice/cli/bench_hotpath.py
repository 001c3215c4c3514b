"""`bench hotpath`: the worker's measurement in a queue of its own, repeated: medians, and their spread under `runs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from mailslice.cli.bench_rows import bench_queue
from mailslice.cli.loop import run
from mailslice.model.durations import format_duration

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

WARM_UP = timedelta(seconds=30)
_BYTES_ALONE = 96 * 1024 * 1024
_GIVEN = ("queue", "count", "size", "in_flight")
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
_CURVE_LEAST, _CURVE_ROUNDS = 300, 40
_BLOBS_A_MAIL = 2
_PACED_SECONDS = 5.0
_OPERATIONS, _LEAST_OPERATIONS = 2000, 200
"""Of each store alone: as many as there are mails, within these."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure.

    `load`: the share of the peak rate at which latencies are measured once more, 0 = not. `processes`: how many at once, in turn. `waiting`: once more with
    so many mails waiting, 0 = not. `warm_up`: at most so long before all that, 0 = nothing is warm.
    """

    mails: int
    each: int
    in_flight: int
    repeats: int = 1
    load: float = 0.0
    processes: tuple[int, ...] = ()
    waiting: int = 0
    warm_up: timedelta = WARM_UP
    curve: bool = False
    """Once more with 1, 2, 4 ... 128 in flight, by windows held open and by those that follow latency."""


def measure(
    settings: Settings, queue: QueueName, wanted: Wanted, say: Callable[[str], None]
) -> dict[str, Any]:
    """Rates a second, latencies in ms, CPU seconds, peak MiB: the median of the repeats; `limits` are the stores alone; `runs` has min, median and max.

    Each repeat has a process of its own, so that memory that was used before is not counted. `warm_up` says what came before the first one.
    """
    with bench_queue(settings, queue, synthetic=False, say=say):
        warmed = _warmed(settings, queue, wanted, say)
        runs = [
            _one(settings, queue, wanted, _counting(say, f"run {number + 1} of {wanted.repeats}"))
            for number in range(wanted.repeats)
        ]
        found = (
            {key: runs[0][key] for key in _GIVEN}
            | combined([_measured(run) for run in runs], _middle)
            | {"warm_up": warmed}
        )
        if wanted.load:
            say(f"the hot path at {wanted.load:.0%} of its rate")
            found["paced"] = _paced(settings, queue, wanted, found)
        if wanted.processes:
            found["scaling"] = [
                _processes(settings, queue, wanted, number, say) for number in wanted.processes
            ]
        if wanted.curve:
            found["curve"] = _curve(settings, queue, wanted, say)
        if wanted.waiting:
            say(f"the hot path with {wanted.waiting} mails waiting")
            found["waiting"] = _waiting(settings, queue, wanted)
    return {
        **found,
        "repeats": wanted.repeats,
        "runs": combined([{key: run[key] for key in _SPREAD} for run in runs], spread),
    }


def _warmed(
    settings: Settings, queue: QueueName, wanted: Wanted, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Stores that have just started are slow for most of a minute: until they are not, or the time is up. None: not asked for."""
    from mailslice.worker.apart import apart

    if not wanted.warm_up:
        return None
    say(f"warm-up, for {format_duration(wanted.warm_up)} at most")
    given = {
        "mails": wanted.mails,
        "size": wanted.each,
        "in_flight": wanted.in_flight,
        "at_most": wanted.warm_up,
    }
    found: dict[str, Any] = apart(_warmed_once, settings, queue, given)
    return found


def _warmed_once(settings: Settings, queue: QueueName, given: Mapping[str, Any]) -> dict[str, Any]:
    from mailslice.worker.bench_warming import warm_stores

    return run(warm_stores(settings, queue, **given))


def _own_warm(wanted: Wanted) -> int:
    """Mails by which each process that measures begins, unmeasured."""
    from mailslice.worker.bench_warming import own_mails

    return own_mails(wanted.each, wanted.in_flight) if wanted.warm_up else 1


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Least, median, most."""
    return {"min": min(figures), "median": _middle(figures), "max": max(figures)}


def _middle(figures: Sequence[float]) -> float:
    return round(median(figures), 3)


def _measured(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in _GIVEN}


def combined(
    runs: Sequence[Mapping[str, Any]], of: Callable[[Sequence[float]], Any]
) -> dict[str, Any]:
    """Each figure of the runs made one by `of`, in objects and lists, too; None where any run has none. What is no figure is left out."""
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


def _one(
    settings: Settings, queue: QueueName, wanted: Wanted, say: Callable[[str], None]
) -> dict[str, Any]:
    from mailslice.worker.apart import apart
    from mailslice.worker.bench_stores import measure_stores

    say("the hot path")
    found: dict[str, Any] = apart(_hotpath, settings, queue, wanted)
    say("each store alone")
    together = max(
        1, min(wanted.in_flight, _BYTES_ALONE // wanted.each)
    )  # as the worker's own memory budget bounds large mails
    operations = min(_OPERATIONS, max(_LEAST_OPERATIONS, wanted.mails))
    return {
        **found,
        **run(
            measure_stores(
                settings, queue, size=wanted.each, in_flight=together, operations=operations
            )
        ),
    }


def _hotpath(
    settings: Settings, queue: QueueName, wanted: Wanted, window: int | None = None
) -> dict[str, object]:
    from mailslice.worker.bench import measure_hotpath

    return run(
        measure_hotpath(
            settings,
            queue,
            count=wanted.mails,
            size=wanted.each,
            in_flight=wanted.in_flight,
            warm=_own_warm(wanted),
            window=window,
        )
    )


def _curve(
    settings: Settings, queue: QueueName, wanted: Wanted, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Rates and latencies by mails in flight; `fixed`: the stores get all that is asked for."""
    from mailslice.worker.apart import apart

    rows = []
    for in_flight in CURVE:
        mails = min(wanted.mails, max(_CURVE_LEAST, in_flight * _CURVE_ROUNDS))
        point = replace(wanted, mails=mails, in_flight=in_flight)
        for window in ("fixed", "adaptive"):
            say(f"{in_flight} in flight, {window} window")
            held = _BLOBS_A_MAIL * in_flight if window == "fixed" else None
            found: dict[str, Any] = apart(_hotpath, settings, queue, point, held)
            figures = {key: found[key] for key in _OF_CURVE}
            rows.append({"in_flight": in_flight, "window": window, **figures})
    return rows


def _paced(
    settings: Settings, queue: QueueName, wanted: Wanted, peak: Mapping[str, Any]
) -> dict[str, Any]:
    """Five seconds of it, or all mails."""
    from mailslice.worker.bench_paced import Pace, measure_paced

    enqueue_rate, dequeue_rate = (
        wanted.load * peak["enqueue_rate"],
        wanted.load * peak["dequeue_rate"],
    )
    count = max(1, min(wanted.mails, int(_PACED_SECONDS * min(enqueue_rate, dequeue_rate))))
    pace = Pace(
        settings,
        queue,
        count,
        wanted.each,
        wanted.in_flight,
        enqueue_rate,
        dequeue_rate,
        warm=_own_warm(wanted),
    )
    return {"load": wanted.load, **measure_paced(pace)}


def _processes(
    settings: Settings, queue: QueueName, wanted: Wanted, number: int, say: Callable[[str], None]
) -> dict[str, Any]:
    from mailslice.worker.bench_processes import measure_processes

    say(f"{number} processes")
    warm = _own_warm(wanted)
    return measure_processes(
        settings,
        queue,
        processes=number,
        count=wanted.mails,
        size=wanted.each,
        in_flight=wanted.in_flight,
        warm=warm,
    )


def _waiting(settings: Settings, queue: QueueName, wanted: Wanted) -> dict[str, Any]:
    from mailslice.worker.apart import apart

    given = {
        "waiting": wanted.waiting,
        "count": wanted.mails,
        "size": wanted.each,
        "in_flight": wanted.in_flight,
        "warm": _own_warm(wanted),
    }
    found: dict[str, Any] = apart(_waiting_once, settings, queue, given)
    return found


def _waiting_once(settings: Settings, queue: QueueName, given: Mapping[str, Any]) -> dict[str, Any]:
    from mailslice.worker.bench_waiting import measure_waiting

    return run(measure_waiting(settings, queue, **given))


def _counting(say: Callable[[str], None], prefix: str) -> Callable[[str], None]:
    return lambda text: say(f"{prefix}: {text}")
