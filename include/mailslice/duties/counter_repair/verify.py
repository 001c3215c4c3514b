"""Step 4: read every planned mailbox back: all that this run claimed, by the claims in the store, must be right.

Users go on working: a mailbox that moved since the plan is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.parallel import beside_each_other
from mailslice.duties.counter_repair.plan_file import (
    Drift,
    Plan,
    read_drifts,
    read_plan,
    require_files,
)
from mailslice.duties.counter_repair.repairing import DONE, LEFT
from mailslice.duties.counter_repair.second_read import Unprojected, read_again, unprojected
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.quality.gate import Expectation, Frame
from mailslice.stores.cassandra.mailboxes import Counters

BULKY = ("drifts",)
_LARGEST = 20
_THREADS = 8


@dataclass(frozen=True, slots=True)
class After:
    """A mailbox now: what is stored, what is there, and whether its messages moved since the plan.

    `applied`: whether the update was done; None when it was sent and nobody knows.
    """

    drift: Drift
    applied: bool | None
    stored: Counters
    computed: Counters
    moved: bool

    @property
    def left(self) -> Counters:
        """The drift that is left: stored less computed."""
        return Counters(
            self.stored.count - self.computed.count, self.stored.unseen - self.computed.unseen
        )

    @property
    def wrong(self) -> Counters:
        """As `left`; an update that may not have been done may leave what the plan read."""
        as_before = self.applied is None and self.stored == self.drift.stored
        return Counters(0, 0) if as_before else self.left


def run(context: StepContext) -> dict[str, Any]:
    """What is there now, and whether every correction is right. Raises GateFailed."""
    plan = read_plan(context.need("plan"), context.request.run)
    require_files(plan, context.folder)
    drifts = read_drifts(plan, context.folder)
    found = looked_at(context, plan, drifts, context.need("apply")["outcomes"])
    after = {
        "wrong": sum(each.left != Counters(0, 0) for each in found),
        "largest": [shown(each) for each in found[:_LARGEST]],
    }
    context.folder.write_json("after.json", {"after": after})
    return {
        **judged(context, "verify", [unmoved(found)]),
        "after": after,
        "movedSince": sum(each.moved for each in found if each.applied),
        "drifts": {str(each.drift.mailbox): each.left.count for each in found},
    }


def unmoved(found: Sequence[After]) -> Frame:
    """One row a mailbox that this run has sent an update to, and that did not move since."""
    rows = [
        {
            "mailbox": str(each.drift.mailbox),
            "left_count": each.wrong.count,
            "left_unseen": each.wrong.unseen,
        }
        for each in found
        if each.applied is not False and not each.moved
    ]
    expect = [
        Expectation.equal(
            f"left_{name}",
            0,
            f"Every corrected mailbox that did not move since has the {name} of its messages.",
        )
        for name in ("count", "unseen")
    ]
    return Frame("corrected", rows, expect, may_be_empty=True)


def looked_at(
    context: StepContext,
    plan: Plan,
    drifts: Sequence[Drift],
    outcomes: Mapping[str, Sequence[str]],
) -> list[After]:
    """Every planned mailbox, in the plan's order. `outcomes`: what apply says, by mailbox."""
    also = unprojected(plan, context.folder, [drift.mailbox for drift in drifts])

    def look(drift: Drift) -> After:
        verdict, *_ = outcomes.get(str(drift.mailbox), (LEFT,))
        return _look(context, plan, drift, also, verdict)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(beside_each_other(pool, look, drifts))


def _look(context: StepContext, plan: Plan, drift: Drift, also: Unprojected, verdict: str) -> After:
    """The messages are not read where the counters suffice.

    They do when what was to be stored is, and when the time limit left a mailbox as it was.
    """
    stored = context.stores.mailboxes.counters(drift.mailbox)
    planned = Counters(drift.seen.count, drift.seen.unseen)
    applied = verdict == DONE or _was_applied(context, plan.run, drift.mailbox)
    if applied is not False and stored == planned:
        return After(drift, applied, stored, stored, moved=False)
    if applied is False and verdict == LEFT and stored == drift.stored:
        return After(drift, applied, stored, planned, moved=False)
    seen = read_again(
        context.stores,
        drift.mailbox,
        also.get(drift.mailbox, ()),
        trust_projection=plan.trust_projection,
    )
    return After(drift, applied, stored, Counters(seen.count, seen.unseen), seen != drift.seen)


def _was_applied(context: StepContext, run: str, mailbox: UUID) -> bool | None:
    """What the store says of the run's update: None when it was sent, or may have been, and nobody wrote how it ended."""
    for claim in context.stores.own.counter_claims.list(mailbox):
        if claim.run == run and claim.outcome != decide.WITHDRAWN:
            return claim.outcome == decide.APPLIED or None
    return False


def shown(after: After) -> dict[str, Any]:
    """As reports show it."""
    return {
        "mailbox": str(after.drift.mailbox),
        "stored": {"count": after.stored.count, "unseen": after.stored.unseen},
        "computed": {"count": after.computed.count, "unseen": after.computed.unseen},
        "drift": {"count": after.left.count, "unseen": after.left.unseen},
    }
