"""Restores missing blobs, reads references again, records candidates, deletes, restores once more.

A run may be killed at any stage. Completed groups are recorded. This run or any later one restores
a copy whose blob is referenced. A copy is deleted only after it expired, and only when its blob
exists or has no reference.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa

from mailslice.duties.blob_gc.orphans import PlannedBlob, blobs_of
from mailslice.duties.blob_gc.plan import CandidateRecord, CopyToRestore, GcPlan, record_candidates
from mailslice.duties.blob_gc.planner import Timings, require_bucket
from mailslice.duties.blob_gc.scans import read_copies, read_planned, read_references
from mailslice.duties.blob_gc.sources import sources_of
from mailslice.duties.blob_gc.trash import PRESENT, RESTORED, Trash, Trashed
from mailslice.engine.dataset import KEY, Dataset, collected, referenced
from mailslice.engine.frames import InProcess, Session, run_on_keys, shared, slots_of
from mailslice.engine.row_files import Location, RowGroup, read_groups
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.clock import elapsed_seconds
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings

CHANGED = "changed since the listing"
ALREADY_DELETED = "gone already"
REFERENCED = "referred to again"
NAMED = 20
"""A report names at most this many failures, and this many blobs that could not be restored."""
_AT_ONCE = 2
"""Groups that one task handles concurrently: HEADs of one overlap with DELETEs of another."""


@dataclass(frozen=True, slots=True)
class DeleteSpec:
    """The run, where its files are, and when copies expire (None: no copies are made)."""

    settings: Settings
    run: str
    location: Location
    folder: str
    expires: datetime | None
    throttle: Throttle


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of one group. All values are JSON: the run's progress file stores them."""

    deleted: int
    bytes: int
    skipped: dict[str, int]
    """Reason -> number of keys that were not deleted."""
    failed: int
    failures: dict[str, str] = field(default_factory=dict)
    """At most NAMED of the failed keys, and why."""


def group_name(group: RowGroup) -> str:
    """The group's name in the run's progress file."""
    return f"{group.file}/{group.number}"


def delete_groups(
    session: Session, spec: DeleteSpec, groups: Sequence[RowGroup], rereferenced: frozenset[str]
) -> dict[str, GroupOutcome]:
    """Delete the blobs of these groups, except the keys in `rereferenced`. Outcomes by group."""
    tasks = 1 if isinstance(session, InProcess) else min(len(groups), slots_of(session))
    with shared(session, rereferenced) as rereferenced_keys:

        def work(batches: Iterator[Sequence[RowGroup]]) -> Iterator[tuple[str, GroupOutcome]]:
            turns = spec.throttle.share(tasks).take
            with Trash(spec.settings, turns) as trash, ThreadPoolExecutor(_AT_ONCE) as pool:

                def outcome(planned: tuple[RowGroup, pa.Table]) -> tuple[str, GroupOutcome]:
                    group, rows = planned
                    return group_name(group), _delete(
                        spec, trash, blobs_of(rows), rereferenced_keys()
                    )

                for batch in batches:
                    yield from pool.map(outcome, read_groups(spec.location, spec.folder, batch))

        return dict(run_on_keys(session, groups, work))


def _delete(
    spec: DeleteSpec, trash: Trash, blobs: Sequence[PlannedBlob], rereferenced: frozenset[str]
) -> GroupOutcome:
    requested = {blob.key: blob for blob in blobs if blob.key not in rereferenced}
    paths, bucket = dict[BlobId, BlobId](), trash.james.bucket
    if spec.expires is not None:
        paths = {key: Trashed(spec.expires, spec.run, key, 0, bucket).path for key in requested}
    problems = trash.own.copies(bucket, paths)
    crash.point("apply:after-copies")
    # HEAD comes after the copies: a blob that is unchanged now was unchanged when it was copied.
    stored = trash.james.heads(list(requested))
    unchanged = {key for key, blob in requested.items() if blob.is_still(stored[key])}
    absent = [key for key, blob in stored.items() if blob is None]
    # An absent blob with a copy of this run was deleted by an earlier try of this run.
    copies = trash.own.heads([paths[key] for key in absent if key in paths])
    deleted_before = {key for key in absent if key in paths and copies[paths[key]] is not None}
    uncopied = {key: why for key, why in problems.items() if key in unchanged}
    to_delete = [key for key in requested if key in unchanged and key not in uncopied]
    failed = {**uncopied, **trash.james.delete_many(to_delete)}
    crash.point("apply:inside-deletes")
    done = (unchanged - failed.keys()) | deleted_before
    skipped = {
        REFERENCED: len(blobs) - len(requested),
        ALREADY_DELETED: len(absent) - len(deleted_before),
        CHANGED: len(requested) - len(unchanged) - len(absent),
    }
    failures: dict[str, str] = dict(islice(failed.items(), NAMED))
    size = sum(requested[key].size for key in done)
    return GroupOutcome(len(done), size, skipped, len(failed), failures)


GROUPS, EXPIRES = "groups", "copiesExpire"
"""Report fields that a second try reads: the outcome of each group, and when the copies expire."""
_GROUPS_A_SLOT = 4
"""Groups of the first round. Apply checks lock and time limit between two rounds."""
_SHORT_ROUND_S, _LONG_ROUND_S = 4.0, 8.0
_SMALL_PLAN = 2
"""This process reads up to this many groups of candidates; Spark reads more."""


def collect(
    run: Run, plan: GcPlan, progress: Progress, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Apply the plan. Raises PlanRefused if it is about another bucket or its files changed."""
    bucket = run.settings.s3.bucket
    if plan.bucket != bucket:
        raise PlanRefused(
            f"the plan of run {plan.run} is about bucket {plan.bucket}, "
            f"the settings name {bucket}: plan again"
        )
    with Trash(run.settings, run.throttle("s3").take) as trash:
        require_bucket(run, trash.james, plan.grace)
        trash.own.ensure_bucket()
        _Collection(run, plan, progress, trash, sleep).collect()


class _Collection:
    """One apply, stage by stage."""

    def __init__(
        self,
        run: Run,
        plan: GcPlan,
        progress: Progress,
        trash: Trash,
        sleep: Callable[[float], None],
    ) -> None:
        self._sleep = sleep
        self._run, self._plan, self._progress, self._trash = run, plan, progress, trash
        self._session = run.session()
        self._restored = int(progress.earlier.get("restored", 0))
        self._problems: dict[BlobId, str] = {}
        """Referenced blobs that could not be restored, with the reason."""
        earlier = progress.earlier
        self._groups: dict[str, dict[str, Any]] = dict(earlier.get(GROUPS, {}))
        """Outcomes by group. The progress file stores this dict, so counts always match groups."""
        run.report(**{GROUPS: self._groups})
        expires = earlier.get(EXPIRES) or iso(run.clock() + plan.keep)
        # A second try writes its copies to the same object keys as the first.
        self._expires = datetime.fromisoformat(str(expires)) if plan.keep else None

    def collect(self) -> None:
        run, plan, timings = self._run, self._plan, Timings()
        self._count([GroupOutcome(**outcome) for outcome in self._groups.values()])
        self._put_back(copy.key for copy in run.read_rows(plan.restores, CopyToRestore))
        self._save()
        crash.point("apply:after-restores")

        rereferenced = self._rereferenced()
        timings.on("secondScan")
        crash.point("apply:after-second-scan")
        self._record(rereferenced)
        crash.point("apply:after-candidates")

        self._delete(rereferenced)
        timings.on("deleting")
        crash.point("apply:after-deletes")

        # A reference may have been written after a delete of this run, or of an earlier run whose
        # copies are about to be deleted. Its blob is restored.
        expired_folders = self._trash.expired(run.clock(), but_of=plan.run)
        if self._groups or self._progress.earlier or expired_folders:
            self._wait_for_inserts()
            self._restore_missed(expired_folders)
        self._save()
        timings.on("lookAgain")
        crash.point("apply:after-look")
        run.require_lock()
        expired, unexpired = self._trash.forget(expired_folders, but=self._problems.keys())
        run.report(expiredCopies=expired, copiesNotDeleted=unexpired, spent=timings.seconds)

    def _save(self) -> None:
        progress = self._progress
        self._run.report(
            **{EXPIRES: iso(self._expires)},
            bytesDeleted=sum(outcome["bytes"] for outcome in self._groups.values()),
            keptUntil=iso(self._expires) if progress.applied else None,
            restored=self._restored,
            blobsMissing=len(self._problems),
            notRestored=[f"{key}: {why}" for key, why in self._problems.items()][:NAMED],
        )
        progress.save()

    def _count(self, groups: Sequence[GroupOutcome]) -> None:
        """Count blobs. Failures that a group does not name count with its first named failure."""
        progress = self._progress
        progress.done(count=sum(outcome.deleted for outcome in groups))
        for reason in (REFERENCED, ALREADY_DELETED, CHANGED):
            progress.skip(reason, sum(outcome.skipped.get(reason, 0) for outcome in groups))
        for outcome in groups:
            unnamed = outcome.failed - len(outcome.failures)
            for number, (key, why) in enumerate(outcome.failures.items()):
                progress.fail(key, why, 1 if number else 1 + unnamed)

    def _put_back(self, paths: Iterable[str]) -> None:
        """Restore the copies that have these object keys."""
        copies = (Trashed.of(path, 0) for path in paths)
        self._note(self._trash.restore(filter(None, copies)))

    def _note(self, outcomes: Mapping[BlobId, str]) -> None:
        """Record the latest outcome of each key, as `Trash.restore` reports it."""
        for key, why in outcomes.items():
            self._problems.pop(key, None)
            if why == RESTORED:
                self._restored += 1
            elif why != PRESENT:
                self._problems[key] = why

    def _rereferenced(self) -> frozenset[str]:
        """Planned keys that are referenced now.

        Reads all files of the plan and checks their digests before apply acts on any of them.
        """
        with ExitStack() as frames:
            plan, session = self._plan, self._session
            small = InProcess() if len(plan.candidates) <= _SMALL_PLAN else session
            self._planned(small, frames, plan.candidates)
            if not plan.deletes:
                return frozenset()
            planned = self._planned(session, frames, plan.deletes)
            rows = collected(referenced(planned, self._references(frames)))
            return frozenset(row[KEY] for row in rows)

    def _record(self, rereferenced: frozenset[str]) -> None:
        run, plan, now = self._run, self._plan, self._run.clock()
        run.require_lock()
        recorded = CandidateRecord(
            run=plan.run,
            recorded=now,
            groups=(*plan.deletes, *plan.candidates),
            spared=rereferenced,
            sources=plan.sources,
        )
        record_candidates(run.folder.artifacts, recorded)
        run.report(candidates=plan.waiting, recorded=iso(now))
        self._progress.save()

    def _delete(self, rereferenced: frozenset[str]) -> None:
        run, session = self._run, self._session
        folder, throttle = run.folder, run.throttle("s3")
        spec = DeleteSpec(
            run.settings, self._plan.run, folder.artifacts, folder.name, self._expires, throttle
        )
        waiting = [group for group in self._plan.deletes if group_name(group) not in self._groups]
        size = 1 if isinstance(session, InProcess) else _GROUPS_A_SLOT * slots_of(session)
        while waiting and not run.out_of_time():
            run.require_lock()
            groups, waiting = waiting[:size], waiting[size:]
            began = elapsed_seconds()
            outcomes = delete_groups(session, spec, groups, rereferenced)
            if not isinstance(session, InProcess):
                size = next_round(size, elapsed_seconds() - began)
            self._groups |= {name: asdict(outcome) for name, outcome in outcomes.items()}
            self._count([*outcomes.values()])
            self._save()

    def _wait_for_inserts(self) -> None:
        """Wait until rows that were being inserted during the deletes are visible.

        An insert takes no longer than the longest statement.
        """
        progress = self._progress
        if progress.applied or progress.failed or progress.skipped[ALREADY_DELETED]:
            longest = self._run.stores.cassandra.longest_statement
            self._sleep(min(self._plan.grace, longest).total_seconds())

    def _restore_missed(self, expired_folders: Sequence[str]) -> None:
        """Restore referenced blobs from copies of this run and copies in `expired_folders`.

        If the run keeps no copies, report the referenced blobs that are missing. An earlier try may
        have deleted them.
        """
        run, plan, session, trash = self._run, self._plan, self._session, self._trash
        with ExitStack() as frames:
            references = self._references(frames)
            own = (copy.folder for copy in trash.runs() if copy.run == plan.run)
            folders = [*expired_folders, *own]
            copies = frames.enter_context(read_copies(session, run.settings, folders))
            missed = collected(referenced(copies, references))
            uncopied: list[dict[str, Any]] = []
            if (self._groups or self._progress.earlier) and not plan.keep:
                planned = self._planned(session, frames, plan.deletes)
                uncopied = collected(referenced(planned, references))
        stored = trash.james.heads([row[KEY] for row in uncopied])
        why = "referred to again, and no copy was kept"
        self._note({key: why for key, blob in stored.items() if blob is None})
        self._put_back(row["path"] for row in missed)

    def _planned(self, session: Session, frames: ExitStack, groups: Sequence[RowGroup]) -> Dataset:
        folder = self._run.folder
        return frames.enter_context(read_planned(session, folder.artifacts, folder.name, groups))

    def _references(self, frames: ExitStack) -> list[Dataset]:
        sources, _ = sources_of(self._run.stores)
        return read_references(frames, self._session, self._run.settings, sources)


def next_round(groups: int, seconds: float) -> int:
    """The number of groups of the next round, after a round of `groups` that took `seconds`.

    Each round costs a Spark job, 0.2 s of CPU. A round does not notice that the lock is lost.
    """
    if seconds < _SHORT_ROUND_S:
        return 2 * groups
    return max(1, groups // 2) if seconds > _LONG_ROUND_S else groups
