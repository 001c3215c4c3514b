"""The rows of a plan's Parquet files as one frame, for a gate: in Spark, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from mailslice.engine.frames import InProcess, Session, frame_of_keys
from mailslice.engine.row_files import Location, unreadable_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Derive: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch]"
_ROWS_A_BATCH = 50_000


def plan_rows(
    session: Session,
    location: Location,
    files: Sequence[str],
    schema: pa.Schema,
    derive: Derive | None = None,
) -> pa.Table | DataFrame:
    """All rows of the files. pyarrow reads them in the tasks: no executor needs Hadoop's S3 client.

    `schema` is that of the result: columns of the files, or those that `derive` makes of each
    batch. It must have no timestamps, because Arrow's milliseconds are not Spark's. Evaluating the
    frame raises PlanRefused for a file that is gone or holds other columns.
    """

    def read(batches: Iterator[Sequence[str]]) -> Iterator[pa.RecordBatch]:
        for name in (name for batch in batches for name in batch):
            yield from _batches(location, name, schema, derive)

    if isinstance(session, InProcess):
        return pa.Table.from_batches(read(iter([files])), schema)
    from pyspark.sql.pandas.types import from_arrow_schema

    return frame_of_keys(session, files, read, from_arrow_schema(schema))


def _batches(
    location: Location, name: str, schema: pa.Schema, derive: Derive | None
) -> Iterator[pa.RecordBatch]:
    try:
        with (
            location.filesystem.open_input_file(location.path(name)) as stream,
            pq.ParquetFile(stream) as parquet,
        ):
            for batch in parquet.iter_batches(_ROWS_A_BATCH):
                derived = batch if derive is None else derive(batch)
                yield derived.select(schema.names).cast(schema)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise unreadable_file(name, error) from error
