"""What a worker did: which mails it completed, and how long those took that it handed out. In memory; its record tells others."""

from __future__ import annotations

import hashlib
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
        self.recent: dict[EnqueueId, None] = {}
        """The last ones completed, to be looked up: another copy may have been asked about before, and loaded after."""
        self.count = 0
        self.finished = 0
        self.hops = 0
        """Copies of delayed mails that were put into a level."""
        self.undoing = 0
        """Failed enqueues that are being taken back (`undoing`), and those that were given up."""
        self.left_behind = 0
        self._outdated: dict[tuple[EnqueueId, bytes], None] = {}

    def ended(self, seconds: float) -> None:
        """A mail that was handed out is settled, so long after."""
        self.count += 1
        self.times.add(seconds)

    def done(self, enqueue_id: EnqueueId, seconds: float) -> None:
        """A mail is completed: its mark is written."""
        self.recent[enqueue_id] = None
        if len(self.recent) > _REMEMBERED:
            del self.recent[next(iter(self.recent))]
        self.finished += 1
        (self.slow if seconds > _SLOW else self.completed).append(enqueue_id)

    def narrowed(self, enqueue_id: EnqueueId, body: bytes) -> None:
        """A message for fewer recipients has taken the place of the one with this body."""
        self._outdated[enqueue_id, _digest(body)] = None
        if len(self._outdated) > _REMEMBERED:
            del self._outdated[next(iter(self._outdated))]

    def is_outdated(self, enqueue_id: EnqueueId, body: bytes) -> bool:
        """Whether a message with this body is one of the last that were `narrowed`: whoever it names and is not served yet, a later one names, too."""
        return bool(self._outdated) and (enqueue_id, _digest(body)) in self._outdated


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
