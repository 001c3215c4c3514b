"""Frames that workers read once: rows stay on the executors' disks, summaries of tasks come back.

A scan's rows are counted, joined and counted again. A second read would give other rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mailslice.engine.errors import translated
from mailslice.engine.frames import InProcess, Session, frame_of_keys
from mailslice.engine.worker_stores import one_task

if TYPE_CHECKING:
    import pyarrow as pa

K = TypeVar("K")
Columns: TypeAlias = Mapping[str, str]
"""Column -> `string` or `long`."""
Summary: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Iterator[Sequence[K]]], Iterator["Rows | Summary"]]
_SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a frame, column by column."""

    columns: Mapping[str, Sequence[object]]


class Frame:
    """The rows that were read. Release it.

    `rows`: a Spark frame, or in process a list of dicts. `summaries`: JSON objects, in no order.
    """

    def __init__(
        self, rows: Any, summaries: Sequence[Summary], release: Callable[[], object] = lambda: None
    ) -> None:
        self.rows = rows
        self.summaries = summaries
        self.release = release

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def read_once(spark: Session, keys: Sequence[K], work: Work[K], columns: Columns) -> Frame:
    """Give the keys to workers and keep the rows that they read.

    `work` yields Rows, and summaries as JSON objects. Raises the mailslice error that a worker
    raised.
    """
    if isinstance(spark, InProcess):
        results = list(work(iter([keys]))) if keys else []
        parts = [part.columns.values() for part in results if isinstance(part, Rows)]
        values = (row for part in parts for row in zip(*part, strict=True))
        rows = [dict(zip(columns, row, strict=True)) for row in values]
        return Frame(rows, [part for part in results if not isinstance(part, Rows)])
    if not keys:
        return Frame(spark.createDataFrame([], _schema(columns)), [])
    from pyspark import StorageLevel

    def read(batches: Iterator[Sequence[K]]) -> Iterator[pa.RecordBatch]:
        return (_batch(result, columns) for result in work(batches))

    frame = frame_of_keys(spark, keys, read, f"{_schema(columns)}, {_SUMMARY} string").persist(
        StorageLevel.DISK_ONLY
    )
    try:
        with translated():
            summaries = frame.filter(frame[_SUMMARY].isNotNull()).select(_SUMMARY).collect()
    except BaseException:
        frame.unpersist()
        raise
    return Frame(
        frame.filter(frame[_SUMMARY].isNull()).drop(_SUMMARY),
        [json.loads(row[0]) for row in summaries],
        frame.unpersist,
    )


def give(
    spark: Session, rows: Any, work: Callable[[Iterator[pa.Table]], Iterator[Summary]]
) -> list[Summary]:
    """Give the rows of a frame to `work`, one task a partition of the frame; the summaries."""
    import pyarrow as pa

    if isinstance(spark, InProcess):
        return list(work(iter([pa.Table.from_pylist(rows)] if rows else [])))

    def summary_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_task():
            for summary in work(pa.Table.from_batches([batch]) for batch in batches):
                yield pa.RecordBatch.from_pydict(
                    {_SUMMARY: [json.dumps(summary)]}, schema=pa.schema([(_SUMMARY, pa.string())])
                )

    with translated():
        summaries = rows.mapInArrow(summary_batches, f"{_SUMMARY} string").collect()
        return [json.loads(row[0]) for row in summaries]


def _schema(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _batch(result: Rows | Summary, columns: Columns) -> pa.RecordBatch:
    import pyarrow as pa

    types = {"string": pa.string(), "long": pa.int64()}
    schema = pa.schema(
        [*((name, types[kind]) for name, kind in columns.items()), (_SUMMARY, pa.string())]
    )
    if isinstance(result, Rows):
        count = len(next(iter(result.columns.values())))
        arrays = [pa.array(result.columns[name], types[kind]) for name, kind in columns.items()]
        return pa.RecordBatch.from_arrays([*arrays, pa.nulls(count, pa.string())], schema=schema)
    return pa.RecordBatch.from_arrays(
        [*(pa.nulls(1, types[kind]) for kind in columns.values()), pa.array([json.dumps(result)])],
        schema=schema,
    )
