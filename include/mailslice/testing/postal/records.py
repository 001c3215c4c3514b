"""Shared by the threads of a player: the points at which a test stops them, and their records."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from mailslice.testing.postal.databases import Row


class Step(StrEnum):
    """Points between the statements of a worker, in their order."""

    LOCKED = "row locked"
    BATCHED = "friends locked"
    STARTED = "one mail begins"
    INSPECTED = "spam check written"
    HEADERS = "own headers written"
    SENDING = "before the sending"
    SENT = "sent, no record"
    DELIVERED = "delivery row written"
    RECORDED = "messages written"
    FINISHED = "queue row gone or unlocked"


class Died(BaseException):
    """Raised by a hook: the thread ends at that point, and its locks stay."""


Hook = Callable[[Step, Row], None]
Outcome = Callable[[Row], str]
"""Queue row -> Sent, SoftFail or HardFail. May raise an exception, which Postal rescues."""


@dataclass
class PlayerRecords:
    """Records of all threads of a player. Ids are (server, message)."""

    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    sent_at: dict[tuple[int, int], float] = field(default_factory=dict)
    """`time.monotonic()` of the last sending of each message."""
    longest: dict[str, float] = field(default_factory=dict)
    """Seconds of the slowest statement of each kind."""
    lock_errors: list[str] = field(default_factory=list)
    """Each MariaDB error 1205 and 1213, with the kind of its statement."""
    errors: list[str] = field(default_factory=list)
    """Unexpected errors of threads, which a worker would log."""
    deaths: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def longest_wait(self) -> float:
        """Seconds of the slowest statement that may wait for a row lock."""
        return max((seconds for kind, seconds in self.longest.items() if kind != "read"), default=0)

    def note_time(self, kind: str, seconds: float) -> None:
        """Notes the duration of one statement."""
        with self._lock:
            self.longest[kind] = max(seconds, self.longest.get(kind, 0))

    def note_sent(self, row: Row) -> None:
        """Notes one sending."""
        identity = row["server_id"], row["message_id"]
        with self._lock:
            self.sent[identity] += 1
            self.sent_at[identity] = time.monotonic()

    def note_error(self, text: str) -> None:
        """Notes an unexpected error of a thread."""
        with self._lock:
            self.errors.append(text)

    def note_lock_error(self, text: str) -> None:
        """Notes an error 1205 or 1213."""
        with self._lock:
            self.lock_errors.append(text)

    def note_death(self) -> None:
        """Notes that a thread ended at a hook."""
        with self._lock:
            self.deaths += 1


def hang(event: threading.Event, step: Step, number: int = 1) -> Hook:
    """A hook: the first `number` mails that reach `step` hang until the event is set."""
    remaining = [number]

    def reached(at: Step, _row: Row) -> None:
        if at is step and remaining[0] > 0:
            remaining[0] -= 1
            event.wait()

    return reached


def die(step: Step, number: int = 1) -> Hook:
    """A hook: the first `number` threads that reach `step` die there."""
    remaining = [number]

    def reached(at: Step, _row: Row) -> None:
        if at is step and remaining[0] > 0:
            remaining[0] -= 1
            raise Died

    return reached


def slow(step: Step, seconds: float) -> Hook:
    """A hook: each mail waits for `seconds` at `step`."""

    def reached(at: Step, _row: Row) -> None:
        if at is step:
            time.sleep(seconds)

    return reached
