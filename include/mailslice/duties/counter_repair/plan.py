"""Step 1: read the four tables, find the mailboxes whose counters drifted and the rows in which the tables differ; write it all down. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mailslice.duties.counter_repair.differences import (
    COUNTER_GONE,
    KINDS,
    MAILBOX_GONE,
    REPAIRABLE,
    WITHOUT_ID,
    Comparison,
    differences,
)
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.plan_file import Drift, Plan, ScanFacts, drift_schema
from mailslice.duties.counter_repair.reading import Key, Scan
from mailslice.duties.counter_repair.rows_file import (
    PARTS,
    PlanFile,
    RowsWriter,
    read_rows,
    table_of,
)
from mailslice.duties.counter_repair.scan import MailboxFound, RangeRead, Scanned, Totals
from mailslice.duty.context import StepContext
from mailslice.model import crash
from mailslice.model.names import (
    IMAP_UID_TABLE,
    MAILBOX,
    MAILBOX_COUNTERS,
    MESSAGE_ID_TABLE,
    MODSEQ,
)
from mailslice.spark.failures import translated
from mailslice.stores.cassandra.ranges import TokenRange, holes, token_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BULKY = ("decided",)
_LEAST_RANGES = 32
_OPERATION = timedelta(seconds=2)
"""Longer than James takes from giving a modSeq to the last write of that message."""
_SAMPLED = 20
_AT_ONCE = 10_000


def run(context: StepContext, *, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """The plan, written to plan/ and, by the road, to plan.json. Raises Refused when James' tables are not there."""
    params, stores = context.params(Params), context.stores
    stores.mailboxes.require(truth=not params.trust_projection)
    made_at = context.clock()
    _forget_earlier_try(context)
    ranges = token_ranges(stores.cassandra, _LEAST_RANGES)
    keys: list[Key] = [
        (table, low, high) for low, high in ranges for table in _tables(context, params)
    ]
    found = _found(context, params, keys, ranges, sleep)
    decided = (
        params.settle,
        params.trust_projection,
        params.repair_projection,
        found.drifts,
        found.files,
        found.inconsistencies,
        _facts(keys, found),
    )
    plan = Plan(context.request.run, made_at, context.clock(), *decided)
    crash.point("plan:after-scan")
    absent = sum(1 for each in params.mailboxes if not stores.mailboxes.exists(UUID(each)))
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": found.drifts.rows,
        "processedMailboxes": found.totals.mailboxes,
        "wrong": found.totals.wrong,
        "inconsistencies": found.inconsistencies,
        "projectionPlanned": _repairable(found.inconsistencies) if params.repair_projection else 0,
        "largest": found.largest,
        "sample": _sample(context, found.files),
        "messages": plan.scan.messages,
        "projectedMessages": plan.scan.projected,
        "reads": {
            "wanted": plan.scan.ranges,
            "read": plan.scan.read,
            "twice": plan.scan.twice,
            "holes": plan.scan.holes,
        },
        "message": _message(found, absent=absent, has_modseqs=stores.mailboxes.has_modseqs),
    }


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read, and what was written down of it."""

    reads: list[RangeRead]
    totals: Totals
    largest: list[dict[str, Any]]
    drifts: PlanFile
    files: tuple[PlanFile, ...]
    inconsistencies: dict[str, int]

    def rows(self, table: str) -> int:
        """Rows of a table; those without a message id do not count."""
        return sum(each.rows for each in self.reads if each.table == table)


def _tables(context: StepContext, params: Params) -> list[str]:
    """The tables to read: the truth only when it is wanted, given modSeqs only where James keeps them."""
    optional = [
        *([] if params.trust_projection else [IMAP_UID_TABLE]),
        *([MODSEQ] if context.stores.mailboxes.has_modseqs else []),
    ]
    return [MAILBOX, MESSAGE_ID_TABLE, MAILBOX_COUNTERS, *optional]


def _found(
    context: StepContext,
    params: Params,
    keys: Sequence[Key],
    ranges: Sequence[TokenRange],
    sleep: Callable[[float], None],
) -> _Found:
    trust, spark = params.trust_projection, context.spark()
    what = Scan(context.settings, _only(context, params))
    with translated():
        scanned = Scanned(
            spark,
            what,
            keys,
            trust_projection=trust,
            pause=lambda: sleep(min(params.settle, _OPERATION).total_seconds()),
        )
    try:
        with translated():
            reads, totals = scanned.ranges(), scanned.totals
            largest, drifts = _write_drifts(context, scanned.wrong(), trust_projection=trust)
            differing = {} if trust else scanned.inconsistent()
    finally:
        scanned.close()
    if trust:
        counted = {
            WITHOUT_ID: totals.without_id,
            MAILBOX_GONE: totals.gone_messages,
            COUNTER_GONE: totals.gone_counters,
        }
        return _Found(reads, totals, largest, drifts, (), counted)
    files, inconsistencies = _differences(context, spark, differing, ranges)
    return _Found(
        reads,
        totals,
        largest,
        drifts,
        files,
        {**inconsistencies, COUNTER_GONE: totals.gone_counters},
    )


def _facts(keys: Sequence[Key], found: _Found) -> ScanFacts:
    """For the gate: whether every range of every table was read, once; and what was counted."""
    tables = {table for table, _, _ in keys}
    return ScanFacts(
        ranges=len(keys),
        read=len(found.reads),
        twice=sum(each.reads > 1 for each in found.reads),
        holes=sum(
            holes(each.range for each in found.reads if each.table == table) for table in tables
        ),
        mailboxes=found.totals.mailboxes,
        messages=found.rows(IMAP_UID_TABLE),
        projected=found.rows(MESSAGE_ID_TABLE),
    )


def _only(context: StepContext, params: Params) -> frozenset[bytes] | None:
    """The mailboxes that were asked for, as 16 bytes; None for all. Both lists together add up."""
    if not params.mailboxes and not params.users:
        return None
    named = {UUID(each) for each in params.mailboxes}
    return frozenset(
        each.bytes
        for each in named
        | (context.stores.mailboxes.of_users(params.users) if params.users else set())
    )


def _write_drifts(
    context: StepContext, found: Iterator[MailboxFound], *, trust_projection: bool
) -> tuple[list[dict[str, Any]], PlanFile]:
    """The file of the mailboxes to correct, and the largest of them for the report."""
    writer = RowsWriter(
        context.folder.artifacts, context.folder.file(PARTS), "drifts", drift_schema(), always=True
    )
    largest: list[Drift] = []
    drifts = (
        Drift(
            each.mailbox,
            each.has_counters,
            each.stored,
            each.computed(trust_projection=trust_projection),
            each.given_modseq,
        )
        for each in found
    )
    while chunk := list(islice(drifts, _AT_ONCE)):
        writer.add(table_of([drift.row() for drift in chunk], drift_schema()))
        largest = sorted([*largest, *chunk], key=_size)[:_SAMPLED]
    file = writer.close()
    if file is None:
        raise RuntimeError("a writer that always writes gave no file")
    return [shown(drift) for drift in largest], file


def _size(drift: Drift) -> tuple[int, str]:
    return -max(abs(drift.add.count), abs(drift.add.unseen)), str(drift.mailbox)


def shown(drift: Drift) -> dict[str, Any]:
    """A drift as reports show it: ids of mailboxes only, nobody's name."""
    return {
        "mailbox": str(drift.mailbox),
        "stored": {"count": drift.stored.count, "unseen": drift.stored.unseen},
        "computed": {"count": drift.seen.count, "unseen": drift.seen.unseen},
        "drift": {"count": -drift.add.count, "unseen": -drift.add.unseen},
    }


def _differences(
    context: StepContext,
    spark: SparkSession,
    differing: dict[bytes, bool],
    ranges: Sequence[TokenRange],
) -> tuple[tuple[PlanFile, ...], dict[str, int]]:
    if not differing:
        return (), dict.fromkeys(KINDS, 0)
    gone = frozenset(mailbox for mailbox, is_gone in differing.items() if is_gone)
    what = Comparison(
        context.settings,
        frozenset(differing),
        gone,
        context.folder.artifacts,
        context.folder.file(PARTS),
    )
    files, counts = differences(spark, what, ranges)
    named = {file.name for file in files}
    for name in context.folder.artifacts.files(context.folder.file(PARTS)):
        # A task that was tried again has left the file of its first try: only what the summaries name is the plan.
        if (
            name.rpartition("/")[2].startswith("differences-")
            and name.rpartition("/")[2] not in named
        ):
            context.folder.artifacts.remove(name)
    return files, counts


def _repairable(inconsistencies: dict[str, int]) -> int:
    return sum(inconsistencies[kind] for kind in REPAIRABLE)


def _sample(context: StepContext, files: Sequence[PlanFile]) -> list[dict[str, Any]]:
    """A few of the rows that differ, for a person to look at; all are in the plan's files."""
    rows = (row for file in files for row in read_rows(file, context.folder))
    return [
        {name: row[name] for name in ("kind", "mailbox", "uid", "message")}
        for row in islice(rows, _SAMPLED)
    ]


def _forget_earlier_try(context: StepContext) -> None:
    """A plan step that is tried again starts from nothing."""
    artifacts, folder = context.folder.artifacts, context.folder
    for file in artifacts.files(folder.name):
        name = file.removeprefix(folder.name + "/")
        if name.startswith(PARTS + "/") or name in {
            "plan.json",
            "check.json",
            "applied.json",
            "verify.json",
            "progress.json",
            "after.json",
        }:
            artifacts.remove(file)
    artifacts.folder(folder.file(PARTS))


def _message(found: _Found, *, absent: int, has_modseqs: bool) -> str:
    """What the plan comes to, in words."""
    words = [f"{found.totals.wrong} of {found.totals.mailboxes} mailboxes have wrong counters"]
    differ = [f"{count} {kind}" for kind, count in found.inconsistencies.items() if count]
    words += [f"inconsistencies: {', '.join(differ)}" if differ else "no inconsistency was found"]
    words += [f"{absent} of the given mailboxes are not there"] if absent else []
    words += (
        []
        if has_modseqs
        else ["without James' table modseq a mailbox that moves is told by its messages alone"]
    )
    return "; ".join(words)
