"""Step 4: look again: what was dealt with has left the queue, and what was exported is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mailslice.duties.dead_letters.export import is_exported
from mailslice.duties.dead_letters.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.lock import LockHeld, locked
from mailslice.model.errors import TryAgain
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate
from mailslice.queue.dead_letters import Letter, look


def run(context: StepContext) -> dict[str, Any]:
    """What is there now. Raises GateFailed, TryAgain while another run holds the queue. Nothing was planned: the queue is not disturbed again."""
    plan, applied = read_plan(context), context.need("apply")
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("verify", [after(context, plan, applied)], docs)
    return {"success": True, "expectations": result.lines(), "dataDocs": result.link}


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
        "accounted": applied["applied"] + applied["skipped"] + applied["left"] - applied["planned"],
        "by_action": applied["dropped"]
        + applied["exported"]
        + applied["redriven"]
        - applied["applied"],
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
        Expectation.equal("accounted", 0, "Every planned letter was dealt with, skipped or left."),
        Expectation.equal("by_action", 0, "What was dealt with was dropped, exported or redriven."),
    ]
    return Frame("after", [row], expect)


def _letters(context: StepContext) -> Sequence[Letter]:
    """What is in the queue now; a run that works on it meanwhile is waited for, and again when the step is: what was planned is done, nothing is refused."""
    try:
        with locked(context.stores.own.locks, f"dead_letters/{context.queue}", context.request.run):
            return look(context.stores, context.queue).letters
    except LockHeld as held:
        raise TryAgain(str(held)) from held
