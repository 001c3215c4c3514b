"""Deleted marks go only with a proof that their mails cannot be handled again, and only when no row with their id is left (I5).

The ids are in plans: this run's, and those of earlier runs that pending_marks remembers. A plan is registered before its first row is deleted,
so that a killed run's marks are found again when their rows are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from mailslice.duties.queue_cleanup.pending import Left, OpenedPending
from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan
from mailslice.duties.queue_cleanup.remaining import Remaining, read_remaining, v3_holds_rows
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.emptiness import last_seen_empty, sample_again
from mailslice.duty.throttle import Throttle
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, PlanRefused
from mailslice.model.mail import EnqueueId
from mailslice.spark.compare import low_half
from mailslice.spark.frames import slots_of
from mailslice.spark.marks import Dropped, Dropping, digest_of_parts, drop_marks
from mailslice.stores.cassandra.own import PendingMark
from mailslice.stores.rabbitmq.census import dead_letter_ids

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class MarksOutcome:
    """`dropped` marks; `waiting` for a proof, over all runs of the queue, and why."""

    dropped: int = 0
    waiting: int = 0
    why: tuple[str, ...] = ()
    proof: str | None = None

    def as_json(self) -> dict[str, object]:
        """For reports."""
        return {
            "dropped": self.dropped,
            "waiting": self.waiting,
            "why": list(self.why),
            "proof": self.proof,
        }


@dataclass
class _Account:
    dropped: int = 0
    waiting: int = 0
    why: dict[str, int] = field(default_factory=dict)

    def wait(self, marks: int, why: str) -> None:
        self.waiting += marks
        self.why[why] = self.why.get(why, 0) + marks

    def outcome(self, proof: str | None) -> MarksOutcome:
        return MarksOutcome(
            self.dropped,
            self.waiting,
            tuple(f"{count}: {why}" for why, count in self.why.items()),
            proof,
        )


def drop_proved_marks(
    context: StepContext, plan: Plan, remaining: Remaining, throttle: Throttle
) -> MarksOutcome:
    """Drop the marks of all plans that have their proof; what waits and why."""
    stores, queue = context.stores, context.queue
    pending = stores.own.pending_marks.list(queue)
    account = _Account()
    if not pending:
        return account.outcome(None)
    if v3_holds_rows(context, plan.tables):
        for each in pending:
            account.wait(each.marks, "enqueuedMailsV3 still holds rows of the queue")
        return account.outcome(None)
    proof, proved = _proved(context, pending)
    blocked = _dead_letters(context) if context.settings.queue.shared and proved else frozenset()
    if blocked is None:
        for each in pending:
            account.wait(each.marks, "the dead letters could not be counted")
        return account.outcome(None)
    work = [OpenedPending.open(context, plan, each) for each in pending if each.run in proved]
    for each in pending:
        if each.run not in proved:
            account.wait(each.marks, f"{_UNPROVED[proof]} ({iso(each.closed_at)})")
    if work:
        elsewhere = [place for each in work for place in each.places]
        everything = read_remaining(context, plan, elsewhere) if elsewhere else remaining
        dropper = _Dropper(context, everything.ids(), blocked, throttle, account)
        for opened in work:
            dropper.drop(opened)
            crash.point("apply:inside-marks")
    return account.outcome(proof)


_UNPROVED = {
    "drained": "the broker was not seen empty since the marks were read",
    "cleaned_check": "they have no row, and a slice of the time when that was seen is not closed yet",
}


def _proved(context: StepContext, pending: Sequence[PendingMark]) -> tuple[str, set[str]]:
    """The name of the proof, and the runs that have it."""
    if not context.settings.queue.shared:
        # Every consumer is a mailslice worker, which dead-letters an old delivery that has neither row nor mark.
        return "cleaned_check", {each.run for each in pending if each.closed_at <= context.clock()}
    seen = last_seen_empty(context.stores, context.queue)
    if any(seen is None or seen < each.closed_at for each in pending):
        planned = (context.summary("plan") or {}).get("seenEmpty")
        sample = sample_again(
            context.stores,
            context.queue,
            datetime.fromisoformat(planned) if planned else None,
            context.clock,
        )
        seen = sample.first_pass if sample is not None else seen
    return "drained", {each.run for each in pending if seen is not None and seen >= each.closed_at}


def _dead_letters(context: StepContext) -> frozenset[str] | None:
    """The ids among the dead letters, which a redrive would bring back; None when nobody could say."""
    try:
        return frozenset(str(each) for each in dead_letter_ids(context.settings, context.queue))
    except MailsliceError:
        return None


@dataclass(frozen=True, slots=True)
class _Dropper:
    """Drops marks of registered plans, but for those in `rows_left` (low halves of ids whose rows are there, sorted) and in `blocked`."""

    context: StepContext
    rows_left: npt.NDArray[np.uint64]
    blocked: frozenset[str]
    throttle: Throttle
    account: _Account

    def drop(self, work: OpenedPending) -> None:
        """Drop what may go of one plan, and remember what may not yet: ids whose rows are there will be planned anew, dead letters are kept by themselves."""
        problem = work.problem or self._changed(work)
        if problem is not None:
            self.account.wait(work.pending.marks, problem)
            return
        dropped = (
            self._drop_few(work.left) if work.plan is None else self._drop_plan(work, work.plan)
        )
        self.account.dropped += dropped.dropped
        fields = (each.split("|") for each in dropped.blocked)
        work.keep_only(
            self.context, [(one, int(start), int(bucket)) for one, start, bucket in fields]
        )
        if dropped.blocked:
            self.account.wait(len(dropped.blocked), "the mail is among the dead letters")

    def _dropping(self, work: OpenedPending) -> Dropping:
        turn = (
            None if self.throttle.free else self.throttle.share(slots_of(self.context.spark())).take
        )
        return Dropping(
            self.context.settings,
            self.context.queue,
            self.context.folder.artifacts,
            work.folder.file(PARTS),
            turn,
        )

    def _changed(self, work: OpenedPending) -> str | None:
        """Why the files of an earlier plan are not what was planned; this run's own were compared in the second read."""
        if work.plan is None or work.plan.digest == (self.context.summary("plan") or {}).get(
            "planDigest"
        ):
            return None
        parts = [place.part for place in work.plan.places]
        try:
            same = (
                digest_of_parts(self.context.spark(), self._dropping(work), parts) == work.plan.rows
            )
        except PlanRefused as error:
            # No later run could read them either: they must not keep this one from the marks of other plans and from contentStart.
            return f"the plan of run {work.pending.run} cannot be used: {error}"
        return None if same else f"the plan files of run {work.pending.run} were changed"

    def _drop_plan(self, work: OpenedPending, plan: Plan) -> Dropped:
        parts = [place.part for place in plan.places]
        return drop_marks(
            self.context.spark(),
            self._dropping(work),
            parts,
            rows_left=self.rows_left,
            blocked=self.blocked,
        )

    def _drop_few(self, left: Sequence[Left]) -> Dropped:
        """As `drop_marks`, here, for the few ids that an earlier run had to leave."""
        there = set(self.rows_left.tolist())
        gone = [each for each in left if low_half(each[0]) not in there]
        free = [EnqueueId(UUID(one)) for one, _, _ in gone if one not in self.blocked]
        stopped = tuple(
            f"{one}|{start}|{bucket}" for one, start, bucket in gone if one in self.blocked
        )
        self.throttle.take(len(free))
        self.context.stores.tables.deleted.drop_in_chunks(self.context.queue, free)
        return Dropped(len(free), len(left) - len(gone), stopped)
