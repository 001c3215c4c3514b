"""How long a mail waits between attempts (pure: the caller brings the chance), and requests do."""

import math
import random
from dataclasses import dataclass
from datetime import timedelta

JITTER = 0.1
"""A pause differs by up to this share: what failed together does not come back together."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """`base`, each further pause `factor` times longer up to `cap`; `attempts` (0: any number)."""

    base: timedelta = timedelta(seconds=30)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    attempts: int = 150

    def pause(self, failures: int, chance: float = 0.0) -> timedelta:
        """The pause after so many failures, from 1; `chance` (-1 to 1) moves it by up to JITTER."""
        steps, grown = max(failures, 1) - 1, self.cap
        # A power of a thousand steps is no number any more: first, whether the cap is reached.
        if self.base < self.cap and steps * math.log(self.factor) < math.log(self.cap / self.base):
            grown = self.base * self.factor**steps
        return grown * (1 + JITTER * chance)

    def used_up(self, failures: int) -> bool:
        return 0 < self.attempts <= failures


def pause_seconds(failures: int, first: float, longest: float) -> float:
    """Seconds to the next try: `first`, doubled each time up to `longest`, less up to a half."""
    return min(longest, first * 2.0 ** min(failures, 30)) * random.uniform(0.5, 1.0)
