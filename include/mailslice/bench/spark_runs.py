"""Shared by benchmarks of duties: own stores, a run, its memory and CPU, a wait for compactions."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from mailslice.bench.store_cpu import StoreCpu
from mailslice.cli.queue_session import who
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest, new_run
from mailslice.maintenance.runner import run_all
from mailslice.model.clock import system_clock
from mailslice.stores import open_stores
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.nodes import Nodes

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores

_MIB = 1024 * 1024
_SAMPLE_SECONDS = 1.0
"""Sampling the memory of all processes costs 30 ms of CPU."""
_TASKS = 64
CpuClock = Callable[[], tuple[float | None, float]]
"""CPU seconds so far of (a store, or None where it runs elsewhere; this process and children)."""
_REST, _REST_TIMEOUT, _PAUSE = 2.0, 180.0, 0.25
"""Seconds: without a compaction until Cassandra is at rest, longest wait, pause between polls."""


@contextmanager
def own_stores(
    settings: Settings, keyspace: str, *, buckets: bool = False, **changes: Any
) -> Iterator[Stores]:
    """Creates two keyspaces, an artifacts folder and, on request, two buckets; removes all later.

    `changes`: name of a settings group -> its changed fields.
    """
    bucket = keyspace.replace("_", "-")
    with tempfile.TemporaryDirectory(prefix="mailslice-bench-") as folder:
        fields = {
            "cassandra": {"keyspace": keyspace},
            "own": {"keyspace": f"{keyspace}_own", "bucket": f"{bucket}-own"},
            "s3": {"bucket": bucket, **changes.pop("s3", {})},
            "duty": {"artifacts": folder, **changes.pop("duty", {})},
            **changes,
        }
        update = {name: getattr(settings, name).model_copy(update=fields[name]) for name in fields}
        with open_stores(settings.model_copy(update=update)) as stores:
            _drop(stores, keyspace, buckets=buckets)
            stores.cassandra.execute(
                f"CREATE KEYSPACE {keyspace} "
                "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            try:
                if buckets:
                    stores.blobs.ensure_bucket()
                    stores.own_blobs.ensure_bucket()
                yield stores
            finally:
                _drop(stores, keyspace, buckets=buckets)


def _drop(stores: Stores, keyspace: str, *, buckets: bool) -> None:
    for name in (keyspace, f"{keyspace}_own"):
        stores.cassandra.execute(f"DROP KEYSPACE IF EXISTS {name}")
    for bucket in (stores.blobs, stores.own_blobs) if buckets else ():
        if isinstance(bucket, S3BlobStore) and bucket.bucket_exists():
            bucket.delete_many([blob.key for blob in bucket.list()])
            bucket.client.delete_bucket(Bucket=bucket.bucket)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the seconds it took."""
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def rate(count: int, seconds: float | None) -> int | None:
    """`count` a second; None without a time."""
    return round(count / seconds) if seconds else None


@dataclass(slots=True)
class Peak:
    """Peak bytes of all processes, of the JVM and of Python, each at its own moment."""

    heap: str
    total: int = 0
    jvm: int = 0
    python: int = 0

    def as_json(self) -> dict[str, Any]:
        """The peaks in MiB. `jvm_heap` is the JVM's heap limit."""
        return {
            "peak_mib": round(self.total / _MIB),
            "peak_jvm_mib": round(self.jvm / _MIB),
            "jvm_heap": self.heap,
            "peak_python_mib": round(self.python / _MIB),
        }


@contextmanager
def peak_memory(settings: Settings, every: float = _SAMPLE_SECONDS) -> Iterator[Peak]:
    """Samples the peak memory of this process and its children (Spark's JVM and Python workers)."""
    peak, stop, own = Peak(settings.duty.spark_driver_memory), threading.Event(), psutil.Process()

    def sample() -> None:
        while not stop.wait(every):
            with suppress(psutil.Error):
                sizes = {True: 0, False: 0}
                for process in (own, *own.children(recursive=True)):
                    sizes["java" in process.name()] += _resident(process)
                peak.total = max(peak.total, sum(sizes.values()))
                peak.jvm, peak.python = max(peak.jvm, sizes[True]), max(peak.python, sizes[False])

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _resident(process: Any) -> int:
    """Proportional set size, as forked workers share most of their pages; 0 if it is unreadable."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return 0


class StepCpu:
    """CPU seconds of each step, by a store and by this process with its children.

    The store's seconds are None where the store runs elsewhere.
    """

    def __init__(
        self, settings: Settings, clock: CpuClock | None = None, *, store: str = "cassandra"
    ) -> None:
        self._store = store
        self._clock = clock or partial(_cpu_seconds, StoreCpu(settings), store)
        self._last = self._clock()
        self._steps: dict[str, tuple[float | None, float]] = {}

    def step(self, name: str, _: object = None) -> None:
        """Records the CPU since the step before; call it when a step has ended."""
        stored, own_rows = now = self._clock()
        before, own_before = self._last
        known = None if stored is None or before is None else stored - before
        self._steps[name] = known, own_rows - own_before
        self._last = now

    def by_rows(self, rows: int, *steps: str) -> dict[str, Any]:
        """For each step: CPU microseconds a row, and the rows a second that keep all cores busy.

        The rows a second are given for store and process together, and for the store alone.
        """
        cores = os.cpu_count() or 1

        def most(seconds: float | None) -> int | None:
            return round(rows * cores / seconds) if seconds else None

        def one(seconds: float | None) -> float | None:
            return None if seconds is None or not rows else round(1e6 * seconds / rows, 1)

        return {
            step: {
                self._store: one(stored),
                "ours": one(own_rows),
                "rows_per_second": None if stored is None else most(stored + own_rows),
                f"rows_per_second_of_{self._store}": most(stored),
            }
            for step in steps
            for stored, own_rows in (self._steps[step],)
        }


def _cpu_seconds(stores: StoreCpu, store: str) -> tuple[float | None, float]:
    seconds = 0.0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            if process != own:  # the ended children of this process are other programs
                seconds += times.children_user + times.children_system
    return stores.seconds()[store], seconds


@dataclass(frozen=True, slots=True)
class DutyRun:
    """A run's report, the seconds that all steps took together, and the CPU of each step."""

    report: dict[str, Any]
    seconds: float
    cpu: StepCpu


def run_duty(
    settings: Settings,
    duty: str,
    queue: Any = NO_QUEUE,
    *,
    store: str = "cassandra",
    **params: Any,
) -> DutyRun:
    """Runs all steps. `store`: the store whose CPU is measured beside this process'."""
    params = {**params, "reason": "mailslice bench"}
    request = RunRequest(duty, queue, new_run(system_clock), None, who(), params)
    cpu = StepCpu(settings, store=store)
    report, seconds = timed(lambda: run_all(request, settings, on_step=cpu.step))
    return DutyRun(report, seconds, cpu)


def start_spark(settings: Settings) -> None:
    """Starts the session, and runs many small tasks to make the JVM load and compile its code."""
    from mailslice.engine.frames import run_on_keys
    from mailslice.engine.spark_session import spark_session

    session = spark_session(settings, "mailslice bench")
    run_on_keys(session, list(range(_TASKS)), _count)


def _count(batches: Iterator[Sequence[int]]) -> Iterator[int]:
    yield sum(len(batch) for batch in batches)


def settle(stores: Stores) -> None:
    """Waits until Cassandra has no pending compaction for 2 s; at most three minutes."""
    nodes, rested = Nodes(stores.cassandra), time.monotonic()
    until = rested + _REST_TIMEOUT
    while time.monotonic() < until and time.monotonic() - rested < _REST:
        if any(nodes.compacting(node.address).pending for node in nodes.all() if node.asked):
            rested = time.monotonic()
        time.sleep(_PAUSE)
