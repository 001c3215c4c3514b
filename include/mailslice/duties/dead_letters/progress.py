"""How far an apply has come, kept in the run's folder: for the report of a run that ends early, and for a second try of the same plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mailslice.duties.dead_letters.decide import Action, counts
from mailslice.duties.dead_letters.plan_file import Plan, PlannedLetter
from mailslice.duty.context import StepContext

FILE = "progress.json"
GONE = "gone since the plan"
_KEPT_EACH = 100
_DONE = {Action.DROP: "dropped", Action.EXPORT: "exported", Action.REDRIVE: "redriven"}


@dataclass
class Progress:
    """What became of the planned letters so far."""

    context: StepContext
    plan: Plan
    again: bool
    """Whether this plan was being applied before, so that a letter that is gone was dealt with then."""
    done: list[PlannedLetter] = field(default_factory=list)
    skipped: list[tuple[PlannedLetter, str]] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    """Files, relative to the artifacts location."""

    @classmethod
    def begin(cls, context: StepContext, plan: Plan) -> Progress:
        """Of a first try, or of one more. Leaves its sign before anything is changed."""
        earlier = context.folder.read_json(FILE) or {}
        progress = cls(context, plan, earlier.get("planDigest") == plan.digest)
        progress.keep()
        return progress

    def acted(self, letter: PlannedLetter) -> None:
        """The letter has left the queue as it was planned."""
        self.done.append(letter)
        if len(self.done) % _KEPT_EACH == 0:
            self.keep()

    def skip(self, letter: PlannedLetter, why: str) -> None:
        """It stays, because something changed since the plan."""
        self.skipped.append((letter, why))

    def gone(self, letters: Iterable[PlannedLetter]) -> None:
        """They were not in the queue any more: an earlier try of this plan dealt with them, or somebody else."""
        for letter in letters:
            if self.again:
                self.done.append(letter)
            else:
                self.skip(letter, GONE)

    def keep(self) -> None:
        """Write it down."""
        self.context.folder.write_json(
            FILE, self.as_json(left=len(self.plan.acted) - len(self.done) - len(self.skipped))
        )

    def as_json(self, left: int) -> dict[str, Any]:
        """The report's numbers; `left` planned letters were not come to."""
        numbers = {
            name: sum(1 for letter in self.done if letter.action == action)
            for action, name in _DONE.items()
        }
        return {
            "planDigest": self.plan.digest,
            "planned": len(self.plan.acted),
            "applied": len(self.done),
            "skipped": len(self.skipped),
            "failed": 0,
            "skippedBy": counts(why for _, why in self.skipped),
            "left": left,
            **numbers,
            "kept": len(self.plan.letters)
            - len(self.done)
            - sum(1 for _, why in self.skipped if why == GONE),
            "exports": self.exports,
        }
