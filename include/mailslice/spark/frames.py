"""Frames of keys: a range of numbers, and the keys they stand for in the closure. One stage, no shuffle, as many tasks as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mailslice.spark.failures import translated
from mailslice.spark.in_worker import one_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

K = TypeVar("K")
V = TypeVar("V")
_TASKS_A_SLOT = 3
"""More tasks than slots even out slices of unequal size; each costs 0.1 s of CPU (reference/spark-cassandra.md)."""
_FEW = 8


@dataclass(frozen=True, slots=True)
class InProcess:
    """In a session's place: the same work in this process, without Spark. For frames that are small, and for tests of everything around them."""


@dataclass
class Small:
    """In a session's place: the work is done in this process until it has dealt with `most` rows.

    What is left then is done by the session that `start` gives. Whatever else is asked of a session
    is asked of that one.
    """

    most: int
    start: Callable[[], SparkSession]
    done: int = 0
    started: SparkSession | None = None

    @property
    def is_small(self) -> bool:
        """Whether the work so far is within the limit."""
        return self.done <= self.most

    def large(self) -> SparkSession:
        """The session, started at the first call."""
        if self.started is None:
            self.started = self.start()
        return self.started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.large(), name)


Session: TypeAlias = "SparkSession | InProcess | Small"


def slots_of(spark: Session) -> int:
    """How many tasks run beside each other."""
    return 1 if isinstance(spark, InProcess) else int(spark.sparkContext.defaultParallelism)


def _one(_: Mapping[str, Any]) -> int:
    return 1


def run_on_keys(
    spark: Session,
    keys: Sequence[K],
    work: Callable[[Iterator[Sequence[K]]], Iterator[pa.RecordBatch]],
    schema: str,
    rows: Callable[[Mapping[str, Any]], int] = _one,
) -> list[dict[str, Any]]:
    """Give the keys to Python workers and collect what `work` makes of them, in batches of a few hundred keys. Raises the mailslice error that a worker raised.

    Neighbours go to different tasks: new slices are often larger than old ones. `rows`: how many
    rows of a store a result stands for, by which small work is told from large.
    """
    if not keys:
        return []
    if isinstance(spark, InProcess):
        return [row for batch in work(iter([keys])) for row in batch.to_pylist()]
    if isinstance(spark, Small):
        return _small_first(spark, keys, work, schema, rows)
    with translated():
        return [row.asDict() for row in frame_of_keys(spark, keys, work, schema).collect()]


def _small_first(
    small: Small,
    keys: Sequence[K],
    work: Callable[[Iterator[Sequence[K]]], Iterator[pa.RecordBatch]],
    schema: str,
    rows: Callable[[Mapping[str, Any]], int],
) -> list[dict[str, Any]]:
    """A few keys at a time, more while they are light."""
    found: list[dict[str, Any]] = []
    at, some = 0, 1
    while at < len(keys) and small.started is None and small.is_small:
        new = run_on_keys(InProcess(), keys[at : at + some], work, schema)
        small.done += sum(map(rows, new))
        found += new
        at, some = at + some, min(2 * some, _FEW)
    if at < len(keys):
        found += run_on_keys(small.large(), keys[at:], work, schema)
    return found


def frame_of_keys(
    spark: SparkSession | Small,
    keys: Sequence[K],
    work: Callable[[Iterator[Sequence[K]]], Iterator[pa.RecordBatch]],
    schema: str | StructType,
) -> DataFrame:
    """As `run_on_keys`, for results that Spark goes on with: a frame, nothing is run yet. `keys` are not empty."""
    slots = max(2, slots_of(spark))
    tasks = min(len(keys), max(slots, min(slots * _TASKS_A_SLOT, len(keys) // _FEW)))
    dealt = [keys[place] for task in range(tasks) for place in range(task, len(keys), tasks)]
    edges = [0]
    for task in range(tasks):
        edges.append(edges[-1] + len(range(task, len(keys), tasks)))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_task():
            yield from work(_dealt(batches, dealt, edges))

    return spark.range(0, tasks, 1, tasks).mapInArrow(read, schema)


@contextmanager
def shared(spark: Session, value: V) -> Iterator[Callable[[], V]]:
    """A value that workers read by calling what is given: sent to each executor once."""
    if isinstance(spark, InProcess):
        yield lambda: value
        return
    sent = spark.sparkContext.broadcast(value)
    try:
        yield lambda: sent.value
    finally:
        sent.destroy()


def _dealt(
    batches: Iterator[pa.RecordBatch], keys: Sequence[K], edges: Sequence[int]
) -> Iterator[Sequence[K]]:
    """The keys of the tasks in these batches, a few hundred at a time."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for first in range(edges[task], edges[task + 1], 256):
                yield keys[first : min(first + 256, edges[task + 1])]
