"""Step 1: look at the dead letters, say why each died and what becomes of it. Everything is given back: a classic queue keeps its order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mailslice.codec.shown import shown
from mailslice.duties.dead_letters.candidates import Candidates
from mailslice.duties.dead_letters.decide import Action, Decision, counts, decide
from mailslice.duties.dead_letters.params import Params
from mailslice.duties.dead_letters.plan_file import Plan, PlannedLetter, write_plan
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.lock import locked
from mailslice.model import crash
from mailslice.model.dead_letters import Cause
from mailslice.queue.dead_letters import judge, look
from mailslice.queue.directory import require

SAMPLED = 5
"""Letters of each cause that the report shows."""
ORDER_KEPT, ORDER_CHANGED = "as it was", "what was looked at went to the back"
_LONGEST = 200


def run(context: StepContext) -> dict[str, Any]:
    """The plan, written to plan/ and, by the road, to plan.json.

    Raises UnknownQueue, StoreUnavailable, LockHeld, Refused for a queue that a look would harm.
    """
    params, stores, queue = context.params(Params), context.stores, context.queue
    require(stores, queue)
    # Nobody else may consume while we look, and another run's look or apply does.
    with locked(stores.own.locks, f"dead_letters/{queue}", context.request.run):
        now = context.clock()
        seen = look(stores, queue, params.look_at)
    crash.point("plan:after-look")
    judged = judge(stores, queue, seen.letters)
    candidates = Candidates(stores, queue)
    decisions = decide(judged, params, now, lambda some: candidates.standing(some, now))
    plan = Plan(
        context.request.run, queue, now, seen.unseen, tuple(map(PlannedLetter.of, decisions))
    )
    write_plan(context, plan)
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": len(plan.acted),
        "letters": len(plan.letters),
        "unseen": plan.unseen,
        "order": ORDER_KEPT if seen.keeps_order else ORDER_CHANGED,
        "causes": counts(letter.cause for letter in plan.letters),
        "ages": _ages(decisions, now),
        "actions": {action.value: plan.count(action) for action in Action},
        "keptBy": counts(letter.why for letter in plan.letters if letter.action == Action.KEEP),
        "sample": _sample(decisions, now),
        "bytes": sum(letter.size for letter in plan.acted),
        "message": _message(plan, exists=seen.exists),
    }


def _ages(decisions: Sequence[Decision], now: datetime) -> dict[str, Any]:
    """Of each cause: how many, and when the oldest and the newest died, as far as that is known."""
    found: dict[str, Any] = {}
    for cause in Cause:
        died = [each.judged.letter.died_at for each in decisions if each.judged.cause is cause]
        known = sorted(when for when in died if when is not None)
        if died:
            oldest = round((now - known[0]).total_seconds()) if known else None
            found[cause.value] = {
                "count": len(died),
                "oldest": iso(known[0]) if known else None,
                "newest": iso(known[-1]) if known else None,
                "oldestAgeSeconds": oldest,
            }
    return found


def _sample(decisions: Sequence[Decision], now: datetime) -> list[dict[str, Any]]:
    """The first letters of each cause, without addresses."""
    taken = dict.fromkeys(Cause, 0)
    sample = []
    for each in decisions:
        if taken[each.judged.cause] < SAMPLED:
            taken[each.judged.cause] += 1
            sample.append(letter_json(each, now))
    return sample


def letter_json(decision: Decision, now: datetime) -> dict[str, Any]:
    """One letter as reports show it."""
    judged, letter = decision.judged, decision.judged.letter
    problem = letter.problem or letter.reason
    return {
        "position": letter.position,
        "enqueueId": None if letter.enqueue_id is None else str(letter.enqueue_id),
        "name": None if letter.name is None else shown(letter.name)[:_LONGEST],
        "cause": judged.cause.value,
        "reason": None if problem is None else shown(problem)[:_LONGEST],
        "diedAt": iso(letter.died_at),
        "ageSeconds": None
        if letter.died_at is None
        else round((now - letter.died_at).total_seconds()),
        "redrives": judged.redrives,
        "action": decision.action.value,
        "why": decision.why,
    }


def _message(plan: Plan, *, exists: bool) -> str:
    if not exists:
        return "nothing to do: there is no dead letter queue (James 3.5 declares none)"
    if not plan.letters:
        return "nothing to do: there is no dead letter"
    words = [f"{len(plan.letters)} dead letters"]
    words += [f"{plan.count(action)} to {action.value}" for action in Action if plan.count(action)]
    words += [f"{plan.unseen} behind them were not looked at"] if plan.unseen else []
    return ", ".join(words)
