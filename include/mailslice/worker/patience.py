"""How long a mail that waits for a store is left alone between two attempts.

The pauses are short for good, however long the store stays away: what is asked for meanwhile fails at once and costs little, and a mail that has waited
through an outage is not to wait for as long again when it is over. Jitter keeps those that were held at the same time apart.
"""

from __future__ import annotations

import asyncio
import random

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
_QUIET = 30.0
"""Seconds between two lines of the log about the same mail, once its pauses grow no more."""


class Patience:
    """Of one mail, for one outage: pauses that double from half a second to five."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE
        self._unsaid = _QUIET

    @staticmethod
    def end_if_cancelled() -> None:
        """Raises CancelledError in a task that was cancelled, though what it waited for ended with another error.

        A gather whose one part fails as the whole is cancelled ends with the failure (asyncio drops the cancellation): whoever tries again after it would go
        on for good, while somebody waits for the task to end.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    def pause(self) -> tuple[float, bool]:
        """Seconds to wait now, and whether the log is to hear of it: while they grow, and then twice a minute."""
        longest = self._next
        grows = longest < LONGEST_PAUSE
        self._next = min(2 * longest, LONGEST_PAUSE)
        seconds = longest * random.uniform(0.7, 1.0)
        aloud = grows or self._unsaid >= _QUIET
        self._unsaid = seconds if aloud else self._unsaid + seconds
        return seconds, aloud
