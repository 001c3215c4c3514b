"""Reads the mailbox tables with Spark and finds wrong counters and differing rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cached_property, partial, reduce
from itertools import chain
from operator import or_
from typing import TypeAlias
from uuid import UUID

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from mailslice.duties.counter_repair import planned, scan_task
from mailslice.duties.counter_repair.differences import ComparisonSpec, differences
from mailslice.duties.counter_repair.fingerprints import MessageDigest
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.planned import Drift, ScanFacts
from mailslice.duties.counter_repair.scan_task import Key, ScanSpec
from mailslice.engine.errors import translated_errors
from mailslice.engine.frames import frame_of_keys
from mailslice.engine.row_files import RowFile
from mailslice.maintenance.run import Run
from mailslice.model import names
from mailslice.model.errors import TryAgain
from mailslice.stores.cassandra.mailboxes import Counters
from mailslice.stores.cassandra.ranges import TokenRange, holes, token_ranges

_MAX_COLLECTED = 100_000


@dataclass(frozen=True, slots=True)
class RangeRead:
    """A token range of a table: the number of its rows, and how often it was read.

    `rows` excludes rows of the projection without a message id.
    """

    table: str
    range: TokenRange
    rows: int
    reads: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers over all scanned mailboxes.

    `orphan_messages` and `orphan_counters` are message rows and counter rows of mailboxes that do
    not exist. `without_id` are rows of the projection without a message id in mailboxes that exist.
    `truth` are rows of the truth.
    """

    mailboxes: int
    wrong: int
    inconsistent: int
    orphan_messages: int
    orphan_counters: int
    without_id: int
    truth: int


class Scanned:
    """The result of a scan, in Spark's memory and on its disks until `close`."""

    def __init__(
        self,
        spark: SparkSession,
        spec: ScanSpec,
        keys: Sequence[Key],
        *,
        trust_projection: bool,
        pause: Callable[[], None],
    ) -> None:
        """Reads the given modSeqs first. During `pause` the appends that took them are finished."""
        work, columns = partial(scan_task.read, spec), scan_task.PARTIAL_SUMS
        self._side = "projected" if trust_projection else "truth"
        modseq_keys, others = modseq_keys_first(keys)
        parts = frame_of_keys(spark, others, work, columns)
        self._modseqs = (
            frame_of_keys(spark, modseq_keys, work, columns).persist() if modseq_keys else None
        )
        if self._modseqs is not None:
            self._modseqs.count()
            parts = parts.union(self._modseqs)
        pause()
        self._frame = joined(parts).persist()

    @cached_property
    def _reads(self) -> list[Row]:
        rows = self._frame.where(fn.col("kind") != scan_task.OF_MAILBOX)
        collected: list[Row] = rows.select("kind", "key", "rows", "reads").collect()
        return collected

    def ranges(self) -> list[RangeRead]:
        return [
            RangeRead(row["kind"], scan_task.RANGE.unpack(row["key"]), row["rows"], row["reads"])
            for row in self._reads
            if row["kind"] != scan_task.OF_FILE
        ]

    def truth(self) -> list[RowFile]:
        keys = (row["key"] for row in self._reads if row["kind"] == scan_task.OF_FILE)
        return [scan_task.file_of(key) for key in keys]

    @cached_property
    def totals(self) -> Totals:
        sums = {
            "mailboxes": _exists().cast("long"),
            "wrong": self._wrong().cast("long"),
            "inconsistent": _inconsistent().cast("long"),
            "orphan_messages": fn.when(
                ~_exists(), fn.col(f"{self._side}_count") + fn.col("projected_without_id")
            ),
            "orphan_counters": (~_exists() & (fn.col("counters") > 0)).cast("long"),
            "without_id": fn.when(_exists(), fn.col("projected_without_id")),
            "truth": fn.col("truth_count"),
        }
        columns = (
            fn.coalesce(fn.sum(column), fn.lit(0)).alias(name) for name, column in sums.items()
        )
        return Totals(**self._of_mailboxes().agg(*columns).collect()[0].asDict())

    def wrong(self) -> Iterator[Drift]:
        """Mailboxes with wrong counters, one Spark partition at a time if they are many."""
        rows = _rows(self._of_mailboxes().where(self._wrong()), self.totals.wrong)
        return (drift_of(row, self._side) for row in rows)

    def inconsistent(self) -> dict[bytes, bool]:
        """Mailboxes (16 bytes each) whose tables differ, or that do not exist and have messages.

        Each maps to whether it does not exist.
        """
        orphaned = (~_exists()).alias("gone")
        frame = self._of_mailboxes().where(_inconsistent()).select("key", orphaned)
        return {bytes(row["key"]): row["gone"] for row in _rows(frame, self.totals.inconsistent)}

    def close(self) -> None:
        for frame in (self._frame, self._modseqs):
            if frame is not None:
                frame.unpersist()

    def _of_mailboxes(self) -> DataFrame:
        return self._frame.where(fn.col("kind") == scan_task.OF_MAILBOX)

    def _wrong(self) -> Column:
        count, unseen = (
            fn.col(f"{self._side}_{name}") != fn.col(f"stored_{name}")
            for name in ("count", "unseen")
        )
        return _exists() & (count | unseen)


def _rows(frame: DataFrame, count: int) -> Iterable[Row]:
    """The `count` rows of a frame. A few are collected at once: one partition at a time is a job
    for each partition.
    """
    if not count:
        return ()
    rows: Iterable[Row] = frame.collect() if count <= _MAX_COLLECTED else frame.toLocalIterator()
    return rows


def keys_of(tables: Sequence[str], ranges: Sequence[TokenRange]) -> list[Key]:
    """Keys table by table, so each task gets ranges of all tables: two tables have most rows."""
    return [(table, low, high) for table in tables for low, high in ranges]


def modseq_keys_first(keys: Sequence[Key]) -> tuple[list[Key], list[Key]]:
    modseq_keys = [key for key in keys if key[0] == names.MODSEQ]
    return modseq_keys, [key for key in keys if key[0] != names.MODSEQ]


def joined(parts: DataFrame) -> DataFrame:
    """The sums of all tasks, one row a mailbox and one a range: an outer join of all tables."""
    sums = [fn.sum(name).alias(name) for name in scan_task.SUMS]
    maxima = [fn.max(name).alias(name) for name in scan_task.MAXIMA]
    xors = [fn.bit_xor(name).alias(name) for name in scan_task.XORS]
    return parts.groupBy("kind", "key").agg(*sums, *maxima, *xors)


def _exists() -> Column:
    return fn.col("mailboxes") > 0


def _inconsistent() -> Column:
    """Whether truth and projection differ, or rows have no message id. Needs a scan of both."""
    differ = (
        fn.col(f"truth_{name}") != fn.col(f"projected_{name}")
        for name in ("count", "first", "second")
    )
    without_id = fn.col("projected_without_id") > 0
    return reduce(or_, differ, without_id | (~_exists() & (fn.col("truth_count") > 0)))


def drift_of(row: Row, side: str) -> Drift:
    """The drift of a joined row. `side`: the table whose messages count."""
    digest = MessageDigest(*(row[f"{side}_{part.name}"] for part in fields(MessageDigest)))
    stored = Counters(row["stored_count"], row["stored_unseen"])
    return Drift.of(UUID(bytes=bytes(row["key"])), stored, digest, row["given_modseq"])


Sleep: TypeAlias = Callable[[float], None]
_LEAST_RANGES = 32
_OPERATION = timedelta(seconds=2)
"""Longer than the time from James giving a modSeq to the last write of that message."""


@dataclass(frozen=True, slots=True)
class CounterSurvey:
    """The facts of a scan, and the files with its results. `inconsistencies`: rows by kind."""

    facts: ScanFacts
    totals: Totals
    drifts: RowFile
    differences: tuple[RowFile, ...]
    inconsistencies: dict[str, int]

    def message(self, *, absent: int, has_modseqs: bool) -> str:
        """The plan's message. `absent`: how many requested mailboxes and users do not exist."""
        words = [f"{self.totals.wrong} of {self.totals.mailboxes} mailboxes have wrong counters"]
        differ = [f"{count} {kind}" for kind, count in self.inconsistencies.items() if count]
        words.append(
            f"inconsistencies: {', '.join(differ)}" if differ else "no inconsistency was found"
        )
        if absent:
            words.append(f"{absent} of the given mailboxes and users are not there")
        if not has_modseqs:
            words.append("James has no table modseq: only its messages show that a mailbox moves")
        return "; ".join(words)


def survey(
    run: Run,
    sleep: Sleep,
    *,
    scan: Callable[..., Scanned] = Scanned,
    compare: Callable[..., tuple[tuple[RowFile, ...], dict[str, int]]] = differences,
    operation: timedelta = _OPERATION,
) -> CounterSurvey:
    """Scan all mailboxes, or those of the params. Drifts and differences go to files."""
    params, session = run.params(Params), run.session()
    trust = params.trust_projection
    ranges = token_ranges(run.stores.cassandra, _LEAST_RANGES)
    keys = keys_of(_tables(run, params), ranges)
    pause = min(params.settle, operation).total_seconds()
    spec = ScanSpec(run.settings, run.folder.artifacts, run.folder.name, _only(run, params))
    with translated_errors():
        scanned = scan(session, spec, keys, trust_projection=trust, pause=lambda: sleep(pause))
    try:
        with translated_errors():
            reads, totals = scanned.ranges(), scanned.totals
            drifts = run.write_rows("drifts", scanned.wrong(), Drift)
            differing, truth = ({} if trust else scanned.inconsistent()), scanned.truth()
    finally:
        scanned.close()
    files: tuple[RowFile, ...] = ()
    counts = dict.fromkeys(planned.KINDS, 0)
    if differing:
        if sum(file.rows for file in truth) != totals.truth:  # a repeated task named a new file
            raise TryAgain("a Spark executor was lost during the scan: plan again")
        deleted = frozenset(mailbox for mailbox, is_deleted in differing.items() if is_deleted)
        comparison = ComparisonSpec(
            run.settings, run.folder.artifacts, run.folder.name, frozenset(differing), deleted
        )
        files, counts = compare(session, comparison, truth)
    if trust:
        counts = {
            planned.WITHOUT_ID: totals.without_id,
            planned.MAILBOX_MISSING: totals.orphan_messages,
        }
    counts[planned.COUNTER_ORPHANED] = totals.orphan_counters
    return CounterSurvey(_facts(keys, reads, totals), totals, drifts, files, counts)


def _tables(run: Run, params: Params) -> list[str]:
    """The tables to read: the truth unless distrusted, modSeqs only where James keeps them."""
    tables = [names.MAILBOX, names.MESSAGE_ID_TABLE, names.MAILBOX_COUNTERS]
    tables += [] if params.trust_projection else [names.IMAP_UID_TABLE]
    return tables + ([names.MODSEQ] if run.stores.mailboxes.has_modseqs else [])


def _only(run: Run, params: Params) -> frozenset[bytes] | None:
    """The requested mailboxes and those of the requested users, 16 bytes each; None for all."""
    if not params.mailboxes and not params.users:
        return None
    owned = run.stores.mailboxes.of_users(params.users) if params.users else ()
    return frozenset(mailbox.bytes for mailbox in chain(map(UUID, params.mailboxes), owned))


def _facts(keys: Sequence[Key], reads: Sequence[RangeRead], totals: Totals) -> ScanFacts:
    """The gate's facts: whether every range of every table was read once, and the counts.

    `projected` excludes rows of the projection without a message id.
    """
    by_table = {table: [one for one in reads if one.table == table] for table, _, _ in keys}
    rows = {table: sum(one.rows for one in table_reads) for table, table_reads in by_table.items()}
    return ScanFacts(
        ranges=len(keys),
        read=len(reads),
        twice=sum(one.reads > 1 for one in reads),
        holes=sum(holes(one.range for one in table_reads) for table_reads in by_table.values()),
        mailboxes=totals.mailboxes,
        messages=rows.get(names.IMAP_UID_TABLE, 0),
        projected=rows.get(names.MESSAGE_ID_TABLE, 0),
    )
