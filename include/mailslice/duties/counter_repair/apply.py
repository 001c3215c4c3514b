"""Step 3: correct the counters that the plan lists, each after a second read; then, where it was asked for, the rows of the projection.

May be run again: a mailbox that this run has claimed gets no second update, whatever became of the first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any
from uuid import UUID

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.differences import REPAIRABLE
from mailslice.duties.counter_repair.parallel import beside_each_other
from mailslice.duties.counter_repair.plan_file import (
    Drift,
    Plan,
    read_drifts,
    read_plan,
    require_files,
)
from mailslice.duties.counter_repair.projection import repair_projection
from mailslice.duties.counter_repair.repairing import (
    DONE,
    FAILED,
    LEFT,
    SKIPPED,
    UNKNOWN,
    Outcome,
    Repair,
)
from mailslice.duties.counter_repair.second_read import Unprojected, unprojected
from mailslice.duty.clocks import require_clock
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import require_gate
from mailslice.model import crash

BULKY = ("outcomes",)
_AT_ONCE = 1_000
_THREADS = 8
_SHOWN = 20
NOT_REACHED = "the step ended before it"
_MOST_FAILURES = 20
"""So many mailboxes one after the other: the store is away, and the rest is left."""


def run(context: StepContext, *, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Apply the plan of this run. Raises PlanRefused when plan or files were changed, or the gate was not passed."""
    plan = read_plan(context.need("plan"), context.request.run)
    require_gate(context, plan)
    require_clock(context)
    require_files(plan, context.folder)
    drifts = read_drifts(plan, context.folder)
    if drifts or (
        plan.repair_projection and any(plan.inconsistencies.get(kind) for kind in REPAIRABLE)
    ):
        _settle(context, plan, sleep)
    with locked(
        context.stores.own.locks, f"{context.request.duty}/{context.queue}", context.request.run
    ) as lock:
        crash.point("apply:locked")
        found = _repaired(context, plan, drifts, lock)
        crash.point("apply:after-counters")
        projection = repair_projection(context, plan, lock) if plan.repair_projection else None
    return {**found, "projection": projection}


def _settle(context: StepContext, plan: Plan, sleep: Callable[[float], None]) -> None:
    """Wait until the second read is `settle` after the end of the first."""
    remaining = (plan.read_at + plan.settle - context.clock()).total_seconds()
    if remaining > 0:
        sleep(remaining)


def _repaired(
    context: StepContext, plan: Plan, drifts: Sequence[Drift], lock: Lock
) -> dict[str, Any]:
    """What became of every drift; also in progress.json, whatever ends it: what was done before is in the report then."""
    waiting = iter(drifts)
    work = _Work(context, Repair(context, plan, lock))
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            while chunk := list(islice(waiting, _AT_ONCE)):
                work.unprojected = unprojected(
                    plan, context.folder, [drift.mailbox for drift in chunk]
                )
                for outcome in beside_each_other(pool, work.mailbox, chunk):
                    work.count(outcome)
    finally:
        found = _summary(
            plan,
            [
                work.ended.get(drift.mailbox, Outcome(drift.mailbox, LEFT, NOT_REACHED))
                for drift in drifts
            ],
        )
        context.folder.write_json("progress.json", found)
    return found


class _Work:
    """What the threads do, and when they stop."""

    def __init__(self, context: StepContext, repair: Repair) -> None:
        self.unprojected: Unprojected = {}
        self.ended: dict[UUID, Outcome] = {}
        self._context = context
        self._repair = repair
        self._failed = 0

    def mailbox(self, drift: Drift) -> Outcome:
        """One mailbox, unless it is too late for a new one."""
        outcome = self._too_late(drift.mailbox) or self._repair.mailbox(
            drift, self.unprojected.get(drift.mailbox, ())
        )
        self.ended[drift.mailbox] = outcome
        return outcome

    def _too_late(self, mailbox: UUID) -> Outcome | None:
        if self._context.out_of_time():
            return Outcome(mailbox, LEFT, decide.TIME_OVER)
        return (
            Outcome(mailbox, LEFT, f"{self._failed} mailboxes before it failed")
            if self._failed >= _MOST_FAILURES
            else None
        )

    def count(self, outcome: Outcome) -> None:
        """Failures one after the other."""
        if outcome.verdict != LEFT:
            self._failed = self._failed + 1 if outcome.verdict in {FAILED, UNKNOWN} else 0


def _summary(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    reasons = Counter(outcome.why for outcome in outcomes if outcome.verdict == SKIPPED)
    failures = {
        str(outcome.mailbox): outcome.why
        for outcome in outcomes
        if outcome.verdict in {FAILED, UNKNOWN}
    }
    return {
        "planDigest": plan.digest,
        "planned": len(outcomes),
        "applied": verdicts[DONE],
        "skipped": verdicts[SKIPPED],
        "failed": verdicts[FAILED] + verdicts[UNKNOWN],
        "unknown": verdicts[UNKNOWN],
        "left": verdicts[LEFT],
        "skippedBy": dict(reasons),
        "failures": dict(islice(failures.items(), _SHOWN)),
        "outcomes": {str(outcome.mailbox): [outcome.verdict, outcome.why] for outcome in outcomes},
    }
