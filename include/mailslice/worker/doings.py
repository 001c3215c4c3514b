"""What a worker did: which mails it completed, and how long those took that it handed out. In memory; its record tells others."""

from __future__ import annotations

import os
import socket
from collections import deque
from uuid import uuid4

from mailslice.model.mail import EnqueueId
from mailslice.model.processing_times import ProcessingTimes

_REMEMBERED = 500
_SLOW = 60.0
"""Seconds."""


def worker_name() -> str:
    """An identity that no other worker has or had: host, process, and eight random digits."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


class Doings:
    """What this worker did with the mails that it handed out."""

    def __init__(self) -> None:
        self.times = ProcessingTimes()
        self.completed: deque[EnqueueId] = deque(maxlen=_REMEMBERED)
        self.slow: deque[EnqueueId] = deque(maxlen=_REMEMBERED)
        """Those completed that took more than a minute: they are what somebody may have closed meanwhile, so quick ones must not push them out."""
        self.count = 0
        self.finished = 0
        self.hops = 0
        """Copies of delayed mails that were put into a level."""
        self.undoing = 0
        """Failed enqueues that are being taken back (`undoing`), and those that were given up."""
        self.left_behind = 0

    def ended(self, seconds: float) -> None:
        """A mail that was handed out is settled, so long after."""
        self.count += 1
        self.times.add(seconds)

    def done(self, enqueue_id: EnqueueId, seconds: float) -> None:
        """A mail is completed: its mark is written."""
        self.finished += 1
        (self.slow if seconds > _SLOW else self.completed).append(enqueue_id)
