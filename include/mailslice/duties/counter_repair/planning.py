"""Read the tables, find counters that drifted and rows that differ. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from mailslice.duties.counter_repair.differences import ComparisonSpec, differences
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.planned import (
    COUNTER_ORPHANED,
    KINDS,
    MAILBOX_MISSING,
    WITHOUT_ID,
    Drift,
    ScanFacts,
)
from mailslice.duties.counter_repair.reading import Key, ScanSpec
from mailslice.duties.counter_repair.scan import RangeRead, Scanned, Totals
from mailslice.engine.errors import translated
from mailslice.maintenance.row_file import RowFile
from mailslice.maintenance.run import Run
from mailslice.model.names import (
    IMAP_UID_TABLE,
    MAILBOX,
    MAILBOX_COUNTERS,
    MESSAGE_ID_TABLE,
    MODSEQ,
)
from mailslice.stores.cassandra.ranges import holes, token_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Sleep: TypeAlias = Callable[[float], None]
_LEAST_RANGES = 32
_OPERATION = timedelta(seconds=2)
"""Longer than James takes from giving a modSeq to the last write of that message."""


@dataclass(frozen=True, slots=True)
class CounterSurvey:
    """What was read, and what was written down of it. `inconsistencies`: rows by kind."""

    facts: ScanFacts
    totals: Totals
    drifts: RowFile
    differences: tuple[RowFile, ...]
    inconsistencies: dict[str, int]

    def message(self, *, absent: int, has_modseqs: bool) -> str:
        """What it comes to, in words. `absent`: mailboxes that were named and are not there."""
        words = [f"{self.totals.wrong} of {self.totals.mailboxes} mailboxes have wrong counters"]
        differ = [f"{count} {kind}" for kind, count in self.inconsistencies.items() if count]
        words.append(
            f"inconsistencies: {', '.join(differ)}" if differ else "no inconsistency was found"
        )
        if absent:
            words.append(f"{absent} of the given mailboxes are not there")
        if not has_modseqs:
            words.append(
                "without James' table modseq a mailbox that moves is told by its messages alone"
            )
        return "; ".join(words)


def survey(run: Run, sleep: Sleep) -> CounterSurvey:
    """All mailboxes, or those that were asked for; drifts and differences go to files."""
    params, spark = run.params(Params), run.spark()
    trust = params.trust_projection
    ranges = token_ranges(run.stores.cassandra, _LEAST_RANGES)
    keys = [(table, low, high) for low, high in ranges for table in _tables(run, params)]
    pause = min(params.settle, _OPERATION).total_seconds()
    spec = ScanSpec(run.settings, run.folder.artifacts, run.folder.name, _only(run, params))
    with translated():
        scanned = Scanned(spark, spec, keys, trust_projection=trust, pause=lambda: sleep(pause))
    try:
        with translated():
            reads, totals = scanned.ranges(), scanned.totals
            drifts = run.write_rows("drifts", scanned.wrong(), Drift)
            differing, truth = ({} if trust else scanned.inconsistent()), scanned.truth()
    finally:
        scanned.close()
    files, counts = _differences(run, spark, differing, truth)
    if trust:
        counts = {WITHOUT_ID: totals.without_id, MAILBOX_MISSING: totals.orphan_messages}
    counts[COUNTER_ORPHANED] = totals.orphan_counters
    return CounterSurvey(_facts(keys, reads, totals), totals, drifts, files, counts)


def _tables(run: Run, params: Params) -> list[str]:
    """The tables to read: the truth unless distrusted, modSeqs only where James keeps them."""
    tables = [MAILBOX, MESSAGE_ID_TABLE, MAILBOX_COUNTERS]
    tables += [] if params.trust_projection else [IMAP_UID_TABLE]
    return tables + ([MODSEQ] if run.stores.mailboxes.has_modseqs else [])


def _only(run: Run, params: Params) -> frozenset[bytes] | None:
    """The mailboxes that were asked for, as 16 bytes; None for all. Both lists together add up."""
    if not params.mailboxes and not params.users:
        return None
    owned = run.stores.mailboxes.of_users(params.users) if params.users else ()
    return frozenset(mailbox.bytes for mailbox in chain(map(UUID, params.mailboxes), owned))


def _differences(
    run: Run, spark: SparkSession, differing: dict[bytes, bool], truth: Sequence[RowFile]
) -> tuple[tuple[RowFile, ...], dict[str, int]]:
    if not differing:
        return (), dict.fromkeys(KINDS, 0)
    deleted = frozenset(mailbox for mailbox, is_deleted in differing.items() if is_deleted)
    location, folder = run.folder.artifacts, run.folder.name
    spec = ComparisonSpec(run.settings, location, folder, frozenset(differing), deleted)
    return differences(spark, spec, truth)


def _facts(keys: Sequence[Key], reads: Sequence[RangeRead], totals: Totals) -> ScanFacts:
    """For the gate: whether every range of every table was read, once; and what was counted.

    Rows of the projection without a message id do not count.
    """
    by_table = {table: [one for one in reads if one.table == table] for table, _, _ in keys}
    rows = {table: sum(one.rows for one in table_reads) for table, table_reads in by_table.items()}
    return ScanFacts(
        ranges=len(keys),
        read=len(reads),
        twice=sum(one.reads > 1 for one in reads),
        holes=sum(holes(one.range for one in table_reads) for table_reads in by_table.values()),
        mailboxes=totals.mailboxes,
        messages=rows.get(IMAP_UID_TABLE, 0),
        projected=rows.get(MESSAGE_ID_TABLE, 0),
    )
