"""Step 1: read the four tables, find the mailboxes whose counters drifted and the rows in which the tables differ; write it all down. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mailslice.duties.counter_repair.differences import COUNTER_GONE, KINDS, MAILBOX_GONE, REPAIRABLE, Comparison, differences
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.plan_file import PARTS, Drift, Plan, PlanFile, RowsWriter, drift_schema, read_rows, table_of
from mailslice.duties.counter_repair.scan import Key, MailboxFound, Scan, Scanned, Totals
from mailslice.duty import crash
from mailslice.duty.context import StepContext
from mailslice.model.names import IMAP_UID_TABLE, MAILBOX, MAILBOX_COUNTERS, MESSAGE_ID_TABLE
from mailslice.spark.failures import translated
from mailslice.stores.cassandra.ranges import TokenRange, holes, token_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BULKY = ("decided",)
_LEAST_RANGES = 32
_SAMPLED = 20
_AT_ONCE = 10_000


def run(context: StepContext) -> dict[str, Any]:
    """The plan, written to plan/ and, by the road, to plan.json. Raises Refused when James' tables are not there."""
    params = context.params(Params)
    stores = context.stores
    stores.mailboxes.require(truth=not params.trust_projection)
    made_at = context.clock()
    only = _only(context, params)
    _forget_earlier_try(context)
    ranges = token_ranges(stores.cassandra, _LEAST_RANGES)
    tables = (MAILBOX, MESSAGE_ID_TABLE, *(() if params.trust_projection else (IMAP_UID_TABLE,)), MAILBOX_COUNTERS)
    spark: SparkSession = context.spark()
    keys: list[Key] = [(table, low, high) for low, high in ranges for table in tables]
    scanned = Scanned(spark, Scan(context.settings, tables, only), keys, trust_projection=params.trust_projection)
    try:
        with translated():
            reads = scanned.ranges()
            totals = scanned.totals()
            largest, drifts = _write_drifts(context, scanned.wrong(), trust_projection=params.trust_projection)
            differing = {} if params.trust_projection else scanned.inconsistent()
        files, inconsistencies = _differences(context, spark, differing, ranges)
    finally:
        scanned.close()
    read_at = context.clock()
    crash.point("plan:after-scan")
    inconsistencies[COUNTER_GONE] = totals.gone_counters
    if params.trust_projection:
        inconsistencies = {MAILBOX_GONE: totals.gone_messages, COUNTER_GONE: totals.gone_counters}
    plan = Plan(context.request.run, made_at, read_at, params.settle, params.trust_projection, params.repair_projection, drifts, files, inconsistencies)
    rows = {table: sum(each.rows for each in reads if each.table == table) for table in tables}
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": drifts.rows,
        "processedMailboxes": totals.mailboxes,
        "wrong": totals.wrong,
        "inconsistencies": inconsistencies,
        "projectionPlanned": _repairable(inconsistencies) if params.repair_projection else 0,
        "largest": largest,
        "sample": _sample(context, files),
        "messages": rows.get(IMAP_UID_TABLE, 0),
        "projectedMessages": rows[MESSAGE_ID_TABLE],
        "reads": {
            "wanted": len(keys),
            "read": len(reads),
            "twice": sum(each.reads > 1 for each in reads),
            "holes": sum(holes(each.range for each in reads if each.table == table) for table in tables),
        },
        "absent": sum(1 for each in params.mailboxes if not stores.mailboxes.exists(UUID(each))),
        "message": _message(totals, inconsistencies),
    }


def _only(context: StepContext, params: Params) -> frozenset[bytes] | None:
    """The mailboxes that were asked for, as 16 bytes; None for all. Both lists together add up."""
    if not params.mailboxes and not params.users:
        return None
    named = {UUID(each) for each in params.mailboxes}
    return frozenset(each.bytes for each in named | (context.stores.mailboxes.of_users(params.users) if params.users else set()))


def _write_drifts(context: StepContext, found: Iterator[MailboxFound], *, trust_projection: bool) -> tuple[list[dict[str, Any]], PlanFile]:
    """The file of the mailboxes to correct, and the largest of them for the report."""
    writer = RowsWriter(context.folder.artifacts, context.folder.file(PARTS), "drifts", drift_schema(), always=True)
    largest: list[Drift] = []
    drifts = (Drift(each.mailbox, each.has_counters, each.stored, each.computed(trust_projection=trust_projection)) for each in found)
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
    context: StepContext, spark: SparkSession, differing: dict[bytes, bool], ranges: Sequence[TokenRange]
) -> tuple[tuple[PlanFile, ...], dict[str, int]]:
    if not differing:
        return (), dict.fromkeys(KINDS, 0)
    gone = frozenset(mailbox for mailbox, is_gone in differing.items() if is_gone)
    what = Comparison(context.settings, frozenset(differing), gone, context.folder.artifacts, context.folder.file(PARTS))
    files, counts = differences(spark, what, ranges)
    named = {file.name for file in files}
    for name in context.folder.artifacts.files(context.folder.file(PARTS)):
        # A task that was tried again has left the file of its first try: only what the summaries name is the plan.
        if name.rpartition("/")[2].startswith("differences-") and name.rpartition("/")[2] not in named:
            context.folder.artifacts.remove(name)
    return files, counts


def _repairable(inconsistencies: dict[str, int]) -> int:
    return sum(inconsistencies[kind] for kind in REPAIRABLE)


def _sample(context: StepContext, files: Sequence[PlanFile]) -> list[dict[str, Any]]:
    """A few of the rows that differ, for a person to look at; all are in the plan's files."""
    rows = (row for file in files for row in read_rows(file, context.folder))
    return [{name: row[name] for name in ("kind", "mailbox", "uid", "message")} for row in islice(rows, _SAMPLED)]


def _forget_earlier_try(context: StepContext) -> None:
    """A plan step that is tried again starts from nothing."""
    artifacts, folder = context.folder.artifacts, context.folder
    for file in artifacts.files(folder.name):
        name = file.removeprefix(folder.name + "/")
        if name.startswith(PARTS + "/") or name in {"plan.json", "check.json", "applied.json", "verify.json", "progress.json"}:
            artifacts.remove(file)
    artifacts.folder(folder.file(PARTS))


def _message(totals: Totals, inconsistencies: dict[str, int]) -> str:
    """What the plan comes to, in words."""
    words = [f"{totals.wrong} of {totals.mailboxes} mailboxes have wrong counters"]
    found = [f"{count} {kind}" for kind, count in inconsistencies.items() if count]
    return "; ".join([*words, f"inconsistencies: {', '.join(found)}" if found else "no inconsistency was found"])
