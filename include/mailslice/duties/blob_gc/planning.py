"""Lists the bucket, then reads every reference, and writes down the blobs without one.

The listing comes first: a blob that is listed, and referred to before the references are read, is
found to be referred to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from mailslice.codec.blob_ids import BlobIds
from mailslice.duties.blob_gc import candidates, inventory, listing
from mailslice.duties.blob_gc.blob_files import write_orphans
from mailslice.duties.blob_gc.candidates import Candidates
from mailslice.duties.blob_gc.classify import DELETE, DOUBTFUL, ORPHAN, UNKNOWN, Rules, Tally
from mailslice.duties.blob_gc.kept import KeptBlobs
from mailslice.duties.blob_gc.params import Params
from mailslice.duties.blob_gc.plan import GcPlan, KeptCopy, Listing, SourceScan
from mailslice.duties.blob_gc.reading import ALIKE, read_kept, read_planned, read_references
from mailslice.duties.blob_gc.sources import Source, sources_of, unread_columns, with_rows
from mailslice.duties.blob_gc.spent import Spent
from mailslice.engine.dataset import Frame
from mailslice.engine.frames import Session
from mailslice.engine.joins import (
    KEY,
    collected,
    missing_from,
    referenced,
    unreferenced,
    with_known,
)
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import BadSetting, ClockSkew, PlanRefused
from mailslice.stores.blobs.bulk import BulkBlobs
from mailslice.stores.blobs.key_ranges import KeyRange, uncovered

_LEAST_SKEW = timedelta(seconds=5)
_CLEANUP, _CLEANED, _RUNS = "queue_cleanup", ("enqueuedMailsV3", "enqueuedMailsV4"), 10_000
"""Cleanups take references from the view: those did not get lost. The ledger says how many."""
_SAME = (KEY, "size", "modified_s")


def make_plan(run: Run) -> GcPlan:
    """The plan; its files are written, and the report has what it comes to."""
    params, spark, spent = run.params(Params), run.spark(), Spent()
    with KeptBlobs(run.settings) as kept:
        require_bucket(run, kept.james, params.grace)
    sources, absent = sources_of(run.stores)
    earlier = candidates.recorded(run.folder.artifacts)
    now = run.clock()
    with ExitStack() as frames:
        ranges, blobs, folders = _listed(run, spark, frames)
        spent.on("listing")
        references = read_references(spark, run.settings, sources)
        for frame in references:
            frames.enter_context(frame)
        spent.on("references")
        crash.point("plan:after-scan")
        known, forgotten = _known(run, earlier, spark)
        frames.enter_context(known)
        restores = _missed(run, spark, frames, folders, references, blobs)
        orphans = unreferenced(spark, blobs, references, ALIKE)
        blob = run.settings.blob
        generation = BlobIds(blob, lambda: now).generation()
        tally, groups = write_orphans(
            spark,
            with_known(spark, orphans, known, _SAME, ("since_ms",)),
            run.folder.artifacts,
            run.folder.name,
            Rules(now, params.grace, params.delete_after, blob.family, generation),
            spared=earlier.spared if earlier else frozenset(),
        )
        spent.on("join")
    unread = unread_columns(run.stores, sources)
    deletes = f"{PLAN_FOLDER}/{DELETE}-"
    plan = GcPlan(
        run=run.request.run,
        made_at=now,
        bucket=run.settings.s3.bucket,
        grace=params.grace,
        delete_after=params.delete_after,
        keep=params.keep,
        blobs=sum(summary["blobs"] for summary in blobs.summaries),
        deletes=tuple(group for group in groups if group.file.startswith(deletes)),
        candidates=tuple(group for group in groups if not group.file.startswith(deletes)),
        restores=run.write_rows("restores", map(KeptCopy, sorted(restores)), KeptCopy),
        scans=_scans(sources, references, earlier, _cleaned(run, earlier)),
        listing=_listing(params, ranges, blobs),
        unread_columns=tuple(with_rows(run.stores, unread)),
    )
    crash.point("plan:written")
    _report(run, plan, tally, unread)
    run.report(
        blobBytes=sum(summary["bytes"] for summary in blobs.summaries),
        absentSources=list(absent),
        candidatesOf=earlier.run if earlier and not forgotten else None,
        spent=spent.seconds,
        message="; ".join(_message(plan, tally, unread, forgotten if earlier else "")),
    )
    return plan


def require_bucket(run: Run, blobs: BulkBlobs, grace: timedelta) -> None:
    """Raises BadSetting for a bucket that is missing, ClockSkew when S3's times are not ours."""
    if not blobs.bucket_exists():
        raise BadSetting(
            f"MAILSLICE_S3_BUCKET={blobs.bucket}: there is no such bucket "
            f"at {run.settings.s3.endpoint}"
        )
    skew, allowed = blobs.now_skew(run.clock), max(grace / 4, _LEAST_SKEW)
    if abs(skew) > allowed:
        raise ClockSkew(
            f"S3's clock differs from this machine's by {skew.total_seconds():.0f} s; "
            f"allowed are {allowed.total_seconds():.0f} s (a quarter of the grace): "
            "ages of blobs would be wrong"
        )


def _listed(
    run: Run, spark: Session, frames: ExitStack
) -> tuple[list[KeyRange] | None, Frame, list[str]]:
    """Ranges of keys (None: an inventory), the bucket's blobs, the folders of kept copies."""
    settings, given = run.settings, run.params(Params).inventory
    with KeptBlobs(settings) as kept:
        ranges = None if given is not None else listing.key_ranges(kept.james)
        if ranges is None:
            blobs = inventory.read_inventory(spark, settings, inventory.find(settings, given or ""))
        else:
            blobs = listing.read_listing(spark, settings, ranges)
        frames.enter_context(blobs)
        return ranges, blobs, list(kept.folders()) if kept.own.bucket_exists() else []


def _known(run: Run, earlier: Candidates | None, spark: Session) -> tuple[Frame, str]:
    """The candidates of earlier runs; without them, why."""
    location, why = run.folder.artifacts, "no earlier run recorded candidates"
    if earlier is not None and earlier.forgotten:
        why = earlier.forgotten
    elif earlier is not None:
        recorded_ms = round(earlier.recorded.timestamp() * 1000)
        try:
            return read_planned(spark, location, earlier.folder, earlier.groups, recorded_ms), ""
        except PlanRefused as error:
            why = f"the candidates of run {earlier.run} are forgotten and wait anew: {error}"
    return read_planned(spark, location, "", []), why


def _missed(  # noqa: PLR0917 - what is joined
    run: Run,
    spark: Session,
    frames: ExitStack,
    folders: Sequence[str],
    references: Sequence[Frame],
    blobs: Frame,
) -> list[str]:
    """Kept copies whose blob is referred to and not there, by their own keys.

    An inventory is older than the deletes of the last run, and says that what they took is there:
    S3 itself is asked.
    """
    if not folders:
        return []
    copies = frames.enter_context(read_kept(spark, run.settings, folders))
    wanted = referenced(spark, copies, references, ALIKE)
    if run.params(Params).inventory is None:
        return [row["place"] for row in collected(spark, missing_from(spark, wanted, blobs))]
    rows = collected(spark, wanted)
    with KeptBlobs(run.settings) as kept:
        there = kept.james.heads([row[KEY] for row in rows])
    return [row["place"] for row in rows if there[row[KEY]] is None]


def _scans(
    sources: Sequence[Source],
    references: Sequence[Frame],
    earlier: Candidates | None,
    cleaned: int,
) -> tuple[SourceScan, ...]:
    """One a source, and one for each source that the last run read and this one did not."""
    summaries = [summary for frame in references for summary in frame.summaries]
    before = dict(earlier.sources) if earlier else {}
    scans = []
    for source in sources:
        own = [summary for summary in summaries if summary["source"] == source.name]
        read = len({summary["part"] for summary in own})
        scan = SourceScan(
            source=source.name,
            rows=sum(summary["rows"] for summary in own),
            references=sum(summary["references"] for summary in own),
            before=before.get(source.name),
            cleaned=cleaned if source.name in _CLEANED else 0,
            parts=source.parts,
            read=read,
            twice=len(own) - read,
            holes=source.holes,
        )
        scans.append(scan)
    vanished = sorted(before.keys() - {scan.source for scan in scans})
    scans += [SourceScan(source=name, before=before[name], vanished=True) for name in vanished]
    return tuple(scans)


def _cleaned(run: Run, earlier: Candidates | None) -> int:
    """References that mailslice's own cleanups took from the view since the last run: two a row."""
    if earlier is None:
        return 0
    reports = (
        json.loads(cleanup.report)
        for cleanup in run.stores.own.runs.list(_CLEANUP, None, _RUNS)
        if cleanup.started >= earlier.recorded
    )
    return 2 * sum(int(report.get("applied") or 0) for report in reports)


def _listing(params: Params, ranges: Sequence[KeyRange] | None, blobs: Frame) -> Listing:
    listed = [summary["range"] for summary in blobs.summaries]
    return Listing(
        inventory=params.inventory,
        wanted=len(ranges) if ranges is not None else len(listed),
        read=len(set(listed)),
        twice=len(listed) - len(set(listed)),
        holes=uncovered(ranges) if ranges is not None else 0,
    )


def _report(run: Run, plan: GcPlan, tally: Tally, unread: Sequence[str]) -> None:
    scans: list[dict[str, Any]] = [scan.as_json() for scan in plan.scans]
    run.report(
        **tally.report(),
        candidates=plan.waiting,
        restores=plan.restores.rows,
        referenceSourceCount=len(plan.sources),
        references=sum(plan.sources.values()),
        blobCount=plan.blobs,
        sources=scans,
        unreadColumns=list(unread),
        listing=plan.listing.as_json(),
        madeAt=iso(plan.made_at),
    )


def _message(plan: GcPlan, tally: Tally, unread: Sequence[str], forgotten: str) -> Iterable[str]:
    blobs = tally.blobs
    yield (
        f"{blobs[ORPHAN]} of {plan.blobs} blobs are orphans: "
        f"{plan.planned} can go, {plan.waiting} wait as candidates"
    )
    if plan.restores.rows:
        yield (f"{plan.restores.rows} deleted blobs are referred to: their kept copies go back")
    if blobs[DOUBTFUL]:
        yield (
            f"{blobs[DOUBTFUL]} blobs are referred to in another spelling only "
            "(MAILSLICE_BLOB_HASH_ENCODING): they stay"
        )
    if blobs[UNKNOWN]:
        yield f"{blobs[UNKNOWN]} keys are no blob ids: they are left alone"
    if unread:
        yield (
            f"no source reads {', '.join(unread)}: if these are blob ids, "
            "name them in MAILSLICE_GC_SOURCES, else in MAILSLICE_GC_UNREAD_COLUMNS"
        )
    if forgotten:
        yield forgotten
