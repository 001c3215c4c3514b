"""Step 3: do what the plan lists, and nothing else: put back what is missed, read every reference again, record candidates, delete, look once more.

Every stage may be the last one: groups that are done are remembered, and a kept copy whose blob is referred to is put back by this run or by any later one.
So no copy is forgotten, however long its time is over, before it is known that its blob is there or that nothing refers to it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.blob_gc import candidates
from mailslice.duties.blob_gc.deleting import GONE, Deleting, Outcome, delete_groups
from mailslice.duties.blob_gc.kept import PRESENT, RESTORED, Kept, KeptBlobs, run_of
from mailslice.duties.blob_gc.plan_files import FOLDER, Group
from mailslice.duties.blob_gc.plan_note import Plan, read_plan
from mailslice.duties.blob_gc.reading import ALIKE, read_kept, read_planned, read_references
from mailslice.duties.blob_gc.sources import sources_of
from mailslice.duties.blob_gc.spent import Spent
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import require_gate
from mailslice.model import crash
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import BlobId
from mailslice.spark.frames import InProcess, Session, slots_of
from mailslice.spark.key_sets import KEY, collected, referenced

_PROGRESS = "progress.json"
_GROUPS_A_SLOT = 4
"""Groups that a slot gets at once: between two rounds the lock and the time limit are looked at."""
_SHOWN = 20
_FEW = 2
"""So many groups of candidates are read here and not by Spark."""


@dataclass
class _Progress:
    """What was done so far, kept in the run's folder after each round: a killed apply goes on from there."""

    context: StepContext
    started: datetime
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, context: StepContext, plan: Plan) -> _Progress:
        """That of an earlier try of the same plan, or none."""
        found = context.folder.read_json(_PROGRESS) or {}
        if found.get("planDigest") != plan.digest:
            return cls(
                context,
                context.clock(),
                values={"planDigest": plan.digest, "planned": plan.planned},
            )
        return cls(
            context, datetime.fromisoformat(found["started"]), found["groups"], found["values"]
        )

    def keep(self, **more: Any) -> None:
        self.values |= more
        self.context.folder.write_json(
            _PROGRESS,
            {
                "planDigest": self.values["planDigest"],
                "started": iso(self.started),
                "groups": self.groups,
                "values": self.values,
            },
        )

    def done(self, group: Group) -> bool:
        return f"{group.file}/{group.number}" in self.groups

    def add(self, found: dict[tuple[str, int], Outcome]) -> None:
        self.groups |= {
            f"{file}/{number}": outcome.as_json() for (file, number), outcome in found.items()
        }
        total = self.total()
        self.keep(
            applied=total.deleted,
            failed=total.failed,
            skippedBy=dict(+total.skipped),
            skipped=sum(total.skipped.values()),
            bytesDeleted=total.size,
        )

    def total(self) -> Outcome:
        total = Outcome()
        for each in self.groups.values():
            total.add(
                Outcome(
                    each["deleted"], each["size"], each["failed"], each["skipped"], each["problems"]
                )
            )
        return total


def run(context: StepContext) -> dict[str, Any]:
    """Apply the plan of this run. Raises PlanRefused when plan or files were changed, or the gate was not passed."""
    plan = read_plan(context.need("plan"), context.request.run)
    _require_gate(context, plan)
    with locked(context.stores.own.locks, "blob_gc", context.request.run) as lock:
        crash.point("apply:locked")
        return _apply(context, plan, lock)


def _require_gate(context: StepContext, plan: Plan) -> None:
    require_gate(context, plan)
    if plan.bucket != context.settings.s3.bucket:
        raise PlanRefused(
            f"the plan of run {context.request.run} is about bucket {plan.bucket}, the settings name {context.settings.s3.bucket}: plan again"
        )


def _apply(context: StepContext, plan: Plan, lock: Lock) -> dict[str, Any]:
    progress, spark = _Progress.of(context, plan), context.spark()
    progress.keep()
    spent = Spent()
    with KeptBlobs(context.settings, context.throttle("s3")) as kept:
        kept.own.ensure_bucket()
        back = _Back()
        back.add(_put_back(kept, [(place, 0) for place in plan.restores]))
        progress.keep(**back.as_json())
        crash.point("apply:after-restores")

        spared = _referenced_again(context, plan, spark)
        spent.on("secondScan")
        crash.point("apply:after-second-scan")
        lock.check()
        now = context.clock()
        candidates.record(
            context,
            candidates.Candidates(
                plan.run,
                now,
                (*plan.deletes, *plan.candidates),
                tuple(sorted(spared)),
                plan.sources,
            ),
        )
        progress.keep(candidates=plan.waiting, recorded=iso(now))
        crash.point("apply:after-candidates")

        _delete(context, plan, progress, lock, spared=spared)
        spent.on("deleting")
        crash.point("apply:after-deletes")

        # A delete of this try or of one that was killed, or of a run whose copies are about to be forgotten: references that came since are looked for,
        # and what they name is put back.
        over = kept.expired(context.clock(), but_of=plan.run)
        if progress.groups or over:
            _settle(context, plan, progress.total())
            back.add(
                _look_again(
                    context, plan, spark, kept, over, spared=spared, deleted=bool(progress.groups)
                )
            )
        progress.keep(**back.as_json())
        spent.on("lookAgain")
        crash.point("apply:after-look")
        lock.check()
        expired, unexpired = kept.forget(over, but=back.problems.keys())
    return {**_summary(plan, progress, expired, unexpired), "spent": spent.seconds}


@dataclass(slots=True)
class _Back:
    """Keys of deleted blobs that were put back, and of those that are missed and could not be: why not."""

    restored: set[BlobId] = field(default_factory=set)
    problems: dict[BlobId, str] = field(default_factory=dict)

    def add(self, found: Mapping[BlobId, str]) -> None:
        """What `_put_back` or `_look_again` gave: the last word on each key."""
        for key, why in found.items():
            self.problems.pop(key, None)
            if why == RESTORED:
                self.restored.add(key)
            elif why != PRESENT:
                self.problems[key] = why

    def as_json(self) -> dict[str, Any]:
        """For the run's progress."""
        return {
            "restored": len(self.restored),
            "notRestored": [f"{key}: {why}" for key, why in self.problems.items()][:_SHOWN],
        }


def _put_back(kept: KeptBlobs, copies: Sequence[tuple[str, int]]) -> dict[BlobId, str]:
    """As `KeptBlobs.restore`, for copies by their own key and size."""
    return kept.restore(
        [found for place, size in copies if (found := Kept.of(place, size)) is not None]
    )


def _referenced_again(context: StepContext, plan: Plan, spark: Session) -> frozenset[str]:
    """Planned keys that are referred to now. The files of the whole plan are read, and held against their digests, before anything is done by them."""
    place, folder = context.folder.artifacts, context.folder.file(FOLDER)
    with ExitStack() as frames:
        few = InProcess() if len(plan.candidates) <= _FEW else spark
        frames.enter_context(read_planned(few, place, folder, plan.candidates))
        if not plan.deletes:
            return frozenset()
        planned = frames.enter_context(read_planned(spark, place, folder, plan.deletes))
        references = _references(context, spark, frames)
        return frozenset(
            row[KEY] for row in collected(spark, referenced(spark, planned, references, ALIKE))
        )


def _references(context: StepContext, spark: Session, frames: ExitStack) -> list[Any]:
    sources, _ = sources_of(context.stores)
    return [
        frames.enter_context(frame) for frame in read_references(spark, context.settings, sources)
    ]


def _delete(
    context: StepContext, plan: Plan, progress: _Progress, lock: Lock, *, spared: frozenset[str]
) -> None:
    expires = progress.started + plan.keep if plan.keep > timedelta(0) else None
    spark, place = context.spark(), context.folder.artifacts
    what = Deleting(
        context.settings,
        plan.run,
        place,
        context.folder.file(FOLDER),
        expires,
        context.throttle("s3"),
    )
    waiting = [group for group in plan.deletes if not progress.done(group)]
    a_round = 1 if isinstance(spark, InProcess) else _GROUPS_A_SLOT * slots_of(spark)
    for at in range(0, len(waiting), a_round):
        if context.out_of_time():
            return
        lock.check()
        progress.add(delete_groups(spark, what, waiting[at : at + a_round], spared))


def _settle(context: StepContext, plan: Plan, done: Outcome) -> None:
    """Wait until a mail that was being saved while its blob went has its row: an insert takes as long as a statement may."""
    if done.deleted or done.failed or done.skipped[GONE]:
        time.sleep(min(plan.grace, context.stores.cassandra.longest_statement).total_seconds())


def _look_again(
    context: StepContext,
    plan: Plan,
    spark: Session,
    kept: KeptBlobs,
    over: Sequence[str],
    *,
    spared: frozenset[str],
    deleted: bool,
) -> dict[BlobId, str]:
    """Put back what this run deleted, or a run before it whose copies are `over`, and something refers to now; without copies, say what is missed.

    What became of each key, as `KeptBlobs.restore` says it.
    """
    with ExitStack() as frames:
        references = _references(context, spark, frames)
        folders = [*over, *(folder for folder in kept.folders() if run_of(folder) == plan.run)]
        copies = frames.enter_context(read_kept(spark, context.settings, folders))
        missed = collected(spark, referenced(spark, copies, references, ALIKE))
        uncopied = []
        if deleted and not plan.keep:
            planned = frames.enter_context(
                read_planned(
                    spark, context.folder.artifacts, context.folder.file(FOLDER), plan.deletes
                )
            )
            uncopied = collected(spark, referenced(spark, planned, references, ALIKE))
    there = kept.james.heads([row[KEY] for row in uncopied if row[KEY] not in spared])
    lost = {
        key: "referred to again, and no copy was kept"
        for key, found in there.items()
        if found is None
    }
    return lost | _put_back(kept, [(row["place"], row["size"]) for row in missed])


def _summary(plan: Plan, progress: _Progress, expired: int, unexpired: int) -> dict[str, Any]:
    total = progress.total()
    tried = total.deleted + total.failed + sum(total.skipped.values())
    return {
        "planDigest": plan.digest,
        "planned": plan.planned,
        "applied": total.deleted,
        "skipped": sum(total.skipped.values()),
        "failed": total.failed,
        "left": plan.planned - tried,
        "skippedBy": dict(+total.skipped),
        "failures": total.problems,
        "bytesDeleted": total.size,
        "candidates": plan.waiting,
        "recorded": progress.values["recorded"],
        "restored": progress.values["restored"],
        "notRestored": progress.values["notRestored"],
        "keptUntil": iso(progress.started + plan.keep) if plan.keep and total.deleted else None,
        "expiredCopies": expired,
        "copiesNotDeleted": unexpired,
    }
