"""Which rows of imapUidTable and messageIdTable differ, in the mailboxes in which a scan saw that they do: a second scan of the truth, joined row by row.

Rows are read some time after the sums: in a mailbox that is being worked on, one or the other may be a message on its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mailslice.duties.counter_repair.fingerprints import flag_bits, layout_of, without_id
from mailslice.duties.counter_repair.plan_file import difference_schema
from mailslice.duties.counter_repair.reading import Chunk, Groups, Key
from mailslice.duties.counter_repair.rows_file import PlanFile, RowsWriter
from mailslice.model.names import IMAP_UID_TABLE
from mailslice.model.settings import Settings
from mailslice.spark.failures import translated
from mailslice.spark.frames import frame_of_keys
from mailslice.spark.in_worker import stores_of
from mailslice.spark.packed_rows import decode
from mailslice.spark.plan_files import Location
from mailslice.stores.cassandra.mailboxes import USER_FLAGS

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from mailslice.stores import Stores

ONLY_TRUTH, ONLY_PROJECTED = "onlyInImapUidTable", "onlyInMessageIdTable"
FLAGS_DIFFER, MODSEQ_DIFFERS = "flagsDiffer", "modSeqDiffers"
WITHOUT_ID = "withoutMessageId"
"""A row of messageIdTable of which only flags are left, written after its deletion: James takes it for no message, and deletes it when it meets it."""
MAILBOX_GONE, COUNTER_GONE = "mailboxGone", "counterOfGoneMailbox"
KINDS = (
    ONLY_TRUTH,
    ONLY_PROJECTED,
    FLAGS_DIFFER,
    MODSEQ_DIFFERS,
    WITHOUT_ID,
    MAILBOX_GONE,
    COUNTER_GONE,
)
"""How a report calls them. A row counts once, under the first that fits of: gone, without message id, only in one, flags, modSeq."""
REPAIRABLE = (ONLY_TRUTH, ONLY_PROJECTED, FLAGS_DIFFER, MODSEQ_DIFFERS)

_READS_IN_FLIGHT = 8
_CHUNK = 20_000
_ROWS = "side string, mailbox binary, uid long, message binary, gone boolean, modseq long, flags long, user_flags long"
_VALUES = ("modseq", "flags", "user_flags")
_WRITTEN = "kind string, rows long, file string, file_rows long, sha256 string"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare: these mailboxes (16 bytes each), of which `gone` are not there any more; and where the differences are written."""

    settings: Settings
    mailboxes: frozenset[bytes]
    gone: frozenset[bytes]
    place: Location
    folder: str


def differences(
    spark: SparkSession, what: Comparison, ranges: Sequence[tuple[int, int]]
) -> tuple[tuple[PlanFile, ...], dict[str, int]]:
    """The files with the rows that differ, and how many of each kind. Raises what a worker raised."""

    def read(batches: Iterator[Sequence[Key | bytes]]) -> Iterator[pa.RecordBatch]:
        return _read(what, batches)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _write(what, batches)

    keys: list[Key | bytes] = [(IMAP_UID_TABLE, low, high) for low, high in ranges] + sorted(
        what.mailboxes
    )
    rows = frame_of_keys(spark, keys, read, _ROWS)
    with translated():
        told = compared(rows).mapInArrow(write, _WRITTEN).collect()
    files = {row["file"]: PlanFile(row["file"], row["file_rows"], row["sha256"]) for row in told}
    counts = dict.fromkeys(KINDS, 0)
    for row in told:
        counts[row["kind"]] += row["rows"]
    return tuple(files[name] for name in sorted(files)), counts


def compared(rows: DataFrame) -> DataFrame:
    """Rows of both sides, joined by mailbox, uid and message: those that differ, with how, in the columns of `difference_schema` (ids as bytes)."""
    from pyspark.sql import functions as fn

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
    from pyspark.sql import functions as fn

    flags = (fn.col("truth_flags") != fn.col("projected_flags")) | (
        fn.col("truth_user_flags") != fn.col("projected_user_flags")
    )
    return (
        fn.when(fn.coalesce(fn.col("truth_gone"), fn.col("projected_gone")), MAILBOX_GONE)
        .when(fn.col("message").isNull(), WITHOUT_ID)
        .when(fn.col("projected_modseq").isNull(), ONLY_TRUTH)
        .when(fn.col("truth_modseq").isNull(), ONLY_PROJECTED)
        .when(flags, FLAGS_DIFFER)
        .when(fn.col("truth_modseq") != fn.col("projected_modseq"), MODSEQ_DIFFERS)
    )


def _read(what: Comparison, batches: Iterator[Sequence[Key | bytes]]) -> Iterator[pa.RecordBatch]:
    stores = stores_of(what.settings)
    for batch in batches:
        ranges = [(key[1], key[2]) for key in batch if isinstance(key, tuple)]
        mailboxes = [[UUID(bytes=key)] for key in batch if isinstance(key, bytes)]
        if ranges:
            yield from _side(
                stores,
                what,
                "truth",
                stores.packed.pages(
                    stores.mailboxes.scan(IMAP_UID_TABLE), ranges, _READS_IN_FLIGHT
                ),
            )
        if mailboxes:
            yield from _side(
                stores,
                what,
                "projected",
                stores.packed.pages(stores.mailboxes.of_mailbox, mailboxes, _READS_IN_FLIGHT),
            )


def _side(
    stores: Stores, what: Comparison, side: str, pages: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    layout = layout_of(stores.mailboxes.message_columns)
    chunk = Chunk()
    for _, page in pages:
        chunk.add(decode(page, layout))
        if chunk.rows >= _CHUNK:
            yield from _batch(stores, what, side, chunk.take())
    yield from _batch(stores, what, side, chunk.take())


def _batch(
    stores: Stores, what: Comparison, side: str, columns: dict[str, npt.NDArray[Any]]
) -> Iterator[pa.RecordBatch]:
    """The rows of wanted mailboxes."""
    import numpy as np
    import pyarrow as pa

    if not columns or not len(columns["uid"]):
        return
    groups = Groups(columns)
    wanted = np.repeat(
        [key in what.mailboxes for key in groups.keys], np.diff([*groups.starts, len(groups.order)])
    )
    rows = groups.order[wanted]
    if not len(rows):
        return
    kept = {name: values[rows] for name, values in columns.items()}
    mailboxes = _ids(kept, "mailboxid")
    yield pa.RecordBatch.from_pydict(
        {
            "side": pa.array([side] * len(rows), pa.string()),
            "mailbox": pa.array(mailboxes, pa.binary()),
            "uid": pa.array(kept["uid"], pa.int64()),
            # A null is equal to nothing: such a row stays by itself in the join.
            "message": pa.array(_ids(kept, "messageid"), pa.binary(), mask=without_id(kept)),
            "gone": pa.array([key in what.gone for key in mailboxes], pa.bool_()),
            "modseq": pa.array(kept["modseq"], pa.int64()),
            "flags": pa.array(flag_bits(kept, stores.mailboxes.flags), pa.int64()),
            "user_flags": pa.array(
                kept.get(USER_FLAGS, np.zeros(len(rows), np.uint64)).view(np.int64), pa.int64()
            ),
        }
    )


def _ids(columns: dict[str, npt.NDArray[Any]], name: str) -> list[bytes]:
    """The ids of a column as 16 bytes each."""
    import numpy as np

    packed = (
        np.stack([columns[f"{name}.high"], columns[f"{name}.low"]], axis=1).astype(">u8").tobytes()
    )
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


def _write(what: Comparison, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One file a task; how many rows of each kind are in it."""
    import pyarrow as pa

    writer = RowsWriter(what.place, what.folder, "differences", difference_schema())
    counts: dict[str, int] = {}
    for batch in batches:
        for kind in batch.column("kind").to_pylist():
            counts[kind] = counts.get(kind, 0) + 1
        if batch.num_rows:
            named = {
                name: pa.array(
                    [each and str(UUID(bytes=each)) for each in batch.column(name).to_pylist()],
                    pa.string(),
                )
                for name in ("mailbox", "message")
            }
            writer.add(
                pa.table(
                    {
                        field.name: named.get(field.name, batch.column(field.name))
                        for field in difference_schema()
                    }
                )
            )
    file = writer.close()
    if file is not None:
        yield pa.RecordBatch.from_pydict(
            {
                "kind": list(counts),
                "rows": list(counts.values()),
                "file": [file.name] * len(counts),
                "file_rows": [file.rows] * len(counts),
                "sha256": [file.sha256] * len(counts),
            }
        )
