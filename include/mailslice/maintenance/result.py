"""Outcomes of a plan in the same words for every duty: applied, skipped, failed, remaining."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from mailslice.maintenance.artifacts import FILES, RunFolder

PROGRESS = "progress.json"
"""File in the run's folder while apply works: its applied.json as if it ended now."""
TIME_LIMIT = "time limit"
"""A reason in `skipped`: some duties count there what the time limit left, not in `remaining`."""
_OF_THE_STEP = frozenset(
    {"run", "duty", "queue", "step", "started", "seconds", "engine"}
    | {"decided", "success", "expectations", "dataDocs", "message"}
)
"""Fields of a step's file that say nothing about the items."""


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of planned items: planned = applied + skipped + failed + remaining.

    `skipped`: reason -> items left alone because something changed since the plan. `failed`: items
    that an error kept from being done; `failures`: some of them -> why. `remaining`: not reached,
    for the next run. `kinds` divides the applied ones. `fields`: other report fields of apply.
    """

    plan_digest: str | None = None
    planned: int = 0
    applied: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    remaining: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def not_done(self) -> int:
        """Planned items that were not applied."""
        return self.planned - self.applied

    @property
    def reached(self) -> int:
        """Items that have an outcome."""
        return self.applied + sum(self.skipped.values()) + self.failed

    @property
    def touched(self) -> bool:
        """Whether any item has an outcome."""
        return self.reached > 0

    def rest(self) -> list[str]:
        """The skipped and remaining items, as parts of a sentence."""
        skipped = sum(self.skipped.values())
        words = [f"{skipped} skipped: {', '.join(self.skipped)}"] if skipped else []
        return words + ([f"{self.remaining} left to the next run"] if self.remaining else [])

    def as_json(self) -> dict[str, Any]:
        """The fields of applied.json and of reports. `left` is the older name of `remaining`."""
        return {
            "planDigest": self.plan_digest,
            "planned": self.planned,
            "applied": self.applied,
            "skipped": sum(self.skipped.values()),
            "skippedBy": dict(self.skipped),
            "failed": self.failed,
            "failures": dict(self.failures),
            "remaining": self.remaining,
            "left": self.remaining,
            **self.kinds,
            **self.fields,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], kinds: tuple[str, ...] = ()) -> Self:
        """The inverse of `as_json`."""
        return cls(
            value.get("planDigest"),
            value.get("planned", 0),
            value.get("applied", 0),
            value.get("skippedBy", {}),
            value.get("failed", 0),
            value.get("failures", {}),
            value.get("remaining", value.get("left", 0)),
            {kind: value.get(kind, 0) for kind in kinds},
            {k: v for k, v in value.items() if k not in _RESULT_FIELDS and k not in kinds},
        )


_RESULT_FIELDS = frozenset(Result().as_json()) | _OF_THE_STEP


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries in a run's folder; None for a step that did not end."""

    folder: RunFolder
    plan: Mapping[str, Any]
    """Empty when the plan did not end."""
    applied: Mapping[str, Any] | None
    verified: Mapping[str, Any] | None
    result: Result
    """The counts of apply so far; zeros before it began."""

    @classmethod
    def load(cls, folder: RunFolder, kinds: tuple[str, ...]) -> Self:
        """From the run's folder."""
        plan = folder.read_json(FILES["plan"]) or {}
        applied = folder.read_json(FILES["apply"])
        so_far = applied if applied is not None else folder.read_json(PROGRESS)
        start = {"planDigest": plan.get("planDigest"), "planned": plan.get("planned", 0)}
        result = Result.from_json(start if so_far is None else so_far, kinds)
        return cls(folder, plan, applied, folder.read_json(FILES["verify"]), result)

    def fields(self, bulky: frozenset[str]) -> dict[str, Any]:
        """All fields that the steps reported, without bulky ones. A later step overrides."""
        steps = (self.plan, self.result.as_json(), self.verified or {})
        excluded = _OF_THE_STEP | bulky
        return {k: value for step in steps for k, value in step.items() if k not in excluded}
