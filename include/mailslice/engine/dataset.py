"""Data sets that workers read once, and exact joins of them by key.

The rows stay on the executors' disks; only summaries of tasks come back. Rows are read once because
a second read of a store could give other rows. A reference in another spelling than a key is not
equal to the key, but it keeps the key from being deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from mailslice.codec.blob_ids import SPELLINGS
from mailslice.engine.errors import translated_errors
from mailslice.engine.frames import InProcess, Session, frame_of_keys
from mailslice.engine.worker_stores import one_task

K = TypeVar("K")
Columns: TypeAlias = Mapping[str, str]
"""Column -> `string` or `long`."""
Summary: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Iterator[Sequence[K]]], Iterator["RowBatch | Summary"]]
_SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A batch of rows: column name -> values."""

    columns: Mapping[str, Sequence[object]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows (Spark frame or list of dicts) and summaries, in no order. Call `release` after use."""

    rows: Any
    summaries: Sequence[Summary]
    release: Callable[[], object] = lambda: None

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def read_once(session: Session, keys: Sequence[K], work: Work[K], columns: Columns) -> Dataset:
    """Have workers read `keys`, and persist the rows.

    `work` yields RowBatch, and summaries as JSON objects. Raises the mailslice error that a worker
    raised.
    """
    if isinstance(session, InProcess):
        results = list(work(iter([keys]))) if keys else []
        parts = [part.columns.values() for part in results if isinstance(part, RowBatch)]
        values = (row for part in parts for row in zip(*part, strict=True))
        rows = [dict(zip(columns, row, strict=True)) for row in values]
        return Dataset(rows, [part for part in results if not isinstance(part, RowBatch)])
    if not keys:
        return Dataset(session.createDataFrame([], _schema(columns)), [])

    def read(batches: Iterator[Sequence[K]]) -> Iterator[pa.RecordBatch]:
        return (_batch(result, columns) for result in work(batches))

    frame = frame_of_keys(session, keys, read, f"{_schema(columns)}, {_SUMMARY} string").persist(
        StorageLevel.DISK_ONLY
    )
    try:
        with translated_errors():
            summaries = frame.filter(frame[_SUMMARY].isNotNull()).select(_SUMMARY).collect()
    except BaseException:
        frame.unpersist()
        raise
    return Dataset(
        frame.filter(frame[_SUMMARY].isNull()).drop(_SUMMARY),
        [json.loads(row[0]) for row in summaries],
        frame.unpersist,
    )


def summarize(rows: Any, work: Callable[[Iterator[pa.Table]], Iterator[Summary]]) -> list[Summary]:
    """Run `work` on the rows, one task for each Spark partition; return the summaries."""
    if isinstance(rows, list):
        return list(work(iter([pa.Table.from_pylist(rows)] if rows else [])))

    def summary_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_task():
            for summary in work(pa.Table.from_batches([batch]) for batch in batches):
                yield _batch(summary, {})

    with translated_errors():
        summaries = rows.mapInArrow(summary_batches, f"{_SUMMARY} string").collect()
        return [json.loads(row[0]) for row in summaries]


def _schema(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _batch(result: RowBatch | Summary, columns: Columns) -> pa.RecordBatch:
    types = {"string": pa.string(), "long": pa.int64()}
    fields = [(name, types[kind]) for name, kind in columns.items()]
    if isinstance(result, RowBatch):
        count = len(next(iter(result.columns.values())))
        values: dict[str, Any] = {**result.columns, _SUMMARY: pa.nulls(count, pa.string())}
    else:
        values = {**{name: [None] for name in columns}, _SUMMARY: [json.dumps(result)]}
    return pa.RecordBatch.from_pydict(values, pa.schema([*fields, (_SUMMARY, pa.string())]))


REFERENCE = "ref"
"""The one column of frames of references."""
KEY = "key"
"""The column of all other frames that is compared."""
DOUBTFUL = "doubtful"
"""1 where a reference is another spelling of the key, and none is equal to it; else 0."""


_CHARACTERS, _CHANGED = SPELLINGS
_TABLE = str.maketrans(_CHARACTERS[: len(_CHANGED)], _CHANGED, _CHARACTERS[len(_CHANGED) :])


def normalized(blob_id: str) -> str:
    """The form that all spellings of one blob id share. Ids with one form are alike."""
    return blob_id.translate(_TABLE)


def _normalized(column: str) -> Column:
    return fn.translate(fn.col(column), _CHARACTERS, _CHANGED)


def unreferenced(keys: Dataset, references: Sequence[Dataset]) -> Any:
    """The rows of `keys` that no reference is equal to, with the column `doubtful`."""
    if isinstance(keys.rows, list):
        known = {row[REFERENCE] for frame in references for row in frame.rows}
        known_normalized = set(map(normalized, known))
        return [
            {**row, DOUBTFUL: int(normalized(row[KEY]) in known_normalized)}
            for row in keys.rows
            if row[KEY] not in known
        ]
    # Only the least and the greatest spelling of an id are compared with keys. A key whose spelling
    # is between them counts as doubtful, so it is not deleted either.
    known = (
        _references(references)
        .groupBy(_normalized(REFERENCE).alias("normalized"))
        .agg(fn.min(REFERENCE).alias("low"), fn.max(REFERENCE).alias("high"))
    )
    joined = keys.rows.withColumn("normalized", _normalized(KEY)).join(known, "normalized", "left")
    equal = fn.coalesce(
        (fn.col(KEY) == fn.col("low")) | (fn.col(KEY) == fn.col("high")), fn.lit(False)
    )
    return (
        joined.filter(~equal)
        .withColumn(DOUBTFUL, fn.col("low").isNotNull().cast("long"))
        .drop("normalized", "low", "high")
    )


def referenced(keys: Dataset, references: Sequence[Dataset]) -> Any:
    """The rows of `keys` with a reference in any spelling. Asked before a delete or a restore."""
    if isinstance(keys.rows, list):
        known = {normalized(row[REFERENCE]) for frame in references for row in frame.rows}
        return [row for row in keys.rows if normalized(row[KEY]) in known]
    spellings = _references(references).select(_normalized(REFERENCE).alias("normalized"))
    rows = keys.rows.withColumn("normalized", _normalized(KEY))
    return rows.join(spellings, "normalized", "left_semi").drop("normalized")


def collected(rows: Any) -> list[dict[str, Any]]:
    """The rows as dicts on the driver. Only for few rows."""
    if isinstance(rows, list):
        return rows
    with translated_errors():
        return [row.asDict() for row in rows.collect()]


def missing_from(rows: Any, keys: Dataset) -> Any:
    """The rows whose KEY no row of `keys` has."""
    if isinstance(rows, list):
        known = {row[KEY] for row in keys.rows}
        return [row for row in rows if row[KEY] not in known]
    return rows.join(keys.rows.select(KEY), KEY, "left_anti")


def with_known(rows: Any, known: Dataset, on: Sequence[str], more: Sequence[str]) -> Any:
    """The rows with the columns `more` of `known`, joined on `on`; null without a match."""
    if isinstance(rows, list):
        rows_by_columns = {tuple(row[name] for name in on): row for row in known.rows}
        pairs = ((row, rows_by_columns.get(tuple(row[name] for name in on), {})) for row in rows)
        return [{**row, **{name: match.get(name) for name in more}} for row, match in pairs]
    return rows.join(known.rows.select(*on, *more).dropDuplicates(list(on)), list(on), "left")


def _references(references: Sequence[Dataset]) -> DataFrame:
    frame: DataFrame = references[0].rows
    for reference in references[1:]:
        frame = frame.union(reference.rows)
    return frame
