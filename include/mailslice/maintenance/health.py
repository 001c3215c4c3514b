"""The health of a queue: facts -> one word, why, the next command.

Command line, metrics and page use this table. An unknown fact (None) never makes a queue look
healthy: without the facts that a word needs, the word is UNKNOWN.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from mailslice.codec.shown import several
from mailslice.model.command_line import command_line
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadSetting

_BROKER_LAG = 15.0
"""Seconds that RabbitMQ's figures may be behind a count of the view."""
_YOUNG, _YOUNG_AUDIT = timedelta(seconds=10), timedelta(days=1)


class Health(StrEnum):
    """The words for a queue, the worst first."""

    LOST = "LOST?"
    """Mails wait that the broker does not have: nobody will deliver them."""
    STUCK = "STUCK"
    """Workers hold mails and do not go on."""
    NO_WORKERS = "NO WORKERS"
    LATE = "LATE"
    """Mails wait for longer than the limit."""
    UNKNOWN = "UNKNOWN"
    HELD = "HELD"
    """A person told the workers to wait with the queue, or with some domains."""
    OK = "OK"

    @property
    def severity(self) -> int:
        """0 is the worst; the order of lists."""
        return list(Health).index(self)


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """What is known of a queue. None is unknown, never zero. Counts are mails or messages.

    `waiting` mails were counted `counted_ago`, when the broker had `in_broker` messages of them:
    ready, unacknowledged, delayed, parked and dead letters. `lost` mails are of the last audit that
    could tell, `lost_ago` (None: it found none). `stuck` mails were found by stuck_mails and are
    not dealt with. `silent` mails are with workers whose heartbeat has stopped. `moving`: messages
    a second, in and out, at the end of the count, which took `counting` seconds. `held`: what a
    person holds, and why (`model.holds`). `release`: the command that ends the hold.
    `is_held_whole`: no worker may consume. `unanswered`: store -> why it gave nothing.
    """

    queue: str
    waiting: int | None = None
    counted_ago: timedelta | None = None
    in_broker: int | None = None
    ready: int | None = None
    delayed: int | None = None
    consumers: int | None = None
    oldest: timedelta | None = None
    late_after: timedelta = timedelta(days=1)
    lost: int | None = None
    lost_ago: timedelta = timedelta(0)
    stuck: int = 0
    silent: int = 0
    moving: float = 0.0
    counting: float = 0.0
    held: str | None = None
    release: str | None = None
    is_held_whole: bool = False
    unanswered: Mapping[str, Exception] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The word, a sentence, and the next command (None: there is nothing to do)."""

    health: Health
    why: str
    next: str | None = None


def verdict_of(facts: HealthFacts) -> HealthVerdict:
    """The worst verdict that holds for the queue. Its sentence names a hold in any case."""
    worst = min(_verdicts(facts), key=lambda verdict: verdict.health.severity)
    if facts.held is None or worst.health is Health.HELD:
        return worst
    return replace(worst, why=f"{worst.why}; held: {facts.held}")


def _verdicts(facts: HealthFacts) -> Iterator[HealthVerdict]:
    queue, missing = facts.queue, _missing(facts)
    audit = command_line("duty run queue_audit --queue", queue)
    if facts.lost:
        ago = f" {span(facts.lost_ago)} ago" if facts.lost_ago > _YOUNG_AUDIT else ""
        why = f"the audit{ago} found {several(facts.lost, 'mail')} in no queue of the broker"
        yield HealthVerdict(Health.LOST, why, command_line("queue audit", queue))
    elif missing > 0 and facts.lost is None:
        why = f"{_wait(facts.waiting)}; the broker has {facts.in_broker:,} of them"
        yield HealthVerdict(Health.LOST, f"{why}{_counted(facts)}", audit)
    if facts.stuck or facts.silent:
        command = command_line("duty run stuck_mails --queue", queue, "--dry-run")
        yield HealthVerdict(Health.STUCK, _stuck(facts), command)
    if facts.ready and facts.consumers == 0 and not facts.is_held_whole:
        are = "is" if facts.ready == 1 else "are"
        why = f"{several(facts.ready, 'message')} {are} ready, and nobody consumes the queue"
        command = command_line("worker run --queue", queue, "--handler", "MODULE:FUNCTION")
        yield HealthVerdict(Health.NO_WORKERS, why, command)
    all_delayed = facts.waiting is not None and 0 < facts.waiting <= (facts.delayed or 0)
    if facts.oldest is not None and facts.oldest > facts.late_after and not all_delayed:
        limit = format_duration(facts.late_after)
        why = f"the oldest mail waits for {span(facts.oldest)}, more than {limit}"
        yield HealthVerdict(Health.LATE, why, command_line("queue shape", queue))
    if facts.unanswered:
        why = "; ".join(unanswered(store, error) for store, error in facts.unanswered.items())
        yield HealthVerdict(Health.UNKNOWN, why, "mailslice config check")
    elif facts.ready is None:
        why = "RabbitMQ has no figures of the work queue yet"
        yield HealthVerdict(Health.UNKNOWN, why, command_line("queue show", queue))
    elif facts.waiting is None:
        measure = command_line("duty run queue_size --queue", queue)
        yield HealthVerdict(Health.UNKNOWN, "its mails were never counted", measure)
    if facts.held is not None:
        release = facts.release or command_line("queue release", queue)
        yield HealthVerdict(Health.HELD, f"held: {facts.held}", release)
    yield HealthVerdict(Health.OK, _ok_sentence(facts))


def unanswered(store: str, error: Exception) -> str:
    """Why a store gave nothing. A refusal has its own words: they name the setting to change."""
    return str(error) if isinstance(error, BadSetting) else f"{store} did not answer"


def _missing(facts: HealthFacts) -> int:
    """Counted mails that the broker did not have, less what its late figures may explain."""
    if facts.waiting is None or facts.in_broker is None:
        return 0
    return facts.waiting - facts.in_broker - round(facts.moving * (_BROKER_LAG + facts.counting))


def _stuck(facts: HealthFacts) -> str:
    if facts.silent:
        return f"workers without a heartbeat hold {several(facts.silent, 'mail')}"
    are = "is" if facts.stuck == 1 else "are"
    return f"{several(facts.stuck, 'mail')} {are} in flight far too long"


def _ok_sentence(facts: HealthFacts) -> str:
    if not facts.waiting:
        return f"empty{_counted(facts)}"
    delayed = f", {facts.delayed:,} of them delayed" if facts.delayed else ""
    oldest = f"; the oldest for {span(facts.oldest)}" if facts.oldest is not None else ""
    return f"{_wait(facts.waiting)}{delayed}{oldest}{_counted(facts)}"


def _counted(facts: HealthFacts) -> str:
    """The age of the count; empty where it is as recent as the other figures."""
    ago = facts.counted_ago
    return "" if ago is None or ago < _YOUNG else f" (counted {span(ago)} ago)"


def _wait(count: int | None) -> str:
    return "1 mail waits" if count == 1 else f"{count or 0:,} mails wait"


def span(age: timedelta) -> str:
    """The age, rounded, in the largest unit that fits twice."""
    seconds = age.total_seconds()
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
