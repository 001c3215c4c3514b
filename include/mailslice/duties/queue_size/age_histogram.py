"""Live mails by recipient domain and age, as Postfix' qshape draws them. Pure: no clock, no store.

Ages are in minutes, in columns that double: up to 5, up to 10 ... up to 1280, and older. A mail
counts once for each domain of its recipients, so the sum over domains may exceed the total, which
counts every mail once. Only domains leave this module, no addresses.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mailslice.codec.addresses import NO_DOMAIN, domain_of

BOUNDS = (5, 10, 20, 40, 80, 160, 320, 640, 1280)
COLUMNS = (*(str(bound) for bound in BOUNDS), "1280+")
OTHERS = "(others)"


def column(age: timedelta) -> int:
    """The index in COLUMNS of an age. A negative age, by a clock ahead of ours, counts as new."""
    return bisect_left(BOUNDS, age / timedelta(minutes=1))


def _zeros() -> list[int]:
    return [0] * len(COLUMNS)


def _sums(counts: Iterable[list[int]]) -> list[int]:
    return [sum(of_column) for of_column in zip(_zeros(), *counts, strict=True)]


@dataclass(slots=True)
class AgeHistogram:
    """A count for each column, of all mails and of each domain. `merge` adds parts of a queue."""

    total: list[int] = field(default_factory=_zeros)
    domains: dict[str, list[int]] = field(default_factory=lambda: defaultdict(_zeros))

    def add(self, recipients: Iterable[str], enqueued: datetime, now: datetime) -> None:
        at = column(now - enqueued)
        self.total[at] += 1
        for domain in set(map(domain_of, recipients)) or {NO_DOMAIN}:
            self.domains[domain][at] += 1

    def merge(self, other: "AgeHistogram") -> None:
        self.total = _sums([self.total, other.total])
        for domain, counts in other.domains.items():
            self.domains[domain] = _sums([self.domains[domain], counts])

    def top(self, limit: int) -> dict[str, Any]:
        """`{"columns", "total", "domains": [{"domain", "total", "counts"}]}`.

        The busiest domains come first; the rest is summed up as (others).
        """
        ordered = sorted(self.domains.items(), key=lambda entry: (-sum(entry[1]), entry[0]))
        rows, others = ordered[:limit], [counts for _, counts in ordered[limit:]]
        if others:
            rows.append((OTHERS, _sums(others)))
        return {
            "columns": list(COLUMNS),
            "total": self.total,
            "domains": [
                {"domain": domain, "total": sum(counts), "counts": counts}
                for domain, counts in rows
            ],
        }
