"""Drops deleted marks of mails without a row, if a proof shows that none is handled again (I5).

A run drops the marks of its own plan, and those that an earlier sweep listed. Without a proof marks
stay, and a sweep lists every mark without a row (ADR 41).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Self, TypeVar

from mailslice.duties.queue_cleanup import candidates
from mailslice.duties.queue_cleanup.candidates import MARKS_FOLDER
from mailslice.duties.queue_cleanup.plan import Candidates, CleanupPlan
from mailslice.duties.queue_cleanup.reads import END_OF_TIME, Planned, Remaining
from mailslice.engine import mark_deletion
from mailslice.engine.frames import shared, slots_of
from mailslice.engine.mark_deletion import DropCounts, DropSpec, Halves
from mailslice.maintenance.artifacts import PLAN_FOLDER, iso
from mailslice.maintenance.drained import take_sample
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.result import TIME_LIMIT
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import ClockSkew, MailsliceError, PlanRefused
from mailslice.model.names import QueueTable
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.view.sharing import is_alone

K = TypeVar("K")
_MARKS_A_SLOT, _ROUND_S = 25_000, 8.0
"""Marks of a round for each Spark slot; with a rate, at most the marks of `_ROUND_S` seconds."""
_V3 = "enqueuedMailsV3 still holds rows of the queue"
_UNCOUNTED = "the dead letters could not be counted"
_NOT_AGREED = (
    "MAILSLICE_QUEUE_SHARED was changed since this run began, or a worker of the last day has "
    "another value of it or is of an earlier version"
)
_DEAD_LETTER = "the mail is among the dead letters"
DRAINED, CLEANED_CHECK = "drained", "cleaned_check"
_UNPROVED = {
    DRAINED: "the broker was not seen empty since the marks were read",
    CLEANED_CHECK: "they have no row, and slices of the time of the sweep are not closed yet",
}


@dataclass
class MarksOutcome:
    """Marks of the plan and the last sweep: `waiting` ones stay. `listed`: by this run's sweep."""

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

    def count(self, dropped: DropCounts) -> None:
        self.dropped += dropped.dropped
        self.wait(_DEAD_LETTER, dropped.blocked)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "why": [f"{count}: {why}" for why, count in self.why.items()]}


@dataclass(frozen=True, slots=True)
class _Batch:
    """Marks with one proof in common: all were written before `written_until`.

    `listed`: the last sweep's list. None: marks of planned rows, which are in closed slices.
    """

    marks: int
    written_until: datetime
    listed: Candidates | None = None


def drop_proved_marks(
    run: Run, plan: CleanupPlan, planned: Planned, remaining: Remaining, throttle: Throttle
) -> MarksOutcome:
    """Drop the marks that have a proof.

    `planned`: partitions that were read back. No mark is dropped unless the whole view was read.
    """
    outcome, batches = MarksOutcome(), []
    if own := sum(part.rows - remaining.planned_in(part) for part in planned):
        batches.append(_Batch(own, plan.marks_read))
    if (listed := plan.candidates) is not None:
        batches.append(_Batch(listed.marks, listed.listed_at, listed))
    if not batches:
        return outcome
    if why := _obstacle(run, plan) if remaining.is_whole else TIME_LIMIT:
        return outcome.wait(why, *(batch.marks for batch in batches))
    shared = run.settings.queue.shared
    outcome.proof = DRAINED if shared else CLEANED_CHECK
    until = _drained_until(run, plan, batches) if shared else _closed_until(run, plan)
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


def _drop(  # noqa: PLR0917 - the marks, those that stay, the rate
    run: Run,
    batches: Sequence[_Batch],
    planned: Planned,
    remaining: Remaining,
    blocked: Halves,
    throttle: Throttle,
    outcome: MarksOutcome,
) -> None:
    """Drop marks, except those of ids that have a row or are `blocked`.

    Marks that the time limit leaves wait like those without a proof: contentStart depends on rows.
    """
    session, artifacts, pace = run.session(), run.folder.artifacts, throttle.share(1)
    with shared(session, (remaining.ids(), blocked)) as retained:
        for batch in batches:
            sweep = run.request.run if batch.listed is None else batch.listed.run
            name = MARKS_FOLDER if batch.listed else PLAN_FOLDER
            folder = replace(run.folder, run=sweep).file(name)
            spec = DropSpec(run.settings, run.queue, artifacts, folder)
            if batch.listed is None:
                deleted = [(key.part, key.rows - remaining.planned_in(key)) for key in planned]
                parts = [(part, marks) for part, marks in deleted if marks]
                drop_parts = partial(mark_deletion.drop_planned, session, retained=retained)
                _in_rounds(run, spec, parts, drop_parts, pace, outcome)
                continue
            files = [(file, file.rows) for file in batch.listed.files]
            drop_files = partial(mark_deletion.drop_listed, session, retained=retained)
            before = outcome.dropped
            try:
                left = _in_rounds(run, spec, files, drop_files, pace, outcome)
            except PlanRefused as error:
                waiting = batch.marks - (outcome.dropped - before)
                unusable = f"the list in {folder} cannot be used ({error})"
                outcome.wait(f"{unusable}: the next sweep lists its marks again", waiting)
                left = []
            candidates.reduce_to(run, batch.listed, left)


def _in_rounds(  # noqa: PLR0917 - the marks, how they are dropped, the rate
    run: Run,
    spec: DropSpec,
    keys: Sequence[tuple[K, int]],
    drop: Callable[[DropSpec, Sequence[K]], DropCounts],
    pace: Throttle,
    outcome: MarksOutcome,
) -> list[K]:
    """Drop the marks of (key, number of marks). Gives the keys that the time limit leaves.

    Checks the lock and the time limit before each round.
    """
    slots = slots_of(run.session())
    least = slots if pace.per_second is None else 1
    for at, batch in rounds(keys, marks_a_round(pace, slots), least):
        pace.take(sum(marks for _, marks in batch))
        if run.out_of_time():
            outcome.wait(TIME_LIMIT, *(marks for _, marks in keys[at:]))
            return [key for key, _ in keys[at:]]
        run.require_lock()
        # Without a rate only `pace` pauses: a copy of it for one round does not know the last one.
        turn = pace.share(min(len(batch), slots)).take if pace.per_second is not None else None
        outcome.count(drop(replace(spec, turn=turn), [key for key, _ in batch]))
        crash.point("apply:inside-marks")
    return []


def marks_a_round(throttle: Throttle, slots: int) -> float:
    """The most marks of a round."""
    if throttle.per_second is None:
        return _MARKS_A_SLOT * slots
    return min(_MARKS_A_SLOT * slots, _ROUND_S * throttle.per_second * throttle.intensity)


def rounds(
    keys: Sequence[tuple[K, int]], limit: float, least: int
) -> Iterator[tuple[int, Sequence[tuple[K, int]]]]:
    """(index of the first key, keys) of each round: at most `limit` marks, or else `least` keys."""
    at = count = 0
    for end, (_, marks) in enumerate(keys):
        if end - at >= least and count + marks > limit:
            yield at, keys[at:end]
            at, count = end, 0
        count += marks
    if keys:
        yield at, keys[at:]


def _obstacle(run: Run, plan: CleanupPlan) -> str | None:
    """Why no mark of this queue may be dropped now, even with a proof; None if marks may."""
    v3 = run.stores.tables.v3
    if QueueTable.V3 in plan.tables and next(v3.partitions(run.queue), None) is not None:
        return _V3  # unplanned rows there may still need their marks
    if not run.settings.queue.shared and not is_alone(run.stores, run.queue):
        return _NOT_AGREED
    return None


def _drained_until(run: Run, plan: CleanupPlan, batches: Sequence[_Batch]) -> datetime | None:
    """The latest time after which the broker was certainly seen empty; None if it is not known."""
    earlier, usual = run.stores.own.queue_samples.get(run.queue), run.settings.duty.grace
    # The clocks of two machines may differ from Cassandra's by a quarter of a grace each.
    drained_at = earlier.first_pass - (max(plan.grace, usual) + usual) / 4 if earlier else None
    if drained_at and all(batch.written_until <= drained_at for batch in batches):
        return drained_at
    sample = take_sample(run.stores, run.queue, run.clock)
    if sample is None:
        return drained_at
    with suppress(ClockSkew):  # other runs allow for a quarter of the usual grace
        run.require_clock()
        run.stores.own.queue_samples.save(run.queue, sample)
    return END_OF_TIME  # this apply began after all marks were read


def _closed_until(run: Run, plan: CleanupPlan) -> datetime:
    """The latest start of a slice that all workers take for closed, whoever listed the marks.

    They dead-letter a mail of it that has neither row nor mark.
    """
    grace = max(plan.grace, run.settings.duty.grace)
    return run.clock() - plan.shape.largest_window - grace


def _dead_letters(run: Run) -> Halves | None:
    """The ids of dead letters, which a redrive would bring back; None if they cannot be read."""
    if not run.settings.queue.shared:
        return mark_deletion.halves_of([])
    try:
        ids = dead_letter_ids(run.settings, run.queue)
    except MailsliceError:
        return None
    return mark_deletion.halves_of([enqueue_id.bytes[8:] for enqueue_id in ids])
