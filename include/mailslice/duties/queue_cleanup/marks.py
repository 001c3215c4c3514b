"""Drop deleted marks with a proof that their mails are not handled again, without a row (I5).

A run drops the marks of its own plan when it can prove them itself, and those that an earlier sweep
listed. What it cannot prove stays: a sweep lists every mark without a row (ADR 41).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Self, TypeVar

from mailslice.duties.queue_cleanup import candidates
from mailslice.duties.queue_cleanup.candidates import MARKS_FOLDER
from mailslice.duties.queue_cleanup.plan import Candidates, CleanupPlan, PlannedPartition
from mailslice.duties.queue_cleanup.reads import END_OF_TIME, Remaining
from mailslice.engine.frames import shared, slots_of
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
from mailslice.maintenance.result import TIME_LIMIT
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, PlanRefused
from mailslice.model.names import QueueTable
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.view.sharing import is_alone

K = TypeVar("K")
_MARKS_A_SLOT, _ROUND_S = 25_000, 8.0
"""Of one round: so many marks for each slot, and of a limited rate so many seconds' worth."""
_V3 = "enqueuedMailsV3 still holds rows of the queue"
_UNCOUNTED = "the dead letters could not be counted"
_NOT_AGREED = (
    "MAILSLICE_QUEUE_SHARED was changed since this run began, or a worker of the last day goes by "
    "another, or is of an earlier version"
)
_DEAD_LETTER = "the mail is among the dead letters"
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

    def wait(self, why: str, *marks: int) -> Self:
        if count := sum(marks):
            self.waiting += count
            self.why[why] = self.why.get(why, 0) + count
        return self

    def count(self, dropped: Dropped) -> None:
        self.dropped += dropped.dropped
        self.wait(_DEAD_LETTER, dropped.blocked)

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
    """Drop the marks that have their proof. `first`: when this run saw the queue empty.

    `planned`: those that were read back. None goes unless the whole view was.
    """
    outcome, batches = MarksOutcome(), []
    if own := sum(one.rows - remaining.planned_in(one) for one in planned):
        batches.append(_Batch(own, plan.marks_read))
    if (listed := plan.candidates) is not None:
        batches.append(_Batch(listed.marks, listed.listed_at, listed))
    if not batches:
        return outcome
    if why := _why_none(run, plan) if remaining.is_whole else TIME_LIMIT:
        return outcome.wait(why, *(batch.marks for batch in batches))
    shared = run.settings.queue.shared
    outcome.proof = DRAINED if shared else CLEANED_CHECK
    until = _drained_until(run, plan, batches, first) if shared else _closed_until(run, plan)
    proved = []
    for batch in batches:
        if (batch.listed is None and not shared) or (until and batch.written_until <= until):
            proved.append(batch)
        else:
            outcome.wait(f"{_UNPROVED[outcome.proof]} ({iso(batch.written_until)})", batch.marks)
    blocked = _dead_letters(run) if proved else None
    if blocked is None:
        return outcome.wait(_UNCOUNTED, *(batch.marks for batch in proved))
    _drop(run, proved, planned, remaining, blocked, throttle, outcome)
    return outcome


def _drop(  # noqa: PLR0917 - which marks, which of them stay, and how fast
    run: Run,
    batches: Sequence[_Batch],
    planned: Sequence[PlannedPartition],
    remaining: Remaining,
    blocked: Halves,
    throttle: Throttle,
    outcome: MarksOutcome,
) -> None:
    """Drop marks, but for those of ids that have a row, and those `blocked`.

    Marks that the time limit leaves wait as those without a proof do: contentStart goes by rows.
    """
    spark, artifacts, pace = run.spark(), run.folder.artifacts, throttle.share(1)
    with shared(spark, (remaining.ids(), blocked)) as retained:
        for batch in batches:
            sweep = run.request.run if batch.listed is None else batch.listed.run
            name = MARKS_FOLDER if batch.listed else PLAN_FOLDER
            folder = replace(run.folder, run=sweep).file(name)
            spec = Dropping(run.settings, run.queue, artifacts, folder)
            if batch.listed is None:
                deleted = [(one.part, one.rows - remaining.planned_in(one)) for one in planned]
                parts = [key for key in deleted if key[1]]
                drop_parts = partial(drop_planned, spark, retained=retained)
                _in_rounds(run, spec, parts, drop_parts, pace, outcome)
                continue
            files = [(file, file.rows) for file in batch.listed.files]
            drop_files = partial(drop_listed, spark, retained=retained)
            before = outcome.dropped
            try:
                left = _in_rounds(run, spec, files, drop_files, pace, outcome)
            except PlanRefused as error:
                waiting = batch.marks - (outcome.dropped - before)
                unusable = f"the list in {folder} cannot be used ({error})"
                outcome.wait(f"{unusable}: the next sweep lists its marks again", waiting)
                left = []
            candidates.reduce_to(run, batch.listed, left)


def _in_rounds(  # noqa: PLR0917 - what is dropped, how, and how fast
    run: Run,
    spec: Dropping,
    keys: Sequence[tuple[K, int]],
    drop: Callable[[Dropping, Sequence[K]], Dropped],
    pace: Throttle,
    outcome: MarksOutcome,
) -> list[K]:
    """Drop the marks of keys, each with their number; the keys that the time limit leaves.

    The lock and the time limit are checked before each round.
    """
    slots = slots_of(run.spark())
    least = slots if pace.per_second is None else 1
    for at, some in rounds(keys, marks_a_round(pace, slots), least):
        pace.take(sum(marks for _, marks in some))
        if run.out_of_time():
            outcome.wait(TIME_LIMIT, *(marks for _, marks in keys[at:]))
            return [key for key, _ in keys[at:]]
        run.require_lock()
        # Without a rate `pace` alone rests: a copy for one round would not know of the one before.
        beside = pace.share(min(len(some), slots)).take if pace.per_second is not None else None
        outcome.count(drop(replace(spec, turn=beside), [key for key, _ in some]))
        crash.point("apply:inside-marks")
    return []


def marks_a_round(throttle: Throttle, slots: int) -> float:
    """A few seconds' worth."""
    if throttle.per_second is None:
        return _MARKS_A_SLOT * slots
    return min(_MARKS_A_SLOT * slots, _ROUND_S * throttle.per_second * throttle.intensity)


def rounds(
    keys: Sequence[tuple[K, int]], most: float, least: int
) -> Iterator[tuple[int, Sequence[tuple[K, int]]]]:
    """Keys of `most` marks together, or `least` keys; where each round begins."""
    at = count = 0
    for end, (_, marks) in enumerate(keys):
        if end - at >= least and count + marks > most:
            yield at, keys[at:end]
            at, count = end, 0
        count += marks
    if keys:
        yield at, keys[at:]


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
    return END_OF_TIME if sample_again(run.stores, run.queue, first, run.clock) else drained_at


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
