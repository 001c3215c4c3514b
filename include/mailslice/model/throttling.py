"""How much a destination is given, and when who comes too early may come again. Pure: no clock, no
store.

A destination is a recipient domain. Its book is shared by all workers of a queue, which change it
by compare-and-set: what is granted by it is granted once, wherever the workers are. Two sums do it:
when the next message is due at the agreed pace (GCRA, the virtual scheduling of ATM), which grants,
and the last place in the line of those that were put off, which only says when to come again.
Places are a pace apart, so that those who come back find what they need; a place that nobody comes
for is lost, and no message more is granted for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

ANY = "*"
SLACK_US = 3_000_000
"""So much of the pace may be made up for: by what comes late, and by the first messages after a
rest. A minute has at most 5 % and one message more.
"""
_AHEAD_US = 250_000
"""A mail that waited may be so early by this worker's clock."""
LEASE = timedelta(seconds=60)
"""A connection whose holder has not spoken for so long is nobody's."""
LONGEST_LINE = timedelta(minutes=15)
_LEASE_US = int(LEASE.total_seconds() * 1e6)
_LINE_US = int(LONGEST_LINE.total_seconds() * 1e6)
_MINUTE_US = 60_000_000
_INITIAL_CONNECTION_US = 1_000_000
"""How long a connection is thought to be kept before one was."""

Rules = tuple[tuple[str, int], ...]


def destination(domain: str) -> str:
    """A domain's one form for limit and book: lower case, no dot at the end, A-labels."""
    plain = domain.lower().removesuffix(".") or domain
    if plain.isascii():
        return plain
    try:
        return plain.encode("idna").decode()
    except UnicodeError:
        return plain  # no domain that DNS could have: its own book, as it is


@dataclass(frozen=True, slots=True)
class Limit:
    """Of one domain: messages a minute, connections at once (None: no limit), by which `rule`."""

    rule: str
    per_minute: int | None = None
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Rules by pattern: a domain, `*.example.com`, `*`. The closest one holds; 0 = no limit."""

    rates: Rules = ()
    connections: Rules = ()

    def of(self, domain: str) -> Limit | None:
        """What holds for a domain, in any of its forms (`destination`); None without a limit."""
        domain = destination(domain)
        rate, connections = _closest(self.rates, domain), _closest(self.connections, domain)
        applied = [rule for rule, number in (rate, connections) if number]
        return Limit(applied[0], rate[1] or None, connections[1] or None) if applied else None

    def __bool__(self) -> bool:
        return any(number for _, number in (*self.rates, *self.connections))


@dataclass(frozen=True, slots=True)
class Book:
    """What is known of a destination; microseconds since the epoch. `turn` counts its changes."""

    turn: int = 0
    next_us: int = 0
    line_us: int = 0
    hold_us: int = 0
    """How long a connection is kept, smoothed."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Connection -> when it lapses."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One mail for the destination, by `connection`. `waited`: put off before, now in its turn."""

    connection: str
    waited: bool = False


@dataclass(frozen=True, slots=True)
class Freed:
    """A connection that was given back after it was kept for so long."""

    connection: str
    held_us: int


def decide(
    book: Book,
    limit: Limit,
    now_us: int,
    asks: Sequence[Ask],
    *,
    freed: Iterable[Freed] = (),
    kept: Iterable[str] = (),
    chance: float = 1.0,
) -> tuple[Book, list[int | None]]:
    """The next book, and for each ask None (granted) or the microseconds after which to come again.
    `kept`: connections still in use.

    `chance` from 0 to 1 spreads those for whom the line is too long: they get no place, and come
    back at about its end.
    """
    pace_us = _MINUTE_US // limit.per_minute if limit.per_minute else 0
    # What lies further ahead than these was written by a clock that is: it must not keep the mail
    # of others waiting until theirs have caught up.
    live = ((one, lapses) for one, lapses in book.holders.items() if lapses > now_us)
    holders = {one: min(lapses, now_us + 2 * _LEASE_US) for one, lapses in live}
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
    for ask in asks:
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
    return Book(book.turn + 1, next_us, line_us, hold_us, holders), answers


def _closest(rules: Rules, domain: str) -> tuple[str, int]:
    """The rule that holds for a domain; ("", 0) when none does."""
    named = dict(rules)
    labels = domain.split(".")
    patterns = (domain, *(f"*.{'.'.join(labels[at:])}" for at in range(1, len(labels))), ANY)
    return next(((pattern, named[pattern]) for pattern in patterns if pattern in named), ("", 0))
