"""Live mails by recipient domain and age, as Postfix' qshape draws them. Pure: no clock, no store.

Ages are in minutes, in columns that double: up to 5, up to 10 ... up to 1280, and older. A mail
counts once for each domain of its recipients, so the sum over domains may exceed the total, which
counts every mail once. Only domains leave this module, no addresses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mailslice.codec.addresses import NO_DOMAIN, domain_of

BOUNDS = (5, 10, 20, 40, 80, 160, 320, 640, 1280)
COLUMNS = (*(str(bound) for bound in BOUNDS), "1280+")
OTHERS = "(others)"


def column(age: timedelta) -> int:
    """The index in COLUMNS of an age; a mail from a clock ahead of ours is new."""
    return bisect_left(BOUNDS, age / timedelta(minutes=1))


@dataclass(slots=True)
class Shape:
    """Counts by (domain, column) and by column. Shapes of parts of a queue add up."""

    cells: Counter[tuple[str, int]] = field(default_factory=Counter)
    total: Counter[int] = field(default_factory=Counter)

    def add(self, recipients: Iterable[str], enqueued: datetime, now: datetime) -> None:
        """Count one mail."""
        at = column(now - enqueued)
        self.total[at] += 1
        for domain in {domain_of(recipient) for recipient in recipients} or {NO_DOMAIN}:
            self.cells[domain, at] += 1

    def merge(self, other: Shape) -> None:
        """Add another part's counts."""
        self.cells.update(other.cells)
        self.total.update(other.total)

    def top(self, domains: int) -> dict[str, object]:
        """`{"columns", "total", "domains": [{"domain", "total", "counts"}]}`.

        The busiest domains come first; the rest is summed up as (others).
        """
        sums: Counter[str] = Counter()
        for (domain, _), count in self.cells.items():
            sums[domain] += count
        ordered = sorted(sums, key=lambda domain: (-sums[domain], domain))
        busiest = ordered[:domains]
        rows = {
            domain: [self.cells[domain, at] for at in range(len(COLUMNS))] for domain in busiest
        }
        if len(ordered) > domains:
            others = set(ordered[domains:])
            rows[OTHERS] = [
                sum(
                    count
                    for (domain, where), count in self.cells.items()
                    if where == at and domain in others
                )
                for at in range(len(COLUMNS))
            ]
        return {
            "columns": list(COLUMNS),
            "total": [self.total[at] for at in range(len(COLUMNS))],
            "domains": [
                {"domain": domain, "total": sum(counts), "counts": counts}
                for domain, counts in rows.items()
            ],
        }

    def as_json(self) -> dict[str, list[int]]:
        """Every cell as JSON: `{domain: counts}`.

        The total is under the empty domain, which no address has.
        """
        cells: dict[str, list[int]] = {"": [self.total[at] for at in range(len(COLUMNS))]}
        for (domain, at), count in self.cells.items():
            cells.setdefault(domain, [0] * len(COLUMNS))[at] += count
        return cells

    @classmethod
    def of_json(cls, cells: Mapping[str, list[int]]) -> Shape:
        """What `as_json` gave."""
        shape = cls()
        for domain, counts in cells.items():
            for at, count in enumerate(counts):
                if count and domain:
                    shape.cells[domain, at] += count
                elif count:
                    shape.total[at] += count
        return shape
