"""Limits for destinations: which mails may be sent now, and when the others may try again (ADR 25).
Pure: no clock, no store.

A destination is a recipient domain. All workers of a queue share its book (a Load) and change it
by compare-and-set, so each permission is granted once. `next_us` grants: when the next message is
due at the agreed pace (GCRA, the virtual scheduling of ATM). `line_us` is the last slot of the
mails that were put off: when to try again. Slots are one pace apart. An unused one is lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

ANY = "*"
SLACK_US = 3_000_000
"""How far messages may run ahead of the pace, after late ones or after a rest. A minute then has at
most 5 % and one message more than its limit.
"""
_AHEAD_US = 250_000
"""How early, by this worker's clock, a mail that waited may be."""
LEASE = timedelta(seconds=60)
"""A connection is free again when its holder has not renewed it for this long."""
LONGEST_LINE = timedelta(minutes=15)
_LEASE_US = int(LEASE.total_seconds() * 1e6)
_LINE_US = int(LONGEST_LINE.total_seconds() * 1e6)
_MINUTE_US = 60_000_000
_INITIAL_CONNECTION_US = 1_000_000
"""Assumed time for which a connection is kept, before one was measured."""

Rules = tuple[tuple[str, int], ...]


def destination(domain: str) -> str:
    """The canonical form of a domain: lower case, no dot at the end, A-labels."""
    plain = domain.lower().removesuffix(".") or domain
    if plain.isascii():
        return plain
    try:
        return plain.encode("idna").decode()
    except UnicodeError:
        return plain  # no valid domain of DNS: the text as it is gets a book of its own


@dataclass(frozen=True, slots=True)
class Limit:
    """A domain's limit: messages a minute, connections at once (None: no limit), from `rule`."""

    rule: str
    per_minute: int | None = None
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Rules by pattern: a domain, `*.example.com`, `*`. The closest rule applies; 0 = no limit."""

    rates: Rules = ()
    connections: Rules = ()

    def of(self, domain: str) -> Limit | None:
        """The limit of a domain, in any of its forms (`destination`); None: no limit."""
        domain = destination(domain)
        rate, connections = _closest(self.rates, domain), _closest(self.connections, domain)
        applied = [rule for rule, number in (rate, connections) if number]
        return Limit(applied[0], rate[1] or None, connections[1] or None) if applied else None

    def __bool__(self) -> bool:
        return any(number for _, number in (*self.rates, *self.connections))


@dataclass(frozen=True, slots=True)
class Load:
    """The state of a destination. Times are microseconds since the epoch. `turn` counts changes."""

    turn: int = 0
    next_us: int = 0
    line_us: int = 0
    hold_us: int = 0
    """Smoothed duration for which a connection is kept."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Connection -> when its lease ends."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A request to send a mail by `connection`. `waited`: it was put off, and its slot has come."""

    connection: str
    waited: bool = False


@dataclass(frozen=True, slots=True)
class Freed:
    """A connection that a worker gave back after `held_us` microseconds."""

    connection: str
    held_us: int


def decide(
    book: Load,
    limit: Limit,
    now_us: int,
    claims: Sequence[Claim],
    *,
    freed: Iterable[Freed] = (),
    kept: Iterable[str] = (),
    chance: float = 1.0,
) -> tuple[Load, list[int | None]]:
    """The next book, and for each ask None (granted) or the microseconds until the next try.

    `kept`: connections still in use. If the line is longer than 15 minutes, an ask gets no slot,
    and tries again at about its end; `chance`, 0 to 1, spreads these asks.
    """
    pace_us = _MINUTE_US // limit.per_minute if limit.per_minute else 0
    # A worker whose clock is ahead wrote times beyond these limits. They are cut: other workers'
    # mails must not wait until their clocks have caught up.
    live = ((holder, lapses) for holder, lapses in book.holders.items() if lapses > now_us)
    holders = {holder: min(lapses, now_us + 2 * _LEASE_US) for holder, lapses in live}
    next_us = min(book.next_us, now_us + pace_us + SLACK_US + _LEASE_US)
    line_us = min(book.line_us, now_us + _LINE_US + _LEASE_US)
    hold_us = book.hold_us
    for one in freed:
        holders.pop(one.connection, None)
        hold_us = one.held_us if hold_us == 0 else (4 * hold_us + one.held_us) // 5
    holders |= dict.fromkeys(kept, now_us + _LEASE_US)
    kept_us = hold_us or _INITIAL_CONNECTION_US
    step_us = max(pace_us, kept_us // limit.connections if limit.connections else 0, 1)
    answers: list[int | None] = []
    for ask in claims:
        in_turn = ask.waited or line_us <= now_us
        in_time = not pace_us or next_us <= now_us + SLACK_US + (_AHEAD_US if ask.waited else 0)
        if in_turn and in_time and (not limit.connections or len(holders) < limit.connections):
            next_us = max(next_us, now_us) + pace_us
            if limit.connections:
                holders[ask.connection] = now_us + _LEASE_US
            answers.append(None)
            continue
        place_us = max(line_us, now_us, next_us - SLACK_US) + step_us
        if place_us - now_us <= _LINE_US:
            line_us = place_us
            answers.append(place_us - now_us)
        else:
            answers.append(int(_LINE_US * (0.5 + chance / 2)))
    return Load(book.turn + 1, next_us, line_us, hold_us, holders), answers


def _closest(rules: Rules, domain: str) -> tuple[str, int]:
    """The rule that applies to a domain; ("", 0) when none does."""
    named = dict(rules)
    labels = domain.split(".")
    patterns = (domain, *(f"*.{'.'.join(labels[at:])}" for at in range(1, len(labels))), ANY)
    return next(((pattern, named[pattern]) for pattern in patterns if pattern in named), ("", 0))
