"""How long mails take, as counts in buckets that grow by a fifth: cheap to sum up. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

_STEPS = 4
"""Buckets for each doubling."""
_SHORTEST_MS = 1.0
_MAX_TOTAL = 100_000
"""Counts are halved above it, so that a queue whose mails become slower is noticed."""


class ProcessingTimes:
    """A histogram: bucket -> mails. Bucket n holds what took at most 2^(n/4) ms."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts = Counter(counts or {})
        self._total = sum(self._counts.values())

    @property
    def counts(self) -> Mapping[int, int]:
        """Bucket -> mails; only buckets that hold any."""
        return self._counts

    @property
    def total(self) -> int:
        return self._total

    def add(self, seconds: float) -> None:
        self._counts[math.ceil(_STEPS * math.log2(max(seconds * 1000, _SHORTEST_MS)))] += 1
        self._total += 1
        if self._total > _MAX_TOTAL:
            halves = ((bucket, count // 2) for bucket, count in self._counts.items())
            self._counts = Counter({bucket: count for bucket, count in halves if count})
            self._total = sum(self._counts.values())

    def merge(self, other: ProcessingTimes) -> None:
        self._counts.update(other.counts)
        self._total += other.total

    def quantile(self, share: float) -> float | None:
        """Seconds within which that share was handled, a fifth too long at most; None: no count."""
        rank = math.ceil(share * self._total)
        cumulative = 0
        for bucket in sorted(self._counts):
            cumulative += self._counts[bucket]
            if cumulative >= rank:
                return 2 ** (bucket / _STEPS) / 1000
        return None
