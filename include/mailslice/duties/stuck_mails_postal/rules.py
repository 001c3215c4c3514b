"""When a queued message is stuck, and how far its worker had come: pure rules.

The facts are in Postal's own rows; what they prove is said beside each rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the exporter reads reports without the driver of MariaDB
    from mailslice.stores.postal.messages import PostalDelivery, PostalMessage
    from mailslice.stores.postal.rows import QueuedMessage

NEWEST = 10_000
"""The newest delivery records of each server from which the p99 is taken."""
FACTOR = 10
SHORTEST = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - as MariaDB's times are: naive, in UTC
_MICROSECOND = timedelta(microseconds=1)
DELIVERED = frozenset({"Sent", "Processed"})
ANSWERS = DELIVERED | {"HardFail", "Held"}
"""A worker's records that end a message. After SoftFail and Error its row stays in the queue."""
_DEFERRALS = frozenset({"SoftFail", "Error"})


class PostalState(StrEnum):
    """What became of a queued message. UNKNOWN: its server cannot be read."""

    STUCK = "stuck"
    CONTENT_LOST = "content lost"
    MESSAGE_GONE = "message gone"
    UNKNOWN = "unknown"


class PostalStage(StrEnum):
    """How far its worker had come with it, by what Postal wrote."""

    BEFORE_SENDING = "before sending"
    MAYBE_SENT = "maybe sent"
    ANSWERED = "answered"
    DEFERRED = "deferred"


def p99_of(times: Mapping[Decimal, int]) -> timedelta | None:
    """The p99 of sendings, by nearest rank; None when nothing was measured.

    `times`: seconds -> number of sendings that took so long. A negative time, of a clock that was
    set back, counts as zero.
    """
    rank = -(-99 * sum(times.values()) // 100)
    for seconds in sorted(times):
        rank -= times[seconds]
        if rank <= 0:
            return max(timedelta(seconds=float(seconds)), timedelta(0))
    return None


def lock_timeout_of(p99: timedelta | None) -> timedelta:
    """The lock timeout where none is set: FACTOR times the p99, at least SHORTEST."""
    return max(SHORTEST, FACTOR * (p99 or timedelta(0)))


def group_sizes(rows: Iterable[QueuedMessage]) -> Counter[tuple[str | None, datetime | None]]:
    """How many locked rows one worker took at once, by name and time of the lock.

    A batch's first row is not in its group: only the name of its lock has random digits.
    """
    return Counter(row.lock for row in rows if row.is_locked)


def limit_of(lock_timeout: timedelta, p99: timedelta | None, size: int) -> timedelta:
    """The greatest age of a group's lock: its last message waits for all the others."""
    return lock_timeout + (size - 1) * (p99 or timedelta(0))


def age_of(row: QueuedMessage, now: datetime) -> timedelta | None:
    """How long it is locked; negative for a lock from the future, None without one."""
    return None if row.locked_at is None else now - row.locked_at


def is_stuck(age: timedelta | None, limit: timedelta) -> bool:
    """Whether the lock is older than allowed. One from the future is young."""
    return age is not None and age > limit


def is_old(row: QueuedMessage, now: datetime, lock_timeout: timedelta) -> bool:
    """Whether a row without a lock was created longer ago than the lock timeout."""
    return not row.is_locked and row.created_at is not None and now - row.created_at > lock_timeout


def stage_of(
    row: QueuedMessage,
    message: PostalMessage,
    deliveries: Collection[PostalDelivery],
    *,
    has_own_header: bool,
) -> PostalStage:
    """How far the worker had come that holds `row`.

    A record since the lock is the worker's: it wrote lock and record by the same clock. Bounced and
    HoldCancelled come from elsewhere. Without such a record only one fact proves that nothing was
    sent: no attempt so far made the mark that a worker makes before it sends.
    """
    if is_answered(row, deliveries):
        return PostalStage.ANSWERED
    if _since_lock(row, deliveries) & _DEFERRALS:
        return PostalStage.DEFERRED
    unmarked = (message.scope == "outgoing" and not has_own_header) or (
        message.scope == "incoming" and message.inspected == 0
    )
    return PostalStage.BEFORE_SENDING if unmarked else PostalStage.MAYBE_SENT


def is_answered(
    row: QueuedMessage, deliveries: Collection[PostalDelivery], answers: frozenset[str] = ANSWERS
) -> bool:
    """Whether a record since the lock says how the message ended. Only its row is still there."""
    return not answers.isdisjoint(_since_lock(row, deliveries))


def _since_lock(row: QueuedMessage, deliveries: Collection[PostalDelivery]) -> set[str | None]:
    since, made = _seconds(row.locked_since), _seconds(row.created_at)
    return {
        record.status
        for record in deliveries
        if since is not None
        and record.timestamp is not None
        and record.timestamp >= since
        # A release makes a new row by the clock of our records. The clock of the worker that locks
        # it may be behind: then our record of the previous row seems to be later than the lock.
        and not (record.is_own and made is not None and record.timestamp < made)
    }


def _seconds(instant: datetime | None) -> Decimal | None:
    """Seconds since the epoch, all microseconds kept: a float has too few digits."""
    if instant is None:
        return None
    return Decimal((instant - _EPOCH) // _MICROSECOND).scaleb(-6)
