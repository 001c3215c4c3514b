"""Finds the rows in which the message tables differ, in mailboxes whose sums differ in the scan.

Spark joins the truth, as the scan read it, row by row with the projection, which is read again now.
In a mailbox in use a listed row may be a message that James has only half written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from mailslice.duties.counter_repair import planned
from mailslice.duties.counter_repair.fingerprints import flag_bits, layout_of, without_id
from mailslice.duties.counter_repair.planned import Difference
from mailslice.duties.counter_repair.scan_task import Chunk, Groups, ids_of
from mailslice.engine.errors import translated_errors
from mailslice.engine.frames import frame_of_keys
from mailslice.engine.page_decoder import decode
from mailslice.engine.row_files import Location, RowFile, RowWriter
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.artifacts import PLAN_FOLDER
from mailslice.maintenance.row_file import read_tables, schema_of
from mailslice.model.settings import Settings
from mailslice.stores import Stores
from mailslice.stores.cassandra.mailboxes import USER_FLAGS

_Key: TypeAlias = RowFile | bytes
"""What a task reads: a file with rows of the truth, or the projection of a mailbox (16 bytes)."""
_READS_IN_FLIGHT = 8
_CHUNK = 20_000
_ROWS = (
    "side string, mailbox binary, uid long, message binary, gone boolean, modseq long, flags long, "
    "user_flags long"
)
_VALUES = ("modseq", "flags", "user_flags")
_WRITTEN = "kind string, rows long, file string, file_rows long, digest string"


@dataclass(frozen=True, slots=True)
class ComparisonSpec:
    """The mailboxes to compare (16 bytes each). `deleted` ones do not exist any more.

    Files with the truth are below the run's `folder`. The files of differences go there, too.
    """

    settings: Settings
    location: Location
    folder: str
    mailboxes: frozenset[bytes]
    deleted: frozenset[bytes]


def differences(
    spark: SparkSession, spec: ComparisonSpec, truth: Sequence[RowFile]
) -> tuple[tuple[RowFile, ...], dict[str, int]]:
    """Files of differing rows, and the number of rows by kind. Raises what a worker raised."""
    keys: list[_Key] = [*truth, *sorted(spec.mailboxes)]
    rows = frame_of_keys(spark, keys, partial(_read, spec), _ROWS)
    with translated_errors():
        written = compared(rows).mapInArrow(partial(_write, spec), _WRITTEN).collect()
    files = {row["file"]: RowFile(row["file"], row["file_rows"], row["digest"]) for row in written}
    counts = dict.fromkeys(planned.KINDS, 0)
    for row in written:
        counts[row["kind"]] += row["rows"]
    return tuple(files[name] for name in sorted(files)), counts


def compared(rows: DataFrame) -> DataFrame:
    """The rows that differ between the sides, joined by mailbox, uid and message.

    The columns are those of `Difference`, with ids as bytes.
    """
    keys = ["mailbox", "uid", "message"]
    truth, projected = (
        rows.where(fn.col("side") == side).select(
            *keys, *(fn.col(name).alias(f"{side}_{name}") for name in ("gone", *_VALUES))
        )
        for side in ("truth", "projected")
    )
    columns = [f"{side}_{name}" for side in ("truth", "projected") for name in _VALUES]
    return (
        truth.join(projected, on=keys, how="full_outer")
        .withColumn("kind", _kind())
        .where(fn.col("kind").isNotNull())
        .select("kind", *keys, *columns)
    )


def _kind() -> Column:
    flags = (fn.col("truth_flags") != fn.col("projected_flags")) | (
        fn.col("truth_user_flags") != fn.col("projected_user_flags")
    )
    gone = fn.coalesce(fn.col("truth_gone"), fn.col("projected_gone"))
    return (
        fn.when(gone, planned.MAILBOX_MISSING)
        .when(fn.col("message").isNull(), planned.WITHOUT_ID)
        .when(fn.col("projected_modseq").isNull(), planned.ONLY_TRUTH)
        .when(fn.col("truth_modseq").isNull(), planned.ONLY_PROJECTED)
        .when(flags, planned.FLAGS_DIFFER)
        .when(fn.col("truth_modseq") != fn.col("projected_modseq"), planned.MODSEQ_DIFFERS)
    )


def _read(spec: ComparisonSpec, batches: Iterator[Sequence[_Key]]) -> Iterator[pa.RecordBatch]:
    stores = stores_of(spec.settings)
    for batch in batches:
        for file in (key for key in batch if isinstance(key, RowFile)):
            for table in read_tables(spec.location, spec.folder, file):
                columns = {name: table[name].to_numpy() for name in table.column_names}
                yield from _batch(stores, spec, "truth", columns)
        if mailboxes := [[UUID(bytes=key)] for key in batch if isinstance(key, bytes)]:
            yield from _projected(stores, spec, mailboxes)


def _projected(
    stores: Stores, spec: ComparisonSpec, mailboxes: list[list[UUID]]
) -> Iterator[pa.RecordBatch]:
    tables, packed = stores.mailboxes, stores.cassandra.packed
    layout, chunk = layout_of(tables.message_columns), Chunk()
    for _, page in packed.pages(tables.of_mailbox, mailboxes, _READS_IN_FLIGHT):
        chunk.add(decode(page, layout))
        if chunk.rows >= _CHUNK:
            yield from _batch(stores, spec, "projected", chunk.take())
    yield from _batch(stores, spec, "projected", chunk.take())


def _batch(
    stores: Stores, spec: ComparisonSpec, side: str, columns: dict[str, npt.NDArray[Any]]
) -> Iterator[pa.RecordBatch]:
    if not columns or not len(columns["uid"]):
        return
    rows = Groups(columns).rows_of(spec.mailboxes)
    if not len(rows):
        return
    columns = {name: values[rows] for name, values in columns.items()}
    mailboxes = ids_of(columns, "mailboxid")
    user_flags = columns.get(USER_FLAGS, np.zeros(len(rows), np.uint64)).view(np.int64)
    arrays = {
        "side": pa.array([side] * len(rows), pa.string()),
        "mailbox": pa.array(mailboxes, pa.binary()),
        "uid": pa.array(columns["uid"], pa.int64()),
        # A null equals nothing in a join: a row without an id has no match.
        "message": pa.array(ids_of(columns, "messageid"), pa.binary(), mask=without_id(columns)),
        "gone": pa.array([key in spec.deleted for key in mailboxes], pa.bool_()),
        "modseq": pa.array(columns["modseq"], pa.int64()),
        "flags": pa.array(flag_bits(columns, stores.mailboxes.flags), pa.int64()),
        "user_flags": pa.array(user_flags, pa.int64()),
    }
    yield pa.RecordBatch.from_pydict(arrays)


def _write(spec: ComparisonSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one file for each task. Gives the number of its rows by kind."""
    name = f"{PLAN_FOLDER}/differences-{uuid4()}.parquet"
    writer = RowWriter(spec.location, spec.folder, name)
    counts: Counter[str] = Counter()
    for batch in batches:
        counts.update(batch.column("kind").to_pylist())
        writer.add(_as_planned(batch))
    file = writer.close()
    if file.rows:
        columns = {
            "kind": list(counts),
            "rows": list(counts.values()),
            "file": [file.file] * len(counts),
            "file_rows": [file.rows] * len(counts),
            "digest": [file.digest] * len(counts),
        }
        yield pa.RecordBatch.from_pydict(columns)


def _as_planned(batch: pa.RecordBatch) -> pa.Table:
    schema: pa.Schema = schema_of(Difference)
    columns = {name: batch.column(name) for name in schema.names}
    for name in ("mailbox", "message"):
        ids = columns[name].to_pylist()
        columns[name] = pa.array([key and str(UUID(bytes=key)) for key in ids], pa.string())
    return pa.table(columns).cast(schema)
