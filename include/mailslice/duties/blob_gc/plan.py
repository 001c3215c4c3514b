"""Step 1: list the bucket, then read every reference, find the blobs that nothing refers to, and write them down. Changes nothing.

The listing comes first: a blob that is listed, and referred to before the references are read, is found to be referred to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mailslice.codec.blob_ids import BlobIds
from mailslice.duties.blob_gc import candidates, inventory, listing
from mailslice.duties.blob_gc.classify import DOUBTFUL, KINDS, ORPHAN, UNKNOWN, Rules, Tally
from mailslice.duties.blob_gc.kept import KeptBlobs
from mailslice.duties.blob_gc.params import Params
from mailslice.duties.blob_gc.plan_files import DELETE, FOLDER
from mailslice.duties.blob_gc.plan_note import Plan
from mailslice.duties.blob_gc.reading import ALIKE, read_kept, read_planned, read_references
from mailslice.duties.blob_gc.sources import Source, sources_of, unread_columns, with_rows
from mailslice.duties.blob_gc.spent import Spent
from mailslice.duties.blob_gc.writing import write_plan
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.model import crash
from mailslice.model.errors import BadSetting, ClockSkew, PlanRefused
from mailslice.model.settings import Settings
from mailslice.spark.frames import Session
from mailslice.spark.key_sets import (
    KEY,
    collected,
    missing_from,
    referenced,
    unreferenced,
    with_known,
)
from mailslice.spark.read_once import Frame
from mailslice.stores.blobs.bulk import BulkBlobs
from mailslice.stores.blobs.key_ranges import KeyRange, uncovered

BULKY = ("decided", "sources", "samples", "byGeneration", "byAge")
_LEAST_SKEW = timedelta(seconds=5)
_CLEANUP, _CLEANED, _RUNS = "queue_cleanup", ("enqueuedMailsV3", "enqueuedMailsV4"), 10_000
"""The ledger tells what cleanups took from the view since the last run: those references did not get lost."""
_SAME = (KEY, "size", "modified_s")


def run(context: StepContext) -> dict[str, Any]:
    """The plan, written to plan/ and, by the road, to plan.json."""
    params, settings = context.params(Params), context.settings
    with KeptBlobs(settings) as kept:
        _require_bucket(context, params, kept.james)
    sources, absent = sources_of(context.stores)
    earlier = candidates.recorded(context)
    _forget_earlier_try(context, earlier)
    now, spark = context.clock(), context.spark()
    spent = Spent()
    with ExitStack() as frames:
        with KeptBlobs(settings) as kept:
            ranges, blobs = _listed(context, params, kept, spark)
            frames.enter_context(blobs)
            spent.on("listing")
            folders = list(kept.folders()) if kept.own.bucket_exists() else []
        references = [
            frames.enter_context(frame) for frame in read_references(spark, settings, sources)
        ]
        spent.on("references")
        crash.point("plan:after-scan")
        known, forgotten = _known(context, earlier, spark)
        frames.enter_context(known)
        missed = []
        if folders:
            copies = frames.enter_context(read_kept(spark, settings, folders))
            wanted = referenced(spark, copies, references, ALIKE)
            # An inventory is older than the deletes of the last run, and says that what they took is there: of it, S3 itself is asked.
            missed = (
                collected(spark, missing_from(spark, wanted, blobs))
                if params.inventory is None
                else _missing(settings, collected(spark, wanted))
            )
        rules = _rules(context, params, now)
        orphans = with_known(
            spark, unreferenced(spark, blobs, references, ALIKE), known, _SAME, ("since_ms",)
        )
        tally, groups = write_plan(
            spark,
            orphans,
            context.folder.artifacts,
            context.folder.file(FOLDER),
            rules,
            spared=_spared(earlier),
        )
        spent.on("join")
    counts, unread = _counts(sources, references), unread_columns(context.stores, sources)
    cleaned = _cleaned(context, earlier)
    plan = Plan(
        run=context.request.run,
        bucket=settings.s3.bucket,
        made_at=now,
        grace=params.grace,
        delete_after=params.delete_after,
        keep=params.keep,
        blobs=sum(each["blobs"] for each in blobs.summaries),
        deletes=tuple(group for group in groups if group.file.startswith(DELETE)),
        candidates=tuple(group for group in groups if not group.file.startswith(DELETE)),
        restores=tuple(sorted(row["place"] for row in missed)),
        sources={each.name: each.references for each in counts},
        scans=(*(_shown(each, earlier, cleaned) for each in counts), *_vanished(counts, earlier)),
        listing=_listing(params, ranges, blobs),
        unread_columns=tuple(with_rows(context.stores, unread)),
    )
    crash.point("plan:written")
    return _summary(_Seen(plan, tally, absent, unread, blobs, forgotten, earlier, spent))


@dataclass(frozen=True, slots=True)
class Count:
    """What the scan of one source came to. `twice` parts were read twice, `holes` are places that no part covers."""

    name: str
    wanted: int
    read: int
    twice: int
    holes: int
    rows: int
    references: int


@dataclass(frozen=True, slots=True)
class _Seen:
    plan: Plan
    tally: Tally
    absent: Sequence[str]
    unread: Sequence[str]
    blobs: Frame
    forgotten: str
    earlier: candidates.Candidates | None
    spent: Spent


def _require_bucket(context: StepContext, params: Params, blobs: BulkBlobs) -> None:
    """Raises BadSetting when there is no such bucket, ClockSkew when S3's times mean something else than ours."""
    if not blobs.bucket_exists():
        raise BadSetting(
            f"MAILSLICE_S3_BUCKET={blobs.bucket}: there is no such bucket at {context.settings.s3.endpoint}"
        )
    skew, most = blobs.now_skew(context.clock), max(params.grace / 4, _LEAST_SKEW)
    if abs(skew) > most:
        raise ClockSkew(
            f"S3's clock differs from this machine's by {skew.total_seconds():.0f} s; allowed are {most.total_seconds():.0f} s (a quarter of the grace): "
            "ages of blobs would be wrong"
        )


def _forget_earlier_try(context: StepContext, earlier: candidates.Candidates | None) -> None:
    """A plan step that is tried again starts from nothing but the candidates that it recorded."""
    recorded = {f"{earlier.folder}/{group.file}" for group in earlier.groups} if earlier else set()
    for file in context.folder.artifacts.files(context.folder.name):
        if not file.endswith("/request.json") and file not in recorded:
            context.folder.artifacts.remove(file)
    context.folder.artifacts.folder(context.folder.file(FOLDER))


def _listed(
    context: StepContext, params: Params, kept: KeptBlobs, spark: Session
) -> tuple[list[KeyRange] | None, Frame]:
    """The bucket's blobs, and the ranges of keys that were listed; None for an inventory."""
    settings = context.settings
    if params.inventory is not None:
        return None, inventory.read_inventory(
            spark, settings, inventory.find(settings, params.inventory)
        )
    ranges = listing.key_ranges(kept.james)
    return ranges, listing.read_listing(spark, settings, ranges)


def _known(
    context: StepContext, earlier: candidates.Candidates | None, spark: Session
) -> tuple[Frame, str]:
    """The candidates of earlier runs; without them, why."""
    place = context.folder.artifacts
    if earlier is None:
        return read_planned(spark, place, "", []), "no earlier run recorded candidates"
    if earlier.changed:
        return (
            read_planned(spark, place, "", []),
            f"the note on the candidates of run {earlier.run} was changed: they are forgotten and wait anew",
        )
    try:
        recorded_ms = round(earlier.recorded.timestamp() * 1000)
        return read_planned(spark, place, earlier.folder, earlier.groups, recorded_ms), ""
    except PlanRefused as error:
        return read_planned(
            spark, place, "", []
        ), f"the candidates of run {earlier.run} are forgotten and wait anew: {error}"


def _missing(settings: Settings, copies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of kept copies, those whose blob is not there now."""
    with KeptBlobs(settings) as kept:
        there = kept.james.heads([row[KEY] for row in copies])
    return [row for row in copies if there[row[KEY]] is None]


def _spared(earlier: candidates.Candidates | None) -> frozenset[str]:
    return frozenset(earlier.spared) if earlier else frozenset()


def _rules(context: StepContext, params: Params, now: datetime) -> Rules:
    blob = context.settings.blob
    return Rules(
        now, params.grace, params.delete_after, blob.family, BlobIds(blob, lambda: now).generation()
    )


def _counts(sources: Sequence[Source], references: Sequence[Frame]) -> list[Count]:
    told = [summary for frame in references for summary in frame.summaries]
    found = []
    for source in sources:
        mine = [each for each in told if each["source"] == source.name]
        parts = {each["part"] for each in mine}
        found.append(
            Count(
                source.name,
                source.parts,
                len(parts),
                len(mine) - len(parts),
                source.holes,
                sum(each["rows"] for each in mine),
                sum(each["references"] for each in mine),
            )
        )
    return found


def _listing(
    params: Params, ranges: Sequence[KeyRange] | None, blobs: Frame
) -> dict[str, str | int | None]:
    """What was to be listed, and what was; of an inventory, what it holds."""
    listed = [each["range"] for each in blobs.summaries]
    return {
        "inventory": params.inventory,
        "wanted": len(ranges) if ranges is not None else len(listed),
        "read": len(set(listed)),
        "twice": len(listed) - len(set(listed)),
        "holes": uncovered(ranges) if ranges is not None else 0,
    }


def _summary(seen: _Seen) -> dict[str, Any]:
    plan, tally = seen.plan, seen.tally
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": plan.planned,
        "candidates": plan.waiting,
        "restores": len(plan.restores),
        "referenceSourceCount": len(plan.sources),
        "references": sum(plan.sources.values()),
        "blobCount": plan.blobs,
        "blobBytes": sum(each["bytes"] for each in seen.blobs.summaries),
        "orphans": tally.blobs[ORPHAN],
        "orphanBytes": tally.size[ORPHAN],
        "unreferenced": {kind: tally.blobs[kind] for kind in KINDS},
        "byGeneration": {
            name: {"blobs": blobs, "bytes": size}
            for name, (blobs, size) in sorted(tally.generations.items())
        },
        "byAge": {
            name: {"blobs": blobs, "bytes": size} for name, (blobs, size) in tally.ages.items()
        },
        "samples": tally.samples,
        "sources": [dict(each) for each in plan.scans],
        "absentSources": list(seen.absent),
        "unreadColumns": list(seen.unread),
        "listing": dict(plan.listing),
        "candidatesOf": seen.earlier.run if seen.earlier and not seen.forgotten else None,
        "bytes": tally.size[DELETE],
        "spent": seen.spent.seconds,
        "message": _message(seen),
        "madeAt": iso(plan.made_at),
    }


def _cleaned(context: StepContext, earlier: candidates.Candidates | None) -> int:
    """References that mailslice's own cleanups took from the view since the last run: two a row."""
    if earlier is None:
        return 0
    runs = context.stores.own.runs.list(_CLEANUP, None, _RUNS)
    return 2 * sum(
        int(json.loads(run.report).get("applied") or 0)
        for run in runs
        if run.started >= earlier.recorded
    )


def _shown(count: Count, earlier: candidates.Candidates | None, cleaned: int) -> dict[str, Any]:
    before = earlier.sources.get(count.name) if earlier else None
    parts = {"parts": count.wanted, "read": count.read, "twice": count.twice, "holes": count.holes}
    explained = {"cleaned": cleaned} if count.name in _CLEANED and cleaned else {}
    return {
        "source": count.name,
        "rows": count.rows,
        "references": count.references,
        "before": before,
        **explained,
        **parts,
    }


def _vanished(
    counts: Sequence[Count], earlier: candidates.Candidates | None
) -> list[dict[str, Any]]:
    """Sources that the last run read and this one did not: all their references are gone."""
    known = {each.name for each in counts}
    before = dict(earlier.sources) if earlier else {}
    none = {"rows": 0, "references": 0, "parts": 0, "read": 0, "twice": 0, "holes": 0}
    return [
        {"source": name, **none, "before": references}
        for name, references in sorted(before.items())
        if name not in known
    ]


def _message(seen: _Seen) -> str:
    plan, blobs = seen.plan, seen.tally.blobs
    words = [
        f"{blobs[ORPHAN]} of {plan.blobs} blobs are orphans: {plan.planned} can go, {plan.waiting} wait as candidates"
    ]
    if plan.restores:
        words.append(
            f"{len(plan.restores)} deleted blobs are referred to: their kept copies go back"
        )
    if blobs[DOUBTFUL]:
        words.append(
            f"{blobs[DOUBTFUL]} blobs are referred to in another spelling only (MAILSLICE_BLOB_HASH_ENCODING): they stay"
        )
    if blobs[UNKNOWN]:
        words.append(f"{blobs[UNKNOWN]} keys are no blob ids: they are left alone")
    if seen.unread:
        words.append(
            f"no source reads {', '.join(seen.unread)}: if these are blob ids, "
            "name them in MAILSLICE_GC_SOURCES, else in MAILSLICE_GC_UNREAD_COLUMNS"
        )
    if seen.forgotten and seen.earlier:
        words.append(seen.forgotten)
    return "; ".join(words)
