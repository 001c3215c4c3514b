"""Read the tables of mailboxes whole by Spark, and join them: one row a mailbox, with what each table says of it.

Every task reads token ranges and gives sums by mailbox, never messages: what is shuffled grows with the mailboxes, not with their mail. Each range
comes back exactly once with its row count; a range that is missing was not read, and no sum is to be trusted then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from mailslice.duties.counter_repair.fingerprints import Seen, fingerprints, layout_of, message_times
from mailslice.model.names import IMAP_UID_TABLE, MAILBOX, MAILBOX_COUNTERS, MESSAGE_ID_TABLE, MODSEQ
from mailslice.model.settings import Settings
from mailslice.spark.frames import frame_of_keys
from mailslice.spark.in_worker import stores_of
from mailslice.spark.packed_rows import LONG, Layout, decode
from mailslice.spark.packed_rows import UUID as UUID_WIDTH
from mailslice.stores.cassandra.mailboxes import SEEN, Counters
from mailslice.stores.cassandra.ranges import TokenRange

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from mailslice.stores import Stores

Key: TypeAlias = tuple[str, int, int]
"""(table, low token, high token)."""
_READS_IN_FLIGHT = 8
_CHUNK = 100_000
_FEW = 100_000
_MAILBOX = "of mailbox"
"""The `kind` of rows that are about a mailbox; the others are a table's name and are about a range."""
_SUMS = ("truth_count", "truth_unseen", "projected_count", "projected_unseen", "mailboxes", "counters", "stored_count", "stored_unseen", "reads", "rows")
_MOST = ("given_modseq", "truth_modseq", "truth_newest", "projected_modseq", "projected_newest")
_XORS = ("truth_first", "truth_second", "projected_first", "projected_second")
_PARTS = "kind string, key binary, " + ", ".join(f"{name} long" for name in (*_SUMS, *_MOST, *_XORS))
_RANGE = struct.Struct(">qq")
_SIDES = {IMAP_UID_TABLE: "truth", MESSAGE_ID_TABLE: "projected"}


@dataclass(frozen=True, slots=True)
class MailboxFound:
    """A mailbox as all tables have it. `has_counters`: there is a counter row; without one the counters are 0.

    `given_modseq` is the highest modSeq that James had given out before anything else was read.
    """

    mailbox: UUID
    exists: bool
    has_counters: bool
    stored: Counters
    truth: Seen
    projected: Seen
    given_modseq: int

    def computed(self, *, trust_projection: bool) -> Seen:
        """What the counters should say."""
        return self.projected if trust_projection else self.truth


@dataclass(frozen=True, slots=True)
class RangeRead:
    """A token range of a table: how many rows it had, and how often it was read."""

    table: str
    range: TokenRange
    rows: int
    reads: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Over all mailboxes that were looked at. `gone_messages` are rows of mailboxes that are not there, `gone_counters` counter rows of such."""

    mailboxes: int
    wrong: int
    inconsistent: int
    gone_messages: int
    gone_counters: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Where to read, and the mailboxes (16 bytes each) that count, or None for all."""

    settings: Settings
    only: frozenset[bytes] | None = None


class Scanned:
    """What a scan found, in Spark's memory and on its disks until `close`."""

    def __init__(self, spark: SparkSession, what: Scan, keys: Sequence[Key], *, trust_projection: bool, pause: Callable[[], None]) -> None:
        """Read. The given modSeqs come first, then `pause`, in which what had taken one comes to its end."""

        def read(batches: Iterator[Sequence[Key]]) -> Iterator[pa.RecordBatch]:
            return _read(what, batches)

        self._side = "projected" if trust_projection else "truth"
        given, others = given_first(keys)
        parts = frame_of_keys(spark, others, read, _PARTS)
        self._given = frame_of_keys(spark, given, read, _PARTS).persist() if given else None
        if self._given is not None:
            self._given.count()
            parts = parts.union(self._given)
        pause()
        self._frame = joined(parts).persist()

    def ranges(self) -> list[RangeRead]:
        """Every range that was read."""
        from pyspark.sql import functions as fn

        rows = self._frame.where(fn.col("kind") != _MAILBOX).select("kind", "key", "rows", "reads").collect()
        return [RangeRead(row["kind"], _RANGE.unpack(row["key"]), row["rows"], row["reads"]) for row in rows]

    @cached_property
    def totals(self) -> Totals:
        """The sums over all mailboxes."""
        from pyspark.sql import functions as fn

        sums = {
            "mailboxes": _exists().cast("long"),
            "wrong": self._wrong().cast("long"),
            "inconsistent": _inconsistent().cast("long"),
            "gone_messages": fn.when(~_exists(), fn.col(f"{self._side}_count")),
            "gone_counters": (~_exists() & (fn.col("counters") > 0)).cast("long"),
        }
        row = self._of_mailboxes().agg(*(fn.coalesce(fn.sum(column), fn.lit(0)).alias(name) for name, column in sums.items())).collect()[0]
        return Totals(**row.asDict())

    def wrong(self) -> Iterator[MailboxFound]:
        """Mailboxes whose counters are not what was counted, a partition at a time."""
        return (_found(row) for row in _rows(self._of_mailboxes().where(self._wrong()), self.totals.wrong))

    def inconsistent(self) -> dict[bytes, bool]:
        """Mailboxes (16 bytes each) in which the two tables differ, and those that are gone and have messages -> whether it is gone."""
        frame = self._of_mailboxes().where(_inconsistent()).select("key", (~_exists()).alias("gone"))
        return {bytes(row["key"]): row["gone"] for row in _rows(frame, self.totals.inconsistent)}

    def close(self) -> None:
        """Give the memory back."""
        for frame in (self._frame, self._given):
            if frame is not None:
                frame.unpersist()

    def _of_mailboxes(self) -> DataFrame:
        from pyspark.sql import functions as fn

        return self._frame.where(fn.col("kind") == _MAILBOX)

    def _wrong(self) -> Column:
        from pyspark.sql import functions as fn

        count, unseen = (fn.col(f"{self._side}_{name}") != fn.col(f"stored_{name}") for name in ("count", "unseen"))
        return _exists() & (count | unseen)


def _rows(frame: DataFrame, count: int) -> Iterable[Row]:
    """The rows of a frame that has `count`: at once when they are few, for each partition by itself is a job of its own."""
    if not count:
        return ()
    found: Iterable[Row] = frame.collect() if count <= _FEW else frame.toLocalIterator()
    return found


def given_first(keys: Sequence[Key]) -> tuple[list[Key], list[Key]]:
    """The keys of given modSeqs, and all others."""
    return [key for key in keys if key[0] == MODSEQ], [key for key in keys if key[0] != MODSEQ]


def joined(parts: DataFrame) -> DataFrame:
    """One row a mailbox (and a range) of the parts that tasks gave: a full outer join of all tables, as sums."""
    from pyspark.sql import functions as fn

    sums = [fn.sum(name).alias(name) for name in _SUMS]
    most = [fn.max(name).alias(name) for name in _MOST]
    xors = [fn.bit_xor(name).alias(name) for name in _XORS]
    return parts.groupBy("kind", "key").agg(*sums, *most, *xors)


def _exists() -> Column:
    from pyspark.sql import functions as fn

    return fn.col("mailboxes") > 0


def _inconsistent() -> Column:
    """Whether truth and projection differ; only for scans that read both."""
    from pyspark.sql import functions as fn

    differ = [fn.col(f"truth_{name}") != fn.col(f"projected_{name}") for name in ("count", "first", "second")]
    return differ[0] | differ[1] | differ[2] | (~_exists() & (fn.col("truth_count") > 0))


def _found(row: Row) -> MailboxFound:
    def seen(side: str) -> Seen:
        return Seen(*(row[f"{side}_{name}"] for name in ("count", "unseen", "modseq", "newest", "first", "second")))

    stored = Counters(row["stored_count"], row["stored_unseen"])
    return MailboxFound(UUID(bytes=bytes(row["key"])), row["mailboxes"] > 0, row["counters"] > 0, stored, seen("truth"), seen("projected"), row["given_modseq"])


def _read(what: Scan, batches: Iterator[Sequence[Key]]) -> Iterator[pa.RecordBatch]:
    """The work of one task."""
    stores = stores_of(what.settings)
    for batch in batches:
        for table, keys in groupby(sorted(batch), key=lambda key: key[0]):
            yield from _table(stores, what, table, [(low, high) for _, low, high in keys])


def _table(stores: Stores, what: Scan, table: str, ranges: Sequence[TokenRange]) -> Iterator[pa.RecordBatch]:
    layout = _layout(stores, table)
    rows = dict.fromkeys(ranges, 0)
    chunk = Chunk()
    for asked, page in stores.packed.pages(stores.mailboxes.scan(table), ranges, _READS_IN_FLIGHT):
        rows[asked[0], asked[1]] += page.rows  # type: ignore[index]
        chunk.add(decode(page, layout))
        if chunk.rows >= _CHUNK:
            yield from _sums(stores, table, chunk.take(), what.only)
    yield from _sums(stores, table, chunk.take(), what.only)
    yield _batch(table, [_RANGE.pack(*each) for each in ranges], {"rows": list(rows.values()), "reads": [1] * len(rows)})


def _layout(stores: Stores, table: str) -> Layout:
    if table == MAILBOX:
        return Layout([("mailboxid", UUID_WIDTH)])
    if table == MODSEQ:
        return Layout([("mailboxid", UUID_WIDTH), ("nextmodseq", LONG)])
    if table == MAILBOX_COUNTERS:
        return Layout([("mailboxid", UUID_WIDTH), ("count", LONG), ("unseen", LONG)])
    return layout_of(stores.mailboxes.message_columns)


class Chunk:
    """Columns of pages, put together until they are worth a look."""

    def __init__(self) -> None:
        self.rows = 0
        self._pages: list[Any] = []

    def add(self, columns: Any) -> None:
        """One page's columns."""
        self._pages.append(columns)
        self.rows += len(next(iter(columns.values())))

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """All columns so far; the chunk is empty then."""
        import numpy as np

        pages, self._pages, self.rows = self._pages, [], 0
        return {name: np.concatenate([page[name] for page in pages]) for name in pages[0]} if pages else {}


class Groups:
    """Rows grouped by mailbox: `order` sorts them, `starts` are where each mailbox's begin, `keys` the mailboxes as 16 bytes."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        import numpy as np

        high, low = columns["mailboxid.high"], columns["mailboxid.low"]
        self.order = np.lexsort((low, high))
        high, low = high[self.order], low[self.order]
        changes = np.flatnonzero((high[1:] != high[:-1]) | (low[1:] != low[:-1])) + 1
        self.starts = np.concatenate([np.zeros(1, np.int64), changes])
        packed = np.stack([high[self.starts], low[self.starts]], axis=1).astype(">u8").tobytes()
        self.keys = [packed[at : at + UUID_WIDTH] for at in range(0, len(packed), UUID_WIDTH)]

    def reduced(self, how: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """One number a mailbox."""
        found: npt.NDArray[np.int64] = how.reduceat(values[self.order], self.starts)
        return found


def _sums(stores: Stores, table: str, columns: dict[str, npt.NDArray[Any]], only: frozenset[bytes] | None) -> Iterator[pa.RecordBatch]:
    """What the rows come to, by mailbox."""
    import numpy as np

    if not columns or not len(columns["mailboxid.high"]):
        return
    groups = Groups(columns)
    ones = np.ones(len(groups.order), np.int64)
    if table in _SIDES:
        first, second = fingerprints(columns, stores.mailboxes.flags)
        side = _SIDES[table]
        found = {
            f"{side}_count": groups.reduced(np.add, ones),
            f"{side}_unseen": groups.reduced(np.add, (columns[SEEN] == 0).astype(np.int64)),
            f"{side}_modseq": groups.reduced(np.maximum, columns["modseq"]),
            f"{side}_newest": groups.reduced(np.maximum, message_times(columns)),
            f"{side}_first": groups.reduced(np.bitwise_xor, first),
            f"{side}_second": groups.reduced(np.bitwise_xor, second),
        }
    elif table == MAILBOX:
        found = {"mailboxes": groups.reduced(np.add, ones)}
    elif table == MODSEQ:
        found = {"given_modseq": groups.reduced(np.maximum, columns["nextmodseq"])}
    else:
        stored = {f"stored_{name}": groups.reduced(np.add, columns[name]) for name in ("count", "unseen")}
        found = {"counters": groups.reduced(np.add, ones), **stored}
    kept = range(len(groups.keys)) if only is None else [at for at, key in enumerate(groups.keys) if key in only]
    if kept:
        yield _batch(_MAILBOX, [groups.keys[at] for at in kept], {name: values[np.array(kept)] for name, values in found.items()})


def _batch(kind: str, keys: Sequence[bytes], found: dict[str, Any]) -> pa.RecordBatch:
    """Rows of one kind; what is not given is 0."""
    import numpy as np
    import pyarrow as pa

    zeros = np.zeros(len(keys), np.int64)
    columns = {name: pa.array(found.get(name, zeros), pa.int64()) for name in (*_SUMS, *_MOST, *_XORS)}
    return pa.RecordBatch.from_pydict({"kind": pa.array([kind] * len(keys), pa.string()), "key": pa.array(keys, pa.binary()), **columns})
