"""Deleted marks go only with a proof that their mails cannot be handled again, and only when no row with their id is left (I5).

A run drops the marks of its own plan when it can prove them itself, and those that an earlier sweep
listed. What it cannot prove stays: a sweep lists every mark without a row (ADR 41).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from mailslice.duties.queue_cleanup import candidates
from mailslice.duties.queue_cleanup.candidates import FOLDER, Candidates
from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan
from mailslice.duties.queue_cleanup.remaining import Remaining, v3_holds_rows
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.emptiness import last_seen_empty, sample_again
from mailslice.duty.throttle import Throttle
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, PlanRefused
from mailslice.queue.sharing import dissenters
from mailslice.spark.frames import slots_of
from mailslice.spark.marks import Dropped, Dropping, drop_listed, drop_planned, halves_of
from mailslice.stores.rabbitmq.census import dead_letter_ids

if TYPE_CHECKING:
    from mailslice.spark.marks import Halves

_V3 = "enqueuedMailsV3 still holds rows of the queue"
_UNCOUNTED = "the dead letters could not be counted"
_NOT_AGREED = (
    "a worker of the last day goes by another MAILSLICE_QUEUE_SHARED, or is of an earlier version"
)
_DEAD_LETTER = "the mail is among the dead letters"
DRAINED, CLEANED_CHECK = "drained", "cleaned_check"
_UNPROVED = {
    DRAINED: "the broker was not seen empty since the marks were read",
    CLEANED_CHECK: "they have no row, and a slice of the time when that was seen is not closed yet",
}


@dataclass
class MarksOutcome:
    """`dropped` marks; `waiting` for a proof, of this plan and of the last sweep, and why; `listed` by this run's sweep."""

    dropped: int = 0
    waiting: int = 0
    why: dict[str, int] = field(default_factory=dict)
    proof: str | None = None
    listed: int = 0

    def wait(self, marks: int, why: str) -> None:
        """So many stay."""
        if marks:
            self.waiting += marks
            self.why[why] = self.why.get(why, 0) + marks

    def as_json(self) -> dict[str, object]:
        """For reports."""
        why = [f"{count}: {why}" for why, count in self.why.items()]
        return {
            "dropped": self.dropped,
            "waiting": self.waiting,
            "why": why,
            "proof": self.proof,
            "listed": self.listed,
        }


def drop_proved_marks(
    context: StepContext, plan: Plan, left: Remaining, first: datetime | None, throttle: Throttle
) -> MarksOutcome:
    """Drop the marks of this plan and of the last sweep that have their proof. `first`: when this run saw the queue empty."""
    outcome = MarksOutcome()
    own, listed = plan.planned - left.matched, plan.candidates
    if not own and listed is None:
        return outcome
    if v3_holds_rows(context, plan.tables):
        outcome.wait(own + (listed.marks if listed else 0), _V3)
        return outcome
    if not context.settings.queue.shared and dissenters(
        context.stores, shared=False, queue=context.queue
    ):
        outcome.wait(own + (listed.marks if listed else 0), _NOT_AGREED)
        return outcome
    proof = _Proof.of(context, plan, first)
    outcome.proof = proof.name
    lets_own_go = proof.covers(plan.marks_read, has_rows=True)
    lets_listed_go = listed is not None and proof.covers(listed.listed_at, has_rows=False)
    if not lets_own_go:
        outcome.wait(own, f"{_UNPROVED[proof.name]} ({iso(plan.marks_read)})")
    if listed is not None and not lets_listed_go:
        outcome.wait(listed.marks, f"{_UNPROVED[proof.name]} ({iso(listed.listed_at)})")
    if not lets_own_go and not lets_listed_go:
        return outcome
    blocked = _dead_letters(context)
    if blocked is None:
        outcome.wait(own if lets_own_go else 0, _UNCOUNTED)
        outcome.wait(listed.marks if listed and lets_listed_go else 0, _UNCOUNTED)
        return outcome
    dropper = _Dropper(context, left.ids(), blocked, throttle, outcome)
    if lets_own_go and own:
        dropper.planned(plan)
        crash.point("apply:inside-marks")
    if listed is not None and lets_listed_go:
        dropper.listed(listed)
    return outcome


@dataclass(frozen=True, slots=True)
class _Proof:
    """What proves that no mail of a mark can be handled again.

    `own`: this apply saw the queue empty itself. `seen`: somebody did, at that time or later. `closed`: slices that
    began until then are closed.
    """

    name: str
    own: bool = False
    seen: datetime | None = None
    closed: datetime | None = None

    @classmethod
    def of(cls, context: StepContext, plan: Plan, first: datetime | None) -> _Proof:
        """What this run can say."""
        if not context.settings.queue.shared:
            # Every consumer is a mailslice worker, which dead-letters an old delivery that has neither row nor mark.
            closed = context.clock() - plan.shape.largest_window - plan.grace
            return cls(CLEANED_CHECK, closed=closed)
        seen, clocks = last_seen_empty(context.stores, context.queue), _clocks(context, plan)
        proof = cls(DRAINED, seen=seen - clocks if seen is not None else None)
        younger = max([plan.marks_read, *([plan.candidates.listed_at] if plan.candidates else [])])
        if proof.covers(younger, has_rows=True):
            return proof
        own = sample_again(context.stores, context.queue, first, context.clock)
        return cls(DRAINED, own=own is not None, seen=proof.seen)

    def covers(self, written_until: datetime, *, has_rows: bool) -> bool:
        """Whether marks that were all there at that time may go; `has_rows`: those of rows in closed slices."""
        if self.closed is not None:
            return has_rows or written_until <= self.closed
        return self.own or (self.seen is not None and self.seen >= written_until)


def _clocks(context: StepContext, plan: Plan) -> timedelta:
    """How far the clocks of two machines may differ that each compare theirs with Cassandra's."""
    return (plan.grace + context.settings.duty.grace) / 4


def _dead_letters(context: StepContext) -> Halves | None:
    """The ids among the dead letters, which a redrive would bring back; None when nobody could say."""
    if not context.settings.queue.shared:
        return halves_of([])
    try:
        found = dead_letter_ids(context.settings, context.queue)
    except MailsliceError:
        return None
    return halves_of([each.bytes[8:] for each in found])


@dataclass(frozen=True, slots=True)
class _Dropper:
    """Drops marks, but for those of ids in `rows`, which are there, and in `blocked`."""

    context: StepContext
    rows: Halves
    blocked: Halves
    throttle: Throttle
    outcome: MarksOutcome

    def planned(self, plan: Plan) -> None:
        """Those of this run's plan."""
        what = self._dropping(self.context.folder.file(PARTS))
        parts = [place.part for place in plan.places]
        spark = self.context.spark()
        self._count(drop_planned(spark, what, parts, rows=self.rows, blocked=self.blocked))

    def listed(self, listed: Candidates) -> None:
        """Those that a sweep listed. What stays of them, the next sweep lists again."""
        what = self._dropping(listed.folder(self.context).file(FOLDER))
        spark = self.context.spark()
        try:
            dropped = drop_listed(spark, what, listed.files, rows=self.rows, blocked=self.blocked)
            self._count(dropped)
        except PlanRefused as error:
            self.outcome.wait(listed.marks, f"{error}: the next sweep lists its marks again")
        candidates.forget(self.context, listed)

    def _count(self, dropped: Dropped) -> None:
        self.outcome.dropped += dropped.dropped
        self.outcome.wait(dropped.blocked, _DEAD_LETTER)

    def _dropping(self, folder: str) -> Dropping:
        throttle, spark = self.throttle, self.context.spark()
        turn = None if throttle.free else throttle.share(slots_of(spark)).take
        place = self.context.folder.artifacts
        return Dropping(self.context.settings, self.context.queue, place, folder, turn)
