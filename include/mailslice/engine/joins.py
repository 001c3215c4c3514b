"""Which keys nothing refers to, and which of some keys something refers to: exact joins, by the keys' own text.

A reference that spells a key in another way (`alike`: the function that makes both the same text) never counts as the key's, and never lets it go either.
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
    """Texts are alike when they are equal once the characters of `changed` were put in place of those of `given`, and those without a place left out."""

    def __init__(self, given: str, changed: str) -> None:
        self._given, self._changed = given, changed
        self._table = str.maketrans(given[: len(changed)], changed, given[len(changed) :])

    def text(self, value: str) -> str:
        """In Python."""
        return value.translate(self._table)

    def column(self, column: Column) -> Column:
        """In Spark."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        return F.translate(column, self._given, self._changed)


def unreferenced(spark: Session, keys: Frame, references: Sequence[Frame], alike: Alike) -> Any:
    """The rows of `keys` that no reference is equal to, with the column `doubtful`."""
    if isinstance(spark, InProcess):
        known = {row[REFERENCE] for frame in references for row in frame.rows}
        known_alike = {alike.text(each) for each in known}
        return [
            {**row, DOUBTFUL: int(alike.text(row[KEY]) in known_alike)}
            for row in keys.rows
            if row[KEY] not in known
        ]
    from pyspark.sql import functions as F  # noqa: N812

    # Of the spellings of one id the least and the greatest are kept: with the key's own among three, it counts as doubtful, and stays as well.
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
    """The rows of `keys` that a reference is equal to or alike: whoever asks is about to delete, or to put back."""
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
    """The rows with the columns `more` of `known`, where it has the same values in the columns `on`; null elsewhere."""
    if isinstance(spark, InProcess):
        found = {tuple(row[name] for name in on): row for row in known.rows}
        pairs = ((row, found.get(tuple(row[name] for name in on), {})) for row in rows)
        return [{**row, **{name: match.get(name) for name in more}} for row, match in pairs]
    return rows.join(known.rows.select(*on, *more).dropDuplicates(list(on)), list(on), "left")


def _references(references: Sequence[Frame]) -> DataFrame:
    frame: DataFrame = references[0].rows
    for each in references[1:]:
        frame = frame.union(each.rows)
    return frame
