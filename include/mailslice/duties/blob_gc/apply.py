"""Step 3: do what the plan lists, and nothing else: put back what is missed, read every reference again, record candidates, delete, look once more.

Every stage may be the last one: groups that are done are remembered, and a kept copy whose blob is referred to is put back by this run or by any later one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.blob_gc import candidates
from mailslice.duties.blob_gc.deleting import Deleting, Outcome, delete_groups
from mailslice.duties.blob_gc.kept import PRESENT, RESTORED, Kept, KeptBlobs
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
from mailslice.spark.frames import InProcess, Session, slots_of
from mailslice.spark.key_sets import KEY, collected, referenced

_PROGRESS = "progress.json"
_GROUPS_A_SLOT = 4
"""Groups that a slot gets at once: between two rounds the lock and the time limit are looked at."""
_SETTLE = timedelta(seconds=5)
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
            return cls(context, context.clock(), values={"planDigest": plan.digest, "planned": plan.planned})
        return cls(context, datetime.fromisoformat(found["started"]), found["groups"], found["values"])

    def keep(self, **more: Any) -> None:
        self.values |= more
        self.context.folder.write_json(
            _PROGRESS, {"planDigest": self.values["planDigest"], "started": iso(self.started), "groups": self.groups, "values": self.values}
        )

    def done(self, group: Group) -> bool:
        return f"{group.file}/{group.number}" in self.groups

    def add(self, found: dict[tuple[str, int], Outcome]) -> None:
        self.groups |= {f"{file}/{number}": outcome.as_json() for (file, number), outcome in found.items()}
        total = self.total()
        self.keep(applied=total.deleted, failed=total.failed, skippedBy=dict(+total.skipped), skipped=sum(total.skipped.values()), bytesDeleted=total.size)

    def total(self) -> Outcome:
        total = Outcome()
        for each in self.groups.values():
            total.add(Outcome(each["deleted"], each["size"], each["failed"], each["skipped"], each["problems"]))
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
        raise PlanRefused(f"the plan of run {context.request.run} is about bucket {plan.bucket}, the settings name {context.settings.s3.bucket}: plan again")


def _apply(context: StepContext, plan: Plan, lock: Lock) -> dict[str, Any]:
    progress, spark = _Progress.of(context, plan), context.spark()
    progress.keep()
    spent = Spent()
    with KeptBlobs(context.settings, context.throttle("s3")) as kept:
        kept.own.ensure_bucket()
        restored = _put_back(kept, [found for place in plan.restores if (found := Kept.of(place, 0)) is not None])
        progress.keep(restored=len(restored.back), notRestored=restored.problems)
        crash.point("apply:after-restores")

        spared = _referenced_again(context, plan, spark)
        spent.on("secondScan")
        crash.point("apply:after-second-scan")
        lock.check()
        now = context.clock()
        candidates.record(context, candidates.Candidates(plan.run, now, (*plan.deletes, *plan.candidates), tuple(sorted(spared)), plan.sources))
        progress.keep(candidates=plan.waiting, recorded=iso(now))
        crash.point("apply:after-candidates")

        _delete(context, plan, progress, lock, spared=spared)
        spent.on("deleting")
        crash.point("apply:after-deletes")

        # A delete of this try or of one that was killed: references that came while it worked are looked for, and what they name is put back.
        again = _look_again(context, plan, spark, kept, spared) if progress.groups else _Back()
        progress.keep(restored=len({*restored.back, *again.back}), notRestored=[*restored.problems, *again.problems][:_SHOWN])
        spent.on("lookAgain")
        crash.point("apply:after-look")
        lock.check()
        expired, unexpired = kept.forget_expired(context.clock(), but_of=plan.run)
    return {**_summary(plan, progress, expired, unexpired), "spent": spent.seconds}


@dataclass(slots=True)
class _Back:
    """Keys that were put back, and what could not be."""

    back: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def _put_back(kept: KeptBlobs, copies: Sequence[Kept]) -> _Back:
    found = kept.restore(copies)
    problems = [f"{key}: {why}" for key, why in found.items() if why not in {RESTORED, PRESENT}]
    return _Back({key for key, why in found.items() if why == RESTORED}, problems)


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
        return frozenset(row[KEY] for row in collected(spark, referenced(spark, planned, references, ALIKE)))


def _references(context: StepContext, spark: Session, frames: ExitStack) -> list[Any]:
    sources, _ = sources_of(context.stores)
    return [frames.enter_context(frame) for frame in read_references(spark, context.settings, sources)]


def _delete(context: StepContext, plan: Plan, progress: _Progress, lock: Lock, *, spared: frozenset[str]) -> None:
    expires = progress.started + plan.keep if plan.keep > timedelta(0) else None
    spark, place = context.spark(), context.folder.artifacts
    what = Deleting(context.settings, plan.run, place, context.folder.file(FOLDER), expires, context.throttle("s3"))
    waiting = [group for group in plan.deletes if not progress.done(group)]
    a_round = 1 if isinstance(spark, InProcess) else _GROUPS_A_SLOT * slots_of(spark)
    for at in range(0, len(waiting), a_round):
        if context.out_of_time():
            return
        lock.check()
        progress.add(delete_groups(spark, what, waiting[at : at + a_round], spared))


def _look_again(context: StepContext, plan: Plan, spark: Session, kept: KeptBlobs, spared: frozenset[str]) -> _Back:
    """Put back what this run deleted and something refers to now; without copies, say what is missed."""
    time.sleep(min(plan.grace, _SETTLE).total_seconds())  # a mail that was being saved while its blob went has its row by then
    with ExitStack() as frames:
        if plan.keep:
            folders = [folder for folder in kept.folders() if folder.split("/")[2] == plan.run]
            deleted = frames.enter_context(read_kept(spark, context.settings, folders))
        else:
            deleted = frames.enter_context(read_planned(spark, context.folder.artifacts, context.folder.file(FOLDER), plan.deletes))
        rows = collected(spark, referenced(spark, deleted, _references(context, spark, frames), ALIKE))
    if plan.keep:
        return _put_back(kept, [found for row in rows if (found := Kept.of(row["place"], row["size"])) is not None])
    there = kept.james.heads([row[KEY] for row in rows if row[KEY] not in spared])
    return _Back(problems=[f"{key}: referred to again, and no copy was kept" for key, found in there.items() if found is None])


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
