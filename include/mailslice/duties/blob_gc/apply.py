"""Puts back what is missed, reads references again, records candidates, deletes, looks once more.

Every stage may be the last one: groups that are done are remembered, and a kept copy whose blob is
referred to is put back by this run or by any later one. So no copy is forgotten, however long its
time is over, before it is known that its blob is there or that nothing refers to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from typing import Any

from mailslice.duties.blob_gc import candidates
from mailslice.duties.blob_gc.candidates import Candidates
from mailslice.duties.blob_gc.deleting import (
    CHANGED,
    GONE,
    REFERENCED,
    Deleting,
    Outcome,
    delete_groups,
    group_name,
)
from mailslice.duties.blob_gc.kept import PRESENT, RESTORED, Kept, KeptBlobs, run_of
from mailslice.duties.blob_gc.plan import GcPlan, KeptCopy
from mailslice.duties.blob_gc.planning import require_bucket
from mailslice.duties.blob_gc.reading import ALIKE, read_kept, read_planned, read_references
from mailslice.duties.blob_gc.sources import sources_of
from mailslice.duties.blob_gc.spent import Spent
from mailslice.engine.dataset import Frame
from mailslice.engine.frames import InProcess, Session, slots_of
from mailslice.engine.joins import KEY, collected, referenced
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.row_file import RowGroup
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.clock import elapsed_seconds
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import BlobId

GROUPS, EXPIRES = "groups", "copiesExpire"
"""Report fields for a second try of the plan: what became of each group, and until when this run's
copies are kept."""
_GROUPS_A_SLOT = 4
"""Of the first round: between two rounds the lock and the time limit are looked at."""
_SHORT_ROUND_S, _LONG_ROUND_S = 4.0, 8.0
NAMED = 20
"""The most failures, and the most missed blobs, that a report names."""
_FEW = 2
"""So many groups of candidates are read here and not by Spark."""


def collect(run: Run, plan: GcPlan, progress: Progress) -> None:
    """Apply the plan. Raises PlanRefused: it is about another bucket, or its files changed."""
    bucket = run.settings.s3.bucket
    if plan.bucket != bucket:
        raise PlanRefused(
            f"the plan of run {plan.run} is about bucket {plan.bucket}, "
            f"the settings name {bucket}: plan again"
        )
    with KeptBlobs(run.settings, run.throttle("s3")) as kept:
        require_bucket(run, kept.james, plan.grace)
        kept.own.ensure_bucket()
        _Collection(run, plan, progress, kept).collect()


class _Collection:
    """One apply, stage by stage."""

    def __init__(self, run: Run, plan: GcPlan, progress: Progress, kept: KeptBlobs) -> None:
        self._run, self._plan, self._progress, self._kept = run, plan, progress, kept
        self._spark = run.spark()
        self._restored: set[BlobId] = set()
        self._problems: dict[BlobId, str] = {}
        """Blobs that are missed and could not be put back: why not."""
        earlier = progress.earlier
        self._groups: dict[str, dict[str, Any]] = dict(earlier.get(GROUPS, {}))
        """Outcomes by group. What is saved is this very dict: no count without its group."""
        run.report(**{GROUPS: self._groups})
        expires = earlier.get(EXPIRES) or iso(run.clock() + plan.keep)
        # A second try makes the copies of the first one under the same names.
        self._expires = datetime.fromisoformat(str(expires)) if plan.keep else None

    def collect(self) -> None:
        run, plan, spent = self._run, self._plan, Spent()
        self._count([Outcome(**one) for one in self._groups.values()])
        copies = run.read_rows(plan.restores, KeptCopy)
        self._put_back((copy.key, 0) for copy in copies)
        self._save()
        crash.point("apply:after-restores")

        spared = self._referenced_again()
        spent.on("secondScan")
        crash.point("apply:after-second-scan")
        self._record(spared)
        crash.point("apply:after-candidates")

        self._delete(spared)
        spent.on("deleting")
        crash.point("apply:after-deletes")

        # A delete of this try or of one that was killed, or of a run whose copies are about to be
        # forgotten: references that came since are looked for, and what they name is put back.
        over = self._kept.expired(run.clock(), but_of=plan.run)
        if self._groups or over:
            self._wait_for_inserts()
            self._look_again(over, spared)
        self._save()
        spent.on("lookAgain")
        crash.point("apply:after-look")
        run.require_lock()
        expired, unexpired = self._kept.forget(over, but=self._problems.keys())
        run.report(expiredCopies=expired, copiesNotDeleted=unexpired, spent=spent.seconds)

    def _save(self) -> None:
        progress = self._progress
        self._run.report(
            **{EXPIRES: iso(self._expires)},
            bytesDeleted=sum(one["bytes"] for one in self._groups.values()),
            keptUntil=iso(self._expires) if progress.applied else None,
            restored=len(self._restored),
            notRestored=[f"{key}: {why}" for key, why in self._problems.items()][:NAMED],
        )
        progress.save()

    def _count(self, groups: Sequence[Outcome]) -> None:
        """Count what became of blobs; errors without a name count with their group's first."""
        progress = self._progress
        progress.done(count=sum(outcome.deleted for outcome in groups))
        for reason in (REFERENCED, GONE, CHANGED):
            progress.skip(reason, sum(outcome.skipped.get(reason, 0) for outcome in groups))
        for outcome in groups:
            unnamed = outcome.failed - len(outcome.failures)
            for number, (key, why) in enumerate(outcome.failures.items()):
                progress.fail(key, why, 1 if number else 1 + unnamed)

    def _put_back(self, copies: Iterable[tuple[str, int]]) -> None:
        """Restore copies, by their own key and size."""
        known = [copy for key, size in copies if (copy := Kept.of(key, size)) is not None]
        self._note(self._kept.restore(known))

    def _note(self, outcomes: Mapping[BlobId, str]) -> None:
        """The last word on each key, as `KeptBlobs.restore` says it."""
        for key, why in outcomes.items():
            self._problems.pop(key, None)
            if why == RESTORED:
                self._restored.add(key)
            elif why != PRESENT:
                self._problems[key] = why

    def _referenced_again(self) -> frozenset[str]:
        """Planned keys that are referred to now.

        The files of the whole plan are read, and held against their digests, before anything is
        done by them.
        """
        with ExitStack() as frames:
            plan, spark = self._plan, self._spark
            few = InProcess() if len(plan.candidates) <= _FEW else spark
            self._planned(few, frames, plan.candidates)
            if not plan.deletes:
                return frozenset()
            planned = self._planned(spark, frames, plan.deletes)
            again = referenced(spark, planned, self._references(frames), ALIKE)
            return frozenset(row[KEY] for row in collected(spark, again))

    def _record(self, spared: frozenset[str]) -> None:
        run, plan, now = self._run, self._plan, self._run.clock()
        run.require_lock()
        recorded = Candidates(
            run=plan.run,
            recorded=now,
            groups=(*plan.deletes, *plan.candidates),
            spared=spared,
            sources=plan.sources,
        )
        candidates.record(run.folder.artifacts, recorded)
        run.report(candidates=plan.waiting, recorded=iso(now))
        self._progress.save()

    def _delete(self, spared: frozenset[str]) -> None:
        run, spark = self._run, self._spark
        folder, throttle = run.folder, run.throttle("s3")
        what = Deleting(
            run.settings, self._plan.run, folder.artifacts, folder.name, self._expires, throttle
        )
        waiting = [one for one in self._plan.deletes if group_name(one) not in self._groups]
        a_round = 1 if isinstance(spark, InProcess) else _GROUPS_A_SLOT * slots_of(spark)
        while waiting and not run.out_of_time():
            run.require_lock()
            now, waiting = waiting[:a_round], waiting[a_round:]
            began = elapsed_seconds()
            outcomes = delete_groups(spark, what, now, spared)
            if not isinstance(spark, InProcess):
                a_round = next_round(a_round, elapsed_seconds() - began)
            self._groups |= {name: asdict(outcome) for name, outcome in outcomes.items()}
            self._count([*outcomes.values()])
            self._save()

    def _wait_for_inserts(self) -> None:
        """A mail that was being saved while its blob went has its row by then.

        An insert takes as long as a statement may.
        """
        progress = self._progress
        if progress.applied or progress.failed or progress.skipped[GONE]:
            longest = self._run.stores.cassandra.longest_statement
            time.sleep(min(self._plan.grace, longest).total_seconds())

    def _look_again(self, over: Sequence[str], spared: frozenset[str]) -> None:
        """Put back what something refers to now, of this run's copies and of those that are `over`.

        Without copies, say what is missed.
        """
        run, plan, spark, kept = self._run, self._plan, self._spark, self._kept
        with ExitStack() as frames:
            references = self._references(frames)
            folders = [*over, *(one for one in kept.folders() if run_of(one) == plan.run)]
            copies = frames.enter_context(read_kept(spark, run.settings, folders))
            missed = collected(spark, referenced(spark, copies, references, ALIKE))
            uncopied: list[dict[str, Any]] = []
            if self._groups and not plan.keep:
                planned = self._planned(spark, frames, plan.deletes)
                uncopied = collected(spark, referenced(spark, planned, references, ALIKE))
        there = kept.james.heads([row[KEY] for row in uncopied if row[KEY] not in spared])
        why = "referred to again, and no copy was kept"
        self._note({key: why for key, blob in there.items() if blob is None})
        self._put_back((row["place"], row["size"]) for row in missed)

    def _planned(self, spark: Session, frames: ExitStack, groups: Sequence[RowGroup]) -> Frame:
        folder = self._run.folder
        return frames.enter_context(read_planned(spark, folder.artifacts, folder.name, groups))

    def _references(self, frames: ExitStack) -> list[Frame]:
        sources, _ = sources_of(self._run.stores)
        found = read_references(self._spark, self._run.settings, sources)
        for frame in found:
            frames.enter_context(frame)
        return found


def next_round(groups: int, seconds: float) -> int:
    """Groups of the next round, after one of so many took so long.

    Each round costs a Spark job, 0.2 s of CPU. A long one goes on without a lock that was lost.
    """
    if seconds < _SHORT_ROUND_S:
        return 2 * groups
    return max(1, groups // 2) if seconds > _LONG_ROUND_S else groups
