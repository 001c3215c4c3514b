"""Drop deleted marks with a proof that their mails are not handled again, without a row (I5).

A run drops the marks of its own plan when it can prove them itself, and those that an earlier sweep
listed. What it cannot prove stays: a sweep lists every mark without a row (ADR 41).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from mailslice.duties.queue_cleanup import candidates
from mailslice.duties.queue_cleanup.candidates import MARKS_FOLDER
from mailslice.duties.queue_cleanup.plan import Candidates, CleanupPlan, PlannedPartition
from mailslice.duties.queue_cleanup.reads import Remaining
from mailslice.engine.frames import slots_of
from mailslice.engine.mark_deletion import (
    Dropped,
    Dropping,
    Halves,
    drop_listed,
    drop_planned,
    halves_of,
)
from mailslice.maintenance.artifacts import PLAN_FOLDER, iso
from mailslice.maintenance.drained import last_seen_empty, sample_again
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, PlanRefused
from mailslice.model.names import QueueTable
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.view.sharing import is_alone

_V3 = "enqueuedMailsV3 still holds rows of the queue"
_UNCOUNTED = "the dead letters could not be counted"
_NOT_AGREED = (
    "MAILSLICE_QUEUE_SHARED was changed since this run began, or a worker of the last day goes by "
    "another, or is of an earlier version"
)
_DEAD_LETTER = "the mail is among the dead letters"
_ALWAYS = datetime.max.replace(tzinfo=UTC)
DRAINED, CLEANED_CHECK = "drained", "cleaned_check"
_UNPROVED = {
    DRAINED: "the broker was not seen empty since the marks were read",
    CLEANED_CHECK: "they have no row, and a slice of the time when that was seen is not closed yet",
}


@dataclass
class MarksOutcome:
    """Marks of plan and last sweep: those `waiting`, and why. `listed`: by this run's own sweep."""

    dropped: int = 0
    waiting: int = 0
    why: dict[str, int] = field(default_factory=dict)
    proof: str | None = None
    listed: int = 0

    def wait(self, marks: int, why: str) -> None:
        if marks:
            self.waiting += marks
            self.why[why] = self.why.get(why, 0) + marks

    def count(self, dropped: Dropped) -> None:
        self.dropped += dropped.dropped
        self.wait(dropped.blocked, _DEAD_LETTER)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "why": [f"{count}: {why}" for why, count in self.why.items()]}


@dataclass(frozen=True, slots=True)
class _Batch:
    """Marks that go by one proof: all were there at `written_until`.

    `listed`: by the last sweep; None: they are of planned rows, which were in closed slices.
    """

    marks: int
    written_until: datetime
    listed: Candidates | None = None


def drop_proved_marks(  # noqa: PLR0917 - the plan, what became of it, and how fast
    run: Run,
    plan: CleanupPlan,
    planned: Sequence[PlannedPartition],
    remaining: Remaining,
    first: datetime | None,
    throttle: Throttle,
) -> MarksOutcome:
    """Drop the marks that have their proof. `first`: when this run saw the queue empty."""
    outcome, batches = MarksOutcome(), []
    if own := plan.planned - remaining.planned:
        batches.append(_Batch(own, plan.marks_read))
    if (listed := plan.candidates) is not None:
        batches.append(_Batch(listed.marks, listed.listed_at, listed))
    if not batches:
        return outcome
    if why := _why_none(run, plan):
        return _waits(outcome, batches, why)
    shared = run.settings.queue.shared
    outcome.proof = DRAINED if shared else CLEANED_CHECK
    until = _drained_until(run, plan, batches, first) if shared else _closed_until(run, plan)
    proved = []
    for batch in batches:
        if (batch.listed is None and not shared) or (until and batch.written_until <= until):
            proved.append(batch)
        else:
            outcome.wait(batch.marks, f"{_UNPROVED[outcome.proof]} ({iso(batch.written_until)})")
    blocked = _dead_letters(run) if proved else None
    if blocked is None:
        return _waits(outcome, proved, _UNCOUNTED)
    _drop(run, proved, planned, outcome, throttle, rows=remaining.ids(), blocked=blocked)
    return outcome


def _drop(
    run: Run,
    batches: Sequence[_Batch],
    planned: Sequence[PlannedPartition],
    outcome: MarksOutcome,
    throttle: Throttle,
    *,
    rows: Halves,
    blocked: Halves,
) -> None:
    """Drop marks, but for those of ids in `rows`, which exist, and in `blocked`."""
    spark, artifacts = run.spark(), run.folder.artifacts
    turn = None if throttle.free else throttle.share(slots_of(spark)).take
    for batch in batches:
        sweep = run.request.run if batch.listed is None else batch.listed.run
        folder = replace(run.folder, run=sweep).file(MARKS_FOLDER if batch.listed else PLAN_FOLDER)
        spec = Dropping(run.settings, run.queue, artifacts, folder, turn)
        if batch.listed is None:
            parts = [partition.part for partition in planned]
            outcome.count(drop_planned(spark, spec, parts, rows=rows, blocked=blocked))
            crash.point("apply:inside-marks")
            continue
        try:
            files = batch.listed.files
            outcome.count(drop_listed(spark, spec, files, rows=rows, blocked=blocked))
        except PlanRefused as error:
            outcome.wait(batch.marks, f"{error}: the next sweep lists its marks again")
        # What stays of them, the next sweep lists again.
        candidates.forget(run, batch.listed)


def _waits(outcome: MarksOutcome, batches: Sequence[_Batch], why: str) -> MarksOutcome:
    for batch in batches:
        outcome.wait(batch.marks, why)
    return outcome


def _why_none(run: Run, plan: CleanupPlan) -> str | None:
    """Why no mark of this queue may go now, whatever is proved."""
    v3 = run.stores.tables.v3
    if QueueTable.V3 in plan.tables and next(v3.partitions(run.queue), None) is not None:
        return _V3  # marks may still speak for rows there that nobody planned
    if not run.settings.queue.shared and not is_alone(run.stores, run.queue):
        return _NOT_AGREED
    return None


def _drained_until(
    run: Run, plan: CleanupPlan, batches: Sequence[_Batch], first: datetime | None
) -> datetime | None:
    """The broker was seen empty after this time, whatever two clocks differ; None: nobody knows."""
    drained_at = last_seen_empty(run.stores, run.queue)
    if drained_at is not None:
        # Each of two machines may differ so much from Cassandra's clock.
        drained_at -= (plan.grace + run.settings.duty.grace) / 4
        if all(batch.written_until <= drained_at for batch in batches):
            return drained_at
    # This apply began after all marks were read.
    return _ALWAYS if sample_again(run.stores, run.queue, first, run.clock) else drained_at


def _closed_until(run: Run, plan: CleanupPlan) -> datetime:
    """Slices that began until then are closed.

    Every consumer is a mailslice worker, which dead-letters a delivery of such a slice that has
    neither row nor mark.
    """
    return run.clock() - plan.shape.largest_window - plan.grace


def _dead_letters(run: Run) -> Halves | None:
    """Ids among the dead letters, which a redrive would bring back; None: nobody could say."""
    if not run.settings.queue.shared:
        return halves_of([])
    try:
        ids = dead_letter_ids(run.settings, run.queue)
    except MailsliceError:
        return None
    return halves_of([enqueue_id.bytes[8:] for enqueue_id in ids])
