"""A histogram of processing times, whose buckets grow by a fifth: cheap to merge. Pure."""

import math
from collections import Counter
from collections.abc import Mapping

_STEPS = 4
"""Buckets for each doubling."""
_SHORTEST_MS = 1.0
_MAX_TOTAL = 100_000
"""Above it all counts are halved, so that quantiles follow a queue whose mails become slower."""


class ProcessingTimes:
    """A histogram of `total` mails. Bucket n counts mails that took at most 2^(n/4) ms.

    `counts`: bucket -> mails, without empty buckets.
    """

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = Counter(counts or {})
        self.total = sum(self.counts.values())

    def add(self, seconds: float) -> None:
        self.counts[math.ceil(_STEPS * math.log2(max(seconds * 1000, _SHORTEST_MS)))] += 1
        self.total += 1
        if self.total > _MAX_TOTAL:
            halves = ((bucket, count // 2) for bucket, count in self.counts.items())
            self.counts = Counter({bucket: count for bucket, count in halves if count})
            self.total = sum(self.counts.values())

    def merge(self, other: "ProcessingTimes") -> None:
        self.counts.update(other.counts)
        self.total += other.total

    def quantile(self, share: float) -> float | None:
        """Seconds in which this share of mails was done, up to a fifth too long. None: no mail."""
        rank = math.ceil(share * self.total)
        cumulative = 0
        for bucket in sorted(self.counts):
            cumulative += self.counts[bucket]
            if cumulative >= rank:
                return 2 ** (bucket / _STEPS) / 1000
        return None
