"""What a person should know of a queue's shape, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.model.durations import format_duration

MAILS_A_SLICE = 10_000
"""James' ADR-31 advises about this many mails a slice and bucket: a partition is read whole."""
_OLD_START = timedelta(days=7)
"""James' own health check calls a queue degraded from here on."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """Input of the advice. `fullest`: rows of the fullest partition, at `fullest_slice`."""

    now: datetime
    window: timedelta
    buckets: int
    nodes: int
    fullest: int
    fullest_slice: datetime | None
    live: int
    dead: int
    unproven: int
    browse_start: datetime | None
    aligned: bool
    dead_letters: int | None


def advice(facts: QueueFacts) -> list[str]:
    """Sentences, the most urgent first; none when all is well."""
    return [
        sentence
        for sentence in (
            _start(facts),
            _unproven(facts),
            _full(facts),
            _nodes(facts),
            _dead(facts),
            _letters(facts),
        )
        if sentence
    ]


def _start(facts: QueueFacts) -> str | None:
    if facts.browse_start is None:
        return None
    if not facts.aligned:
        return (
            f"browseStart {facts.browse_start:%Y-%m-%d %H:%M:%S} is no multiple of the slice "
            "window, so James finds no mail: run queue_cleanup"
        )
    age = facts.now - facts.browse_start
    if age <= _OLD_START:
        return None
    remedy = "an old live mail may hold it" if facts.live else "run queue_cleanup"
    return (
        f"browseStart is {age.days} days old, "
        f"and James calls a queue degraded from 7 days on: {remedy}"
    )


def _unproven(facts: QueueFacts) -> str | None:
    if not facts.unproven:
        return None
    return (
        f"{facts.unproven:,} rows without a mark lie behind browseStart: nobody browses them; "
        "they may be late inserts, or left by a clear that was cut off"
    )


def _full(facts: QueueFacts) -> str | None:
    if facts.fullest <= MAILS_A_SLICE or facts.fullest_slice is None:
        return None
    shorter = _shorter(facts.window, facts.fullest)
    narrower = (
        f"a slice window of {format_duration(shorter)}"
        if shorter < facts.window
        else "no shorter slice window"
    )
    return (
        f"the slice of {facts.fullest_slice:%Y-%m-%d %H:%M:%S} holds {facts.fullest:,} mails "
        f"in one bucket, advised are {MAILS_A_SLICE:,}: "
        f"{narrower}, or {facts.buckets * -(-facts.fullest // MAILS_A_SLICE)} buckets, "
        "would keep partitions small (mailslice config apply)"
    )


def _shorter(window: timedelta, fullest: int) -> timedelta:
    """The longest divisor of the window that brings the fullest partition below the advice."""
    seconds = int(window.total_seconds())
    parts = -(-fullest // MAILS_A_SLICE)
    return timedelta(
        seconds=next(
            (seconds // count for count in range(parts, seconds + 1) if seconds % count == 0), 1
        )
    )


def _nodes(facts: QueueFacts) -> str | None:
    if facts.buckets >= facts.nodes:
        return None
    return (
        f"{facts.buckets} bucket{'s' if facts.buckets > 1 else ''} on {facts.nodes} Cassandra "
        "nodes: all mail of one moment goes to as few of them; "
        f"{facts.nodes} buckets would use all (mailslice config apply; buckets never become fewer)"
    )


def _dead(facts: QueueFacts) -> str | None:
    if facts.dead <= max(MAILS_A_SLICE, 10 * facts.live):
        return None
    return (
        f"{facts.dead:,} dead rows for {facts.live:,} live mails: "
        "every browse and size reads them; run queue_cleanup"
    )


def _letters(facts: QueueFacts) -> str | None:
    if not facts.dead_letters:
        return None
    return (
        f"{facts.dead_letters:,} messages are in the dead letter queue: "
        "somebody should look at them"
    )
