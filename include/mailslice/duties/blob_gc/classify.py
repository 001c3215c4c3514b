"""Classifies unreferenced blobs by key and age. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from mailslice.codec.blob_ids import is_active, is_blob_id, parse

UNKNOWN, DOUBTFUL, ACTIVE, YOUNG, ORPHAN = "unknown", "doubtful", "active", "young", "orphan"
KINDS = (UNKNOWN, DOUBTFUL, ACTIVE, YOUNG, ORPHAN)
"""`unknown`: no blob id; `doubtful`: a reference spells the same id in another way; `active`: of a
present generation; `young`: within the grace."""
DELETE, CANDIDATE = "delete", "candidate"
"""What is planned for an orphan."""
_AGES = (
    ("under 1 day", 1),
    ("1 to 7 days", 7),
    ("7 to 30 days", 30),
    ("30 to 90 days", 90),
    ("90 days to 1 year", 365),
)
_OLDEST = "over 1 year"
_DAY = 86400
_MOST_GENERATIONS = 1000
_OTHERS = "others"
SAMPLE = 20


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a run; `family` and `generation` are the current ones."""

    now: datetime
    grace: timedelta
    delete_after: timedelta
    family: int
    generation: int

    def kind(self, key: str, modified_s: int, *, doubtful: bool) -> str:
        """One of KINDS."""
        if not is_blob_id(key):
            return UNKNOWN
        if doubtful:
            return DOUBTFUL
        if is_active(parse(key), self.family, self.generation):
            return ACTIVE
        # S3's times are whole seconds; rounding must make a blob younger, never older.
        return (
            ORPHAN if self.now.timestamp() - modified_s > self.grace.total_seconds() + 1 else YOUNG
        )

    def due(self, since_ms: int | None) -> bool:
        """Whether a candidate recorded at `since_ms` (epoch) may be deleted now."""
        return (
            since_ms is not None
            and self.now.timestamp() * 1000 - since_ms >= self.delete_after.total_seconds() * 1000
        )

    def age(self, modified_s: int) -> str:
        """The age of a blob, in words of a few columns."""
        days = (self.now.timestamp() - modified_s) / _DAY
        return next((name for name, most in _AGES if days < most), _OLDEST)


def generation_of(key: str) -> str:
    """`FAMILY_GENERATION`, or `none`, for reports."""
    parsed = parse(key)
    return f"{parsed.family}_{parsed.generation}" if parsed.family is not None else "none"


@dataclass(slots=True)
class Tally:
    """Counts and bytes of unreferenced blobs by kind, and of orphans by generation and age.

    Tallies of parts add up.
    """

    blobs: Counter[str] = field(default_factory=Counter)
    size: Counter[str] = field(default_factory=Counter)
    generations: dict[str, list[int]] = field(default_factory=dict)
    ages: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, kind: str, key: str, size: int, modified_s: int, rules: Rules) -> None:
        """Count one blob."""
        self.blobs[kind] += 1
        self.size[kind] += size
        if kind == ORPHAN:
            _count(self.generations, generation_of(key), 1, size)
            _count(self.ages, rules.age(modified_s), 1, size)

    def planned(self, kind: str, size: int) -> None:
        """Count the bytes of what is planned."""
        self.size[kind] += size

    def show(self, kind: str, **entry: Any) -> None:
        """Keep one of a sample."""
        entries = self.samples.setdefault(kind, [])
        if len(entries) < SAMPLE:
            entries.append(entry)

    def report(self) -> dict[str, Any]:
        """The report's fields."""
        return {
            "orphans": self.blobs[ORPHAN],
            "orphanBytes": self.size[ORPHAN],
            "bytes": self.size[DELETE],
            "unreferenced": {kind: self.blobs[kind] for kind in KINDS},
            "byGeneration": _shares(dict(sorted(self.generations.items()))),
            "byAge": _shares(self.ages),
            "samples": self.samples,
        }

    def as_json(self) -> dict[str, Any]:
        """All of it, as `merge` reads it."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def merge(self, part: dict[str, Any]) -> None:
        """Add another part's `as_json`."""
        self.blobs.update(part["blobs"])
        self.size.update(part["size"])
        for totals, counts in ((self.generations, part["generations"]), (self.ages, part["ages"])):
            for name, (blobs, size) in counts.items():
                _count(totals, name, blobs, size)
        for kind, shown in part["samples"].items():
            for entry in shown:
                self.show(kind, **entry)


def _shares(counts: dict[str, list[int]]) -> dict[str, dict[str, int]]:
    return {name: {"blobs": blobs, "bytes": size} for name, (blobs, size) in counts.items()}


def _count(into: dict[str, list[int]], name: str, blobs: int, size: int) -> None:
    # Keys are arbitrary: a bucket full of invented generations must not fill a report.
    known = into.setdefault(
        name if name in into or len(into) < _MOST_GENERATIONS else _OTHERS, [0, 0]
    )
    known[0] += blobs
    known[1] += size


def modified_seconds(modified: datetime) -> int:
    """Whole seconds since the epoch: what listing, HEAD and inventory agree on."""
    return int(modified.timestamp() // 1)
