"""Advice about a queue's slices and rows, in words. Pure."""

from collections.abc import Iterator
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
    return [*_on_browse_start(facts), *_on_partitions(facts), *_on_rest(facts)]


def _on_browse_start(facts: QueueFacts) -> Iterator[str]:
    start = facts.browse_start
    if start is not None and not facts.aligned:
        yield (
            f"browseStart {start:%Y-%m-%d %H:%M:%S} is no multiple of the slice "
            "window, so James finds no mail: run queue_cleanup"
        )
    elif start is not None and facts.now - start > _OLD_START:
        remedy = "an old live mail may hold it" if facts.live else "run queue_cleanup"
        yield (
            f"browseStart is {(facts.now - start).days} days old, "
            f"and James calls a queue degraded from 7 days on: {remedy}"
        )
    if facts.unproven:
        yield (
            f"{facts.unproven:,} rows without a mark lie behind browseStart: nobody browses them; "
            "they may be late inserts, or left by a clear that was cut off"
        )


def _on_partitions(facts: QueueFacts) -> Iterator[str]:
    if facts.fullest > MAILS_A_SLICE and facts.fullest_slice is not None:
        parts = -(-facts.fullest // MAILS_A_SLICE)
        shorter = _divided(facts.window, parts)
        narrower = "no shorter slice window"
        if shorter < facts.window:
            narrower = f"a slice window of {format_duration(shorter)}"
        yield (
            f"the slice of {facts.fullest_slice:%Y-%m-%d %H:%M:%S} holds {facts.fullest:,} mails "
            f"in one bucket, advised are {MAILS_A_SLICE:,}: {narrower}, or "
            f"{facts.buckets * parts} buckets, would keep partitions small (mailslice config apply)"
        )
    if facts.buckets < facts.nodes:
        yield (
            f"{facts.buckets} bucket{'s' if facts.buckets > 1 else ''} on {facts.nodes} Cassandra "
            "nodes: all mail of one moment goes to as few of them; "
            f"{facts.nodes} buckets would use all "
            "(mailslice config apply; buckets never become fewer)"
        )


def _on_rest(facts: QueueFacts) -> Iterator[str]:
    if facts.dead > max(MAILS_A_SLICE, 10 * facts.live):
        yield (
            f"{facts.dead:,} dead rows for {facts.live:,} live mails: "
            "every browse and size reads them; run queue_cleanup"
        )
    if facts.dead_letters:
        yield (
            f"{facts.dead_letters:,} messages are in the dead letter queue: "
            "somebody should look at them"
        )


def _divided(window: timedelta, parts: int) -> timedelta:
    """The window divided by its smallest divisor of `parts` or more; one second without any."""
    seconds = int(window.total_seconds())
    divisors = (count for count in range(parts, seconds + 1) if seconds % count == 0)
    return timedelta(seconds=seconds // next(divisors, seconds))
