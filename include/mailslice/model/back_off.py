"""Pauses between the attempts at a mail (pure: the caller passes the chance), or at a request."""

import math
import random
from dataclasses import dataclass
from datetime import timedelta

JITTER = 0.1
"""A pause varies by up to this share, so that mails that failed together return apart."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Pauses: `base`, each further one `factor` times longer, at most `cap`. `attempts` 0: any."""

    base: timedelta = timedelta(seconds=30)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    attempts: int = 150

    def pause(self, failures: int, chance: float = 0.0) -> timedelta:
        """The pause after `failures` (from 1). `chance`, -1 to 1, varies it by up to JITTER."""
        steps, grown = max(failures, 1) - 1, self.cap
        # A power of a thousand steps overflows a float: compare logarithms first.
        if self.base < self.cap and steps * math.log(self.factor) < math.log(self.cap / self.base):
            grown = self.base * self.factor**steps
        return grown * (1 + JITTER * chance)

    def used_up(self, failures: int) -> bool:
        return 0 < self.attempts <= failures


def pause_seconds(failures: int, first: float, longest: float) -> float:
    """Seconds to the next try: `first`, doubled each time up to `longest`, times 0.5 to 1."""
    return min(longest, first * 2.0 ** min(failures, 30)) * random.uniform(0.5, 1.0)
