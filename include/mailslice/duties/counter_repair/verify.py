"""Step 4: read the corrected counters back, and those that were left.

Users go on working: a mailbox that moved since the plan is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mailslice.duties.counter_repair.decide import RIGHT_NOW
from mailslice.duties.counter_repair.parallel import beside_each_other
from mailslice.duties.counter_repair.plan_file import (
    Drift,
    Plan,
    read_drifts,
    read_plan,
    require_files,
)
from mailslice.duties.counter_repair.repairing import DONE
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
    """A mailbox now: what is stored, what is there, and whether its messages are those of the plan."""

    drift: Drift
    applied: bool
    stored: Counters
    computed: Counters
    moved: bool

    @property
    def left(self) -> Counters:
        """The drift that is left: stored less computed."""
        return Counters(
            self.stored.count - self.computed.count, self.stored.unseen - self.computed.unseen
        )


def run(context: StepContext) -> dict[str, Any]:
    """What is there now, and whether every correction is right. Raises GateFailed."""
    plan = read_plan(context.need("plan"), context.request.run)
    require_files(plan, context.folder)
    applied = context.need("apply")
    drifts = read_drifts(plan, context.folder)
    outcomes = applied["outcomes"]
    found = looked_at(
        context,
        plan,
        drifts,
        {mailbox for mailbox, outcome in outcomes.items() if outcome[0] == DONE},
    )
    right = {str(each.drift.mailbox) for each in found if each.left == Counters(0, 0)}
    right |= {mailbox for mailbox, outcome in outcomes.items() if outcome[1] == RIGHT_NOW}
    after = {
        "wrong": len(drifts) - len(right),
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
    """One row a corrected mailbox that did not move since."""
    rows = [
        {
            "mailbox": str(each.drift.mailbox),
            "left_count": each.left.count,
            "left_unseen": each.left.unseen,
        }
        for each in found
        if each.applied and not each.moved
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
    context: StepContext, plan: Plan, drifts: Sequence[Drift], applied: set[str]
) -> list[After]:
    """The corrected mailboxes and the largest of the others, in the plan's order."""
    wanted = [
        drift
        for place, drift in enumerate(drifts)
        if place < _LARGEST or str(drift.mailbox) in applied
    ]
    also = unprojected(plan, context.folder, [drift.mailbox for drift in wanted])
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(
            beside_each_other(
                pool, lambda drift: _look(context, plan, drift, also, applied), wanted
            )
        )


def _look(
    context: StepContext, plan: Plan, drift: Drift, also: Unprojected, applied: Iterable[str]
) -> After:
    stored = context.stores.mailboxes.counters(drift.mailbox)
    done = str(drift.mailbox) in applied
    if done and stored == Counters(drift.seen.count, drift.seen.unseen):
        return After(
            drift, done, stored, stored, moved=False
        )  # what was to be stored is: its messages need no third read
    seen = read_again(
        context.stores,
        drift.mailbox,
        also.get(drift.mailbox, ()),
        trust_projection=plan.trust_projection,
    )
    return After(drift, done, stored, Counters(seen.count, seen.unseen), moved=seen != drift.seen)


def shown(after: After) -> dict[str, Any]:
    """As reports show it."""
    return {
        "mailbox": str(after.drift.mailbox),
        "stored": {"count": after.stored.count, "unseen": after.stored.unseen},
        "computed": {"count": after.computed.count, "unseen": after.computed.unseen},
        "drift": {"count": after.left.count, "unseen": after.left.unseen},
    }
