"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duties.dead_letters.decide import Action
from mailslice.duties.dead_letters.params import Params
from mailslice.duties.dead_letters.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.model.dead_letters import Cause
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation, the value and the row count."""
    plan = read_plan(context)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("check", [totals(context, plan), actions(plan)], docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "planned": len(plan.acted),
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(context: StepContext, plan: Plan) -> Frame:
    """One row: the plan as a whole."""
    params, redriven = (
        context.params(Params),
        [letter for letter in plan.letters if letter.action == Action.REDRIVE],
    )
    row = {
        "letters": len(plan.letters),
        "positions": len({letter.position for letter in plan.letters}),
        "planned": len(plan.acted),
        "redriven": len(redriven),
        "redriven_twice": len(redriven) - len({letter.enqueue_id for letter in redriven}),
        "redriven_too_often": sum(
            1 for letter in redriven if letter.redrives >= params.most_redrives
        ),
        "age_hours": (context.clock() - plan.made_at) / timedelta(hours=1),
    }
    most = params.limit if params.redrive else 0
    expect = [
        Expectation.equal("positions", row["letters"], "Every letter was looked at once."),
        Expectation.equal(
            "planned",
            context.need("plan")["planned"],
            "The plan's summary counts as many letters as the plan lists.",
        ),
        Expectation.between(
            "redriven",
            0,
            most,
            f"At most {most} letters are redriven (limit; none without redrive).",
        ),
        Expectation.equal("redriven_twice", 0, "Of each mail at most one letter is redriven."),
        Expectation.equal(
            "redriven_too_often",
            0,
            f"No mail is redriven that was redriven {params.most_redrives} times already (most_redrives).",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def actions(plan: Plan) -> Frame:
    """One row a letter that is not kept."""
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
