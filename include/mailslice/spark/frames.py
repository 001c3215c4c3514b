"""Frames of keys: a range of numbers, and the keys they stand for in the closure. One stage, no shuffle, as many tasks as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


Session: TypeAlias = "SparkSession | InProcess"


def slots_of(spark: Session) -> int:
    """How many tasks run beside each other."""
    return 1 if isinstance(spark, InProcess) else int(spark.sparkContext.defaultParallelism)


def run_on_keys(
    spark: Session,
    keys: Sequence[K],
    work: Callable[[Iterator[Sequence[K]]], Iterator[pa.RecordBatch]],
    schema: str,
) -> list[dict[str, Any]]:
    """Give the keys to Python workers and collect what `work` makes of them, in batches of a few hundred keys. Raises the mailslice error that a worker raised.

    Neighbours go to different tasks: new slices are often larger than old ones.
    """
    if not keys:
        return []
    if isinstance(spark, InProcess):
        return [row for batch in work(iter([keys])) for row in batch.to_pylist()]
    with translated():
        return [row.asDict() for row in frame_of_keys(spark, keys, work, schema).collect()]


def frame_of_keys(
    spark: SparkSession,
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
