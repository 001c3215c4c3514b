"""What the benchmarks of Spark's duties share: its start, what its processes take of memory and CPU, and stores that have come to rest."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mailslice.worker.store_cpu import StoreCpu

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores

_MIB = 1024 * 1024
_EVERY = 0.25
_TASKS = 64
_REST, _PATIENCE = 2.0, 180.0
"""Seconds without a compaction that count as rest, and the most that is waited for it."""


@dataclass(slots=True)
class Peak:
    """The most bytes of all processes together, of the JVM, and of this process and the Python workers; each at its own moment."""

    heap: str
    total: int = 0
    jvm: int = 0
    python: int = 0

    def as_json(self) -> dict[str, Any]:
        """In MiB; `jvm_heap` is what the JVM may take for its objects."""
        return {
            "peak_mib": round(self.total / _MIB),
            "peak_jvm_mib": round(self.jvm / _MIB),
            "jvm_heap": self.heap,
            "peak_python_mib": round(self.python / _MIB),
        }


@contextmanager
def peak_memory(settings: Settings) -> Iterator[Peak]:
    """Most memory that this process and its children (Spark's JVM and its Python workers) held; sampled."""
    import psutil

    peak, stop, own = Peak(settings.duty.spark_driver_memory), threading.Event(), psutil.Process()

    def sample() -> None:
        while not stop.wait(_EVERY):
            with suppress(psutil.Error):
                held = [
                    (_is_jvm(process), _resident(process))
                    for process in (own, *own.children(recursive=True))
                ]
                jvm, python = (
                    sum(size for is_jvm, size in held if is_jvm is which) for which in (True, False)
                )
                peak.total, peak.jvm, peak.python = (
                    max(peak.total, jvm + python),
                    max(peak.jvm, jvm),
                    max(peak.python, python),
                )

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _is_jvm(process: Any) -> bool:
    return "java" in str(process.name())


def _resident(process: Any) -> int:
    """Proportional set size where it can be read: forked workers share most of their pages."""
    import psutil

    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return 0


class StepCpu:
    """CPU seconds of each step of a run: Cassandra's (None where it runs elsewhere), and those of this process and its children."""

    def __init__(self, settings: Settings) -> None:
        self._stores = StoreCpu(settings)
        self._last = self._read()
        self._steps: dict[str, tuple[float | None, float]] = {}

    def step(self, name: str, _: object = None) -> None:
        """A step has ended."""
        cassandra, ours = now = self._read()
        before, ours_before = self._last
        self._steps[name] = (
            None if cassandra is None or before is None else cassandra - before,
            ours - ours_before,
        )
        self._last = now

    def by_rows(self, rows: int) -> dict[str, Any]:
        """Of plan and apply: microseconds a row, and the rows a second at which they, or Cassandra alone, would keep all cores busy."""
        cores = os.cpu_count() or 1

        def rate(seconds: float | None) -> int | None:
            return round(rows * cores / seconds) if seconds else None

        def each(seconds: float | None) -> float | None:
            return None if seconds is None or not rows else round(1e6 * seconds / rows, 1)

        return {
            step: {
                "cassandra": each(cassandra),
                "ours": each(ours),
                "rows_per_second": None if cassandra is None else rate(cassandra + ours),
                "rows_per_second_of_cassandra": rate(cassandra),
            }
            for step, (cassandra, ours) in self._steps.items()
            if step in {"plan", "apply"}
        }

    def _read(self) -> tuple[float | None, float]:
        import psutil

        ours = 0.0
        for process in (own := psutil.Process(), *own.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                # Those of children that have ended; of this process' they are other programs'.
                ours += (
                    times.user
                    + times.system
                    + (0 if process == own else times.children_user + times.children_system)
                )
        return self._stores.read()["cassandra"], ours


def start_spark(settings: Settings) -> None:
    """The session, and a job of many small tasks: what the JVM loads and compiles once, it has then."""
    from mailslice.spark.frames import run_on_keys
    from mailslice.spark.session import spark_session

    run_on_keys(spark_session(settings, "mailslice bench"), list(range(_TASKS)), _count)


def _count(batches: Iterator[Sequence[int]]) -> Iterator[int]:
    yield sum(len(batch) for batch in batches)


def settle(stores: Stores) -> None:
    """Wait until Cassandra compacts nothing of what was inserted; a few minutes at most."""
    from mailslice.stores.cassandra.nodes import Nodes

    nodes, until, rested = Nodes(stores.cassandra), time.monotonic() + _PATIENCE, time.monotonic()
    while time.monotonic() < until and time.monotonic() - rested < _REST:
        if any(nodes.compacting(node.address).pending for node in nodes.all() if node.asked):
            rested = time.monotonic()
        time.sleep(_EVERY)
