"""Step 4: look again: what was dealt with has left the queue, and what was exported is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mailslice.duties.dead_letters.export import is_exported
from mailslice.duties.dead_letters.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.duty.lock import LockHeld, locked
from mailslice.model.errors import TryAgain
from mailslice.quality.gate import Expectation, Frame
from mailslice.queue.dead_letters import Letter, look


def run(context: StepContext) -> dict[str, Any]:
    """What is there now. Raises GateFailed, TryAgain while another run holds the queue. Nothing was planned: the queue is not disturbed again."""
    plan, applied = read_plan(context), context.need("apply")
    return judged(context, "verify", [after(context, plan, applied)])


def after(context: StepContext, plan: Plan, applied: dict[str, Any]) -> Frame:
    """One row: the letters of the plan as they are now."""
    now = (
        Counter(letter.key for letter in _letters(context))
        if applied["applied"]
        else Counter[str]()
    )
    planned = Counter(letter.key for letter in plan.acted)
    kept = applied["skipped"] + applied["left"]
    row = {
        "planned_still_there": sum((now & planned).values()),
        "exports_missing": sum(
            not is_exported(context.folder.artifacts, name) for name in applied["exports"]
        ),
    }
    expect = [
        Expectation.between(
            "planned_still_there",
            0,
            kept,
            "Of the planned letters none is in the queue but those that were skipped or left.",
        ),
        Expectation.equal(
            "exports_missing", 0, "Every exported letter is in its file, byte for byte."
        ),
    ]
    return Frame("after", [row], expect)


def _letters(context: StepContext) -> Sequence[Letter]:
    """What is in the queue now; a run that works on it meanwhile is waited for, and again when the step is: what was planned is done, nothing is refused."""
    try:
        with locked(context.stores.own.locks, f"dead_letters/{context.queue}", context.request.run):
            return look(context.stores, context.queue).letters
    except LockHeld as held:
        raise TryAgain(str(held)) from held
