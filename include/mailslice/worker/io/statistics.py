"""What a worker did, in memory. Its record (`heartbeat`) and its metrics publish it."""

import os
import socket
from collections import Counter, deque
from uuid import uuid4

from mailslice.model.mail import EnqueueId
from mailslice.model.processing_times import ProcessingTimes

UNDOING = "enqueues_undoing", "Failed enqueues that are being taken back"
LEFT_BEHIND = "enqueues_left_behind", "Failed enqueues whose undoing was given up"
"""Figures of every process that enqueues: name and description."""
_REMEMBERED, _SLOW_REMEMBERED = 20_000, 500
_SLOW = 60.0  # seconds


def worker_name() -> str:
    """An identity that no other worker has or had: host, process, and eight random digits."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


class WorkerStatistics:
    """The counts of one worker on one queue."""

    def __init__(self) -> None:
        self.times = ProcessingTimes()
        self.completed: deque[EnqueueId] = deque(maxlen=_REMEMBERED)
        self.slow: deque[EnqueueId] = deque(maxlen=_SLOW_REMEMBERED)
        """Completed after more than a minute. They may have been closed as stuck meanwhile."""
        self.count = 0
        """Mails that were handed out and are settled."""
        self.finished = 0
        """Mails whose mark is written."""
        self.failed = 0
        """Of these, mails that bounced, or whose recipients failed in doubt."""
        self.hops = 0
        """Copies of delayed mails that were put into a level."""
        self.undoing = 0
        """Failed enqueues that are being taken back (`undoing`), and those that were given up."""
        self.abandoned = 0
        self.faults = 0
        """Attempts to prepare a delivery that ended in a fault of mailslice."""
        self.waiting = 0
        """Deliveries that wait now for a store to answer."""
        self.parked = 0
        self.set_aside = 0
        """Mails that were delayed because a domain of theirs is held."""
        self.held_whole = 0
        self.held_domains = 0
        self.holds_unknown = 0
        """1 while holds cannot be read."""
        self.in_doubt = 0
        self.destinations: Counter[tuple[str, str]] = Counter()
        """(Limit's rule, verdict: `granted`, `throttled` or `unavailable`) -> mails that asked."""

    def ended(self, seconds: float) -> None:
        """Counts a mail that was settled `seconds` after it was handed out."""
        self.count += 1
        self.times.add(seconds)

    def done(self, enqueue_id: EnqueueId, seconds: float) -> None:
        """A mail is completed, or bounced: its mark is written."""
        self.finished += 1
        (self.slow if seconds > _SLOW else self.completed).append(enqueue_id)
