"""Spark frames over keys: the frame numbers the tasks, and the closure carries their keys.

One stage, no shuffle, as many tasks as requested.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mailslice.engine.errors import translated_errors
from mailslice.engine.worker_stores import one_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")
Work: TypeAlias = Callable[[Iterator[Sequence[K]]], Iterator[R]]
"""What a task does: batches of keys in, results out. Results must pickle."""
_TASKS_A_SLOT = 3
"""More tasks even out unequal slices; each costs 0.1 s of CPU (reference/spark-cassandra.md)."""
_FEW = 8
_RESULTS_A_BATCH = 64


@dataclass(frozen=True, slots=True)
class InProcess:
    """Stands in for a Spark session: work runs in this process. For small frames and tests."""


@dataclass
class SmallFirst:
    """Stands in for a Spark session: work runs in this process until it has read `limit` rows.

    `start` then makes the session that does the rest. Any other attribute is that of this session.
    """

    limit: int
    start: Callable[[], SparkSession]
    done: int = 0
    started: SparkSession | None = None

    @property
    def is_small(self) -> bool:
        return self.done <= self.limit

    def large(self) -> SparkSession:
        if self.started is None:
            self.started = self.start()
        return self.started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.large(), name)


Session: TypeAlias = "SparkSession | InProcess | SmallFirst"


def slots_of(session: Session) -> int:
    """How many tasks run at once. Requested executors count, even those that did not start yet."""
    if isinstance(session, InProcess):
        return 1
    context = session.sparkContext
    conf = context.getConf()
    executors = int(conf.get("spark.executor.instances", "0"))
    cores = int(conf.get("spark.executor.cores", "1"))
    max_cores = int(conf.get("spark.cores.max", "0"))
    return max(int(context.defaultParallelism), executors * cores, max_cores)


def run_on_keys(
    session: Session, keys: Sequence[K], work: Work[K, R], rows: Callable[[R], int] = lambda _: 1
) -> list[R]:
    """Run `work` on all keys, in batches of a few hundred; return its results, in no order.

    Neighbouring keys go to different tasks, because new slices are often larger than old ones.
    `rows` says how many store rows a result stands for; `SmallFirst` counts them. Raises the
    mailslice error that a worker raised.
    """
    if not keys:
        return []
    if isinstance(session, InProcess):
        return list(work(iter([keys])))
    if isinstance(session, SmallFirst):
        return _small_first(session, keys, work, rows)
    with translated_errors():
        results = frame_of_keys(session, keys, _pickled(work), "result binary").collect()
    return [pickle.loads(row[0]) for row in results]  # noqa: S301 - see the import


def _pickled(work: Work[K, R]) -> Work[K, pa.RecordBatch]:
    def run(batches: Iterator[Sequence[K]]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        results = work(batches)
        while batch := list(islice(results, _RESULTS_A_BATCH)):
            pickles = pa.array([pickle.dumps(result) for result in batch], pa.binary())
            yield pa.RecordBatch.from_arrays([pickles], names=["result"])

    return run


def _small_first(
    small: SmallFirst, keys: Sequence[K], work: Work[K, R], rows: Callable[[R], int]
) -> list[R]:
    """Work on a few keys at a time in this process, then on the rest in Spark."""
    results: list[R] = []
    at, count = 0, 1
    while at < len(keys) and small.started is None and small.is_small:
        new = run_on_keys(InProcess(), keys[at : at + count], work)
        small.done += sum(map(rows, new))
        results += new
        at, count = at + count, min(2 * count, _FEW)
    if at < len(keys):
        results += run_on_keys(small.large(), keys[at:], work)
    return results


def frame_of_keys(
    session: SparkSession | SmallFirst,
    keys: Sequence[K],
    work: Work[K, pa.RecordBatch],
    schema: str | StructType,
) -> DataFrame:
    """As `run_on_keys`, but a frame that Spark evaluates later. `keys` must not be empty."""
    slots = max(2, slots_of(session))
    tasks = tasks_of(len(keys), slots)
    dealt = [keys[task::tasks] for task in range(tasks)]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_task():
            yield from work(
                dealt[task][first : first + 256]
                for batch in batches
                for task in batch.column(0).to_pylist()
                for first in range(0, len(dealt[task]), 256)
            )

    return session.range(0, tasks, 1, tasks).mapInArrow(read, schema)


def tasks_of(keys: int, slots: int) -> int:
    """A multiple of `slots`, or `keys`: with three tasks on two slots one idles during the last."""
    return min(keys, slots * max(1, min(_TASKS_A_SLOT, keys // (slots * _FEW))))


@contextmanager
def shared(session: Session, value: V) -> Iterator[Callable[[], V]]:
    """Yields a function by which workers get `value`. Spark sends it to each executor once."""
    if isinstance(session, InProcess):
        yield lambda: value
        return
    sent = session.sparkContext.broadcast(value)
    try:
        yield lambda: sent.value
    finally:
        sent.destroy()
