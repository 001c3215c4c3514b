"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.dead_letters.decide import Action
from mailslice.duties.dead_letters.params import Params
from mailslice.duties.dead_letters.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.model.dead_letters import Cause
from mailslice.quality.gate import Expectation, Frame


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation and the value."""
    plan = read_plan(context)
    most = context.params(Params).most_redrives
    frames = [totals(context, plan), actions(plan), redriven(plan, most)]
    return {
        **judged(context, "check", frames),
        "planDigest": plan.digest,
        "planned": len(plan.acted),
    }


def totals(context: StepContext, plan: Plan) -> Frame:
    """One row: the plan as a whole."""
    params = context.params(Params)
    most = params.limit if params.redrive else 0
    row = {
        "redriven": plan.count(Action.REDRIVE),
        "age_hours": (context.clock() - plan.made_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.between(
            "redriven",
            0,
            most,
            f"At most {most} letters are redriven (limit; none without redrive).",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def actions(plan: Plan) -> Frame:
    """One row a letter of the plan's file that is not kept."""
    rows = [
        {
            "position": letter.position,
            "action": letter.action,
            "mail_exported": int(letter.action == Action.EXPORT and letter.cause != Cause.BAD_JSON),
            "no_mail_moved": int(
                letter.action != Action.EXPORT
                and (letter.cause == Cause.BAD_JSON or not letter.enqueue_id)
            ),
        }
        for letter in plan.acted
    ]
    expect = [
        Expectation.unique("position", "Every letter gets one action."),
        Expectation.one_of(
            "action",
            [Action.DROP.value, Action.EXPORT.value, Action.REDRIVE.value],
            "A letter is dropped, exported or redriven.",
        ),
        Expectation.equal("mail_exported", 0, "Only what is no mail is exported and dropped."),
        Expectation.equal(
            "no_mail_moved", 0, "What is no mail is neither redriven nor dropped as deleted."
        ),
    ]
    return Frame("actions", rows, expect, may_be_empty=True)


def redriven(plan: Plan, most: int) -> Frame:
    """One row a letter of the plan's file that is to be redriven."""
    rows = [
        {"enqueue_id": letter.enqueue_id, "redrives": letter.redrives}
        for letter in plan.letters
        if letter.action == Action.REDRIVE
    ]
    expect = [
        Expectation.unique("enqueue_id", "Of each mail at most one letter is redriven."),
        Expectation.between(
            "redrives",
            0,
            most - 1,
            f"No mail is redriven that was redriven {most} times already (most_redrives).",
        ),
    ]
    return Frame("redriven", rows, expect, may_be_empty=True)
