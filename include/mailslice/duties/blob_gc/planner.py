"""Lists the bucket, then reads all references, and plans the blobs without a reference.

The listing comes first, so the scan still reads a reference that is written after the listing.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import timedelta

from mailslice.codec.blob_ids import BlobIds
from mailslice.duties.blob_gc import orphans
from mailslice.duties.blob_gc.listing import (
    find_inventory,
    key_ranges,
    read_inventory,
    read_listing,
)
from mailslice.duties.blob_gc.live_mails import REPORTS, live_mails
from mailslice.duties.blob_gc.orphans import Rules, Tally
from mailslice.duties.blob_gc.params import Params
from mailslice.duties.blob_gc.plan import (
    VIEW,
    CandidateRecord,
    CopyToRestore,
    GcPlan,
    Listing,
    SourceScan,
    recorded_candidates,
)
from mailslice.duties.blob_gc.scans import read_copies, read_planned, read_references
from mailslice.duties.blob_gc.sources import ReferenceSource, sources_of, unread_columns, with_rows
from mailslice.duties.blob_gc.trash import Trash
from mailslice.engine import dataset
from mailslice.engine.dataset import Dataset
from mailslice.engine.frames import Session
from mailslice.maintenance.artifacts import PLAN_FOLDER, iso
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import BadSetting, ClockSkew, PlanRefused
from mailslice.stores.blobs.key_ranges import KeyRange, uncovered
from mailslice.stores.blobs.store import BlobStore


class Timings:
    """The seconds that each part of a step took: from the previous call of `on` to its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def on(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = round(now - self._since, 3)
        self._since = now


_LEAST_SKEW = timedelta(seconds=5)
_CLEANUP, _RUNS = "queue_cleanup", 10_000
"""Cleanups delete references from the view. The ledger counts them: they are not lost ones."""
_UNCHANGED = (dataset.KEY, "size", "modified_s")


def make_plan(run: Run, key_ranges: Callable[[BlobStore], list[KeyRange]] = key_ranges) -> GcPlan:
    params, session, timings = run.params(Params), run.session(), Timings()
    with Trash(run.settings) as trash:
        require_bucket(run, trash.james, params.grace)
    sources, absent = sources_of(run.stores)
    earlier = recorded_candidates(run.folder.artifacts)
    now = run.clock()
    with ExitStack() as frames:
        ranges, blobs, folders = _listed(run, session, frames, key_ranges)
        timings.on("listing")
        # Counted before the references are read: the scan may miss mails that arrive later.
        live = live_mails(run.stores.own.runs.newest(REPORTS), run.clock())
        references = read_references(frames, session, run.settings, sources)
        timings.on("references")
        crash.point("plan:after-scan")
        known, forgotten = _known(run, earlier, session)
        frames.enter_context(known)
        restores = _missed(run, session, frames, folders, references, blobs)
        unreferenced = dataset.unreferenced(blobs, references)
        blob = run.settings.blob
        generation = BlobIds(blob, lambda: now).generation()
        tally, groups = orphans.write_orphans(
            dataset.with_known(unreferenced, known, _UNCHANGED, ("since_ms",)),
            run.folder.artifacts,
            run.folder.name,
            Rules(now, params.grace, params.delete_after, blob.family, generation),
            rereferenced=earlier.spared if earlier else frozenset(),
        )
        timings.on("join")
    unread = unread_columns(run.stores, sources)
    deletes = f"{PLAN_FOLDER}/{orphans.DELETE}-"
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
        restores=run.write_rows("restores", map(CopyToRestore, sorted(restores)), CopyToRestore),
        scans=_scans(sources, references, earlier, _cleaned(run, earlier)),
        listing=_listing(params, ranges, blobs),
        unread_columns=tuple(with_rows(run.stores, unread)),
        live_mails=live,
    )
    crash.point("plan:written")
    run.report(
        **tally.report(),
        candidates=plan.waiting,
        restores=plan.restores.rows,
        referenceSourceCount=len(plan.sources),
        references=sum(plan.sources.values()),
        blobCount=plan.blobs,
        sources=[scan.as_json() for scan in plan.scans],
        unreadColumns=unread,
        liveMails=plan.live_mails,
        listing=plan.listing.as_json(),
        madeAt=iso(plan.made_at),
        blobBytes=sum(summary["bytes"] for summary in blobs.summaries),
        absentSources=list(absent),
        candidatesOf=earlier.run if earlier and not forgotten else None,
        spent=timings.seconds,
        message="; ".join(_message(plan, tally, unread, forgotten if earlier else "")),
    )
    return plan


def require_bucket(run: Run, blobs: BlobStore, grace: timedelta) -> None:
    """Raises BadSetting if the bucket is missing, ClockSkew if S3's clock differs from this one."""
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
    run: Run, session: Session, frames: ExitStack, key_ranges: Callable[[BlobStore], list[KeyRange]]
) -> tuple[list[KeyRange] | None, Dataset, list[str]]:
    """Key ranges (None for an inventory), the bucket's blobs, the folders of copies."""
    settings, inventory_path = run.settings, run.params(Params).inventory
    with Trash(settings) as trash:
        ranges = None if inventory_path is not None else key_ranges(trash.james)
        blobs = (
            read_inventory(session, settings, find_inventory(settings, inventory_path or ""))
            if ranges is None
            else read_listing(session, settings, ranges)
        )
        frames.enter_context(blobs)
        runs = trash.runs() if trash.own.bucket_exists() else ()
        return ranges, blobs, [copy.folder for copy in runs]


def _known(run: Run, earlier: CandidateRecord | None, session: Session) -> tuple[Dataset, str]:
    """The candidates of earlier runs, and why there are none (empty if there are)."""
    location, why = run.folder.artifacts, "no earlier run recorded candidates"
    if earlier is not None and earlier.forgotten:
        why = earlier.forgotten
    elif earlier is not None:
        recorded_ms = round(earlier.recorded.timestamp() * 1000)
        try:
            return read_planned(session, location, earlier.folder, earlier.groups, recorded_ms), ""
        except PlanRefused as error:
            why = f"the candidates of run {earlier.run} are forgotten and wait anew: {error}"
    return read_planned(session, location, "", []), why


def _missed(  # noqa: PLR0917 - the frames to join
    run: Run,
    session: Session,
    frames: ExitStack,
    folders: Sequence[str],
    references: Sequence[Dataset],
    blobs: Dataset,
) -> list[str]:
    """Object keys of copies whose blob is referenced and missing.

    An inventory may be older than the last run's deletes and list their blobs: S3 is asked instead.
    """
    if not folders:
        return []
    copies = frames.enter_context(read_copies(session, run.settings, folders))
    referenced_copies = dataset.referenced(copies, references)
    if run.params(Params).inventory is None:
        missing = dataset.missing_from(referenced_copies, blobs)
        return [row["path"] for row in dataset.collected(missing)]
    rows = dataset.collected(referenced_copies)
    with Trash(run.settings) as trash:
        stored = trash.james.heads([row[dataset.KEY] for row in rows])
    return [row["path"] for row in rows if stored[row[dataset.KEY]] is None]


def _scans(
    sources: Sequence[ReferenceSource],
    references: Sequence[Dataset],
    earlier: CandidateRecord | None,
    cleaned: int,
) -> tuple[SourceScan, ...]:
    """One scan a source, including sources that only the last run read."""
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
            cleaned=cleaned if source.name in VIEW else 0,
            parts=source.parts,
            read=read,
            twice=len(own) - read,
            holes=source.holes,
        )
        scans.append(scan)
    vanished = sorted(before.keys() - {scan.source for scan in scans})
    scans += [SourceScan(source=name, before=before[name], vanished=True) for name in vanished]
    return tuple(scans)


def _cleaned(run: Run, earlier: CandidateRecord | None) -> int:
    """References that mailslice's cleanups deleted since the last run: two for each row."""
    if earlier is None:
        return 0
    reports = (
        json.loads(cleanup.report)
        for cleanup in run.stores.own.runs.list(_CLEANUP, None, _RUNS)
        if cleanup.started >= earlier.recorded
    )
    return 2 * sum(int(report.get("applied") or 0) for report in reports)


def _listing(params: Params, ranges: Sequence[KeyRange] | None, blobs: Dataset) -> Listing:
    listed = [summary["range"] for summary in blobs.summaries]
    return Listing(
        inventory=params.inventory,
        wanted=len(ranges) if ranges is not None else len(listed),
        read=len(set(listed)),
        twice=len(listed) - len(set(listed)),
        holes=uncovered(ranges) if ranges is not None else 0,
    )


def _message(plan: GcPlan, tally: Tally, unread: Sequence[str], forgotten: str) -> Iterable[str]:
    blobs = tally.blobs
    yield (
        f"{blobs[orphans.ORPHAN]} of {plan.blobs} blobs are orphans: "
        f"{plan.planned} can go, {plan.waiting} wait as candidates"
    )
    if plan.restores.rows:
        yield (f"{plan.restores.rows} deleted blobs are referred to: their kept copies go back")
    if blobs[orphans.DOUBTFUL]:
        yield (
            f"{blobs[orphans.DOUBTFUL]} blobs are referred to in another spelling only "
            "(MAILSLICE_BLOB_HASH_ENCODING): they stay"
        )
    if blobs[orphans.UNKNOWN]:
        yield f"{blobs[orphans.UNKNOWN]} keys are no blob ids: they are left alone"
    if unread:
        yield (
            f"no source reads {', '.join(unread)}: if these are blob ids, "
            "name them in MAILSLICE_GC_SOURCES, else in MAILSLICE_GC_UNREAD_COLUMNS"
        )
    if forgotten:
        yield forgotten
