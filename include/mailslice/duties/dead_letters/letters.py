"""A letter as the plan's file and the report have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.codec.shown import shown
from mailslice.duties.dead_letters.decide import LetterAction, LetterDecision
from mailslice.maintenance.artifacts import iso
from mailslice.model.dead_letters import Cause

_PER_CAUSE = 5
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class PlannedLetter:
    """One letter and what becomes of it.

    Ids and times are text, empty where there is none. There are no addresses.
    """

    position: int
    key: str
    action: str
    why: str
    cause: str
    enqueue_id: str
    name: str
    died_at: str
    redrives: int
    size: int

    @classmethod
    def of(cls, decision: LetterDecision) -> PlannedLetter:
        """From a decision."""
        classified, letter = decision.classified, decision.classified.letter
        return cls(
            letter.position,
            letter.key,
            decision.action.value,
            decision.why,
            classified.cause.value,
            "" if letter.enqueue_id is None else str(letter.enqueue_id),
            shown(letter.name or ""),
            iso(letter.died_at) or "",
            classified.redrives,
            letter.size,
        )

    @property
    def is_acted_on(self) -> bool:
        """Whether it leaves the queue."""
        return self.action != LetterAction.KEEP


def ages_by_cause(decisions: Sequence[LetterDecision], now: datetime) -> dict[str, Any]:
    """Of each cause: how many, and when the oldest and the newest died, as far as that is known."""
    report: dict[str, Any] = {}
    for cause in Cause:
        died = [one.classified.letter.died_at for one in decisions if one.classified.cause is cause]
        known = sorted(when for when in died if when is not None)
        if died:
            oldest = round((now - known[0]).total_seconds()) if known else None
            report[cause.value] = {
                "count": len(died),
                "oldest": iso(known[0]) if known else None,
                "newest": iso(known[-1]) if known else None,
                "oldestAgeSeconds": oldest,
            }
    return report


def sample(decisions: Sequence[LetterDecision], now: datetime) -> list[dict[str, Any]]:
    """The first letters of each cause, without addresses."""
    taken = dict.fromkeys(Cause, 0)
    letters = []
    for decision in decisions:
        cause = decision.classified.cause
        taken[cause] += 1
        if taken[cause] <= _PER_CAUSE:
            letters.append(_report_entry(decision, now))
    return letters


def _report_entry(decision: LetterDecision, now: datetime) -> dict[str, Any]:
    classified, letter = decision.classified, decision.classified.letter
    problem, died = letter.problem or letter.reason, letter.died_at
    return {
        "position": letter.position,
        "enqueueId": None if letter.enqueue_id is None else str(letter.enqueue_id),
        "name": None if letter.name is None else shown(letter.name)[:_LONGEST],
        "cause": classified.cause.value,
        "reason": None if problem is None else shown(problem)[:_LONGEST],
        "diedAt": iso(died),
        "ageSeconds": None if died is None else round((now - died).total_seconds()),
        "redrives": classified.redrives,
        "action": decision.action.value,
        "why": decision.why,
    }
