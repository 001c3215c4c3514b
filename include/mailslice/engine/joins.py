"""Which keys no reference names, and which keys a reference names: exact joins, by the keys' text.

`alike` gives spellings of one key the same text. A reference in another spelling never counts as
the key's, and never lets the key go either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mailslice.engine.dataset import Frame
from mailslice.engine.errors import translated
from mailslice.engine.frames import InProcess, Session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REFERENCE = "ref"
"""The one column of frames of references."""
KEY = "key"
"""The column of all other frames that is compared."""
DOUBTFUL = "doubtful"
"""1 where a reference is alike without being equal."""


class Alike:
    """Texts are alike when they are equal after a translation.

    Each of `characters` becomes the one of `changed` at its index; without one it is dropped.
    """

    def __init__(self, characters: str, changed: str) -> None:
        self._characters, self._changed = characters, changed
        self._table = str.maketrans(characters[: len(changed)], changed, characters[len(changed) :])

    def text(self, value: str) -> str:
        """In Python."""
        return value.translate(self._table)

    def column(self, column: Column) -> Column:
        """In Spark."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        return F.translate(column, self._characters, self._changed)


def unreferenced(spark: Session, keys: Frame, references: Sequence[Frame], alike: Alike) -> Any:
    """The rows of `keys` that no reference is equal to, with the column `doubtful`."""
    if isinstance(spark, InProcess):
        known = {row[REFERENCE] for frame in references for row in frame.rows}
        known_alike = {alike.text(reference) for reference in known}
        return [
            {**row, DOUBTFUL: int(alike.text(row[KEY]) in known_alike)}
            for row in keys.rows
            if row[KEY] not in known
        ]
    from pyspark.sql import functions as F  # noqa: N812

    # Of the spellings of one id the least and the greatest are compared. A key whose own spelling
    # lies between them counts as doubtful, and stays as well.
    known = (
        _references(references)
        .groupBy(alike.column(F.col(REFERENCE)).alias("alike"))
        .agg(F.min(REFERENCE).alias("low"), F.max(REFERENCE).alias("high"))
    )
    joined = keys.rows.withColumn("alike", alike.column(F.col(KEY))).join(known, "alike", "left")
    equal = F.coalesce((F.col(KEY) == F.col("low")) | (F.col(KEY) == F.col("high")), F.lit(False))
    return (
        joined.filter(~equal)
        .withColumn(DOUBTFUL, F.col("low").isNotNull().cast("long"))
        .drop("alike", "low", "high")
    )


def referenced(spark: Session, keys: Frame, references: Sequence[Frame], alike: Alike) -> Any:
    """The rows of `keys` that a reference equals or is alike, before a delete or a restore."""
    if isinstance(spark, InProcess):
        known_alike = {alike.text(row[REFERENCE]) for frame in references for row in frame.rows}
        return [row for row in keys.rows if alike.text(row[KEY]) in known_alike]
    from pyspark.sql import functions as F  # noqa: N812

    known = _references(references).select(alike.column(F.col(REFERENCE)).alias("alike"))
    return (
        keys.rows.withColumn("alike", alike.column(F.col(KEY)))
        .join(known, "alike", "left_semi")
        .drop("alike")
    )


def collected(spark: Session, rows: Any) -> list[dict[str, Any]]:
    """The rows, here: for those that are few."""
    if isinstance(spark, InProcess):
        return list(rows)
    with translated():
        return [row.asDict() for row in rows.collect()]


def missing_from(spark: Session, rows: Any, keys: Frame) -> Any:
    """The rows whose key is not among `keys`."""
    if isinstance(spark, InProcess):
        known = {row[KEY] for row in keys.rows}
        return [row for row in rows if row[KEY] not in known]
    return rows.join(keys.rows.select(KEY), KEY, "left_anti")


def with_known(
    spark: Session, rows: Any, known: Frame, on: Sequence[str], more: Sequence[str]
) -> Any:
    """The rows with the columns `more` of `known`, joined on `on`; null without a match."""
    if isinstance(spark, InProcess):
        rows_by_columns = {tuple(row[name] for name in on): row for row in known.rows}
        pairs = ((row, rows_by_columns.get(tuple(row[name] for name in on), {})) for row in rows)
        return [{**row, **{name: match.get(name) for name in more}} for row, match in pairs]
    return rows.join(known.rows.select(*on, *more).dropDuplicates(list(on)), list(on), "left")


def _references(references: Sequence[Frame]) -> DataFrame:
    frame: DataFrame = references[0].rows
    for reference in references[1:]:
        frame = frame.union(reference.rows)
    return frame
