"""Holds: a person tells mailslice's workers to leave a queue, or mails to a domain, alone. Pure.

A hold is a row that workers read every few seconds. It ends at its `until`, or by a release. A mail
waits as a whole if one of its recipients is of a held domain (ADR 86).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self

from mailslice.model.clock import utc_text
from mailslice.model.command_line import command_line
from mailslice.model.delay_levels import DELAY_LEVELS
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.throttling import destination

WHOLE_QUEUE = ""
"""In place of a domain: the hold is of the whole queue."""
APPLIES_TO = "mailslice's workers; James' consumers are not affected"
_LONGEST_DOMAIN = 255
_AGE_DIVISOR = 4
_NEVER = datetime.max.replace(tzinfo=UTC)
_PAUSES = tuple(seconds for seconds in DELAY_LEVELS if 5 <= seconds <= 240)
"""Seconds that a mail of a held domain may wait: each is the TTL of a delay level."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold of `domain` (form of `destination`, or WHOLE_QUEUE). `until` None: until a release.

    `change`: an id that each change of the hold renews. A worker's record lists the ids it knows.
    """

    queue: QueueName
    domain: str
    since: datetime
    until: datetime | None
    who: str
    reason: str
    change: str

    def is_active(self, now: datetime) -> bool:
        return self.until is None or now < self.until

    @property
    def sentence(self) -> str:
        what = f"domain {self.domain}" if self.domain else "the whole queue"
        until = f"until {utc_text(self.until, 'seconds')}" if self.until else "until it is released"
        since = f"since {utc_text(self.since, 'seconds')} by {self.who}"
        return f"{what} {since} {until}: {self.reason} (James' consumers are not affected)"

    @property
    def release(self) -> str:
        """The command that ends it."""
        domain = ("--domain", self.domain) if self.domain else ()
        return command_line("queue release", self.queue, *domain)

    def pause(self, now: datetime) -> timedelta:
        """How long a held mail waits before the next check: a quarter of the hold's age, by one
        delay level of 5 s to 4 minutes, and not beyond the hold's end.

        So mails of a long hold cost little, and mails of a short hold come back soon after it.
        """
        age = (now - self.since).total_seconds() / _AGE_DIVISOR
        level = max((one for one in _PAUSES if one <= age), default=_PAUSES[0])
        pause = timedelta(seconds=level)
        if self.until is None:
            return pause
        return max(min(pause, self.until - now), timedelta(seconds=1))


@dataclass(frozen=True, slots=True)
class ActiveHolds:
    """The holds of one queue that are active at a moment."""

    whole: Hold | None = None
    domains: Mapping[str, Hold] = field(default_factory=dict)

    @classmethod
    def at(cls, now: datetime, holds: Iterable[Hold]) -> Self:
        """The `holds` that have not ended at `now`."""
        active = {hold.domain: hold for hold in holds if hold.is_active(now)}
        return cls(active.pop(WHOLE_QUEUE, None), active)

    def of(self, domains: Iterable[str]) -> Hold | None:
        """Among the holds of these domains the one that ends last; None where none is held."""
        names = map(destination, domains)
        held = [self.domains[name] for name in names if name in self.domains]
        return max(held, key=lambda hold: hold.until or _NEVER, default=None)

    @property
    def all(self) -> tuple[Hold, ...]:
        """All holds, that of the whole queue first."""
        return (*([self.whole] if self.whole else []), *self.domains.values())

    @property
    def changes(self) -> tuple[str, ...]:
        """Their ids of change, for the worker's record."""
        return tuple(sorted(hold.change for hold in self.all))


def parse_hold_domain(text: str) -> str:
    """A domain in the form that holds use. Raises BadInput, also for patterns and addresses."""
    domain = destination(text.strip())
    is_name = domain and len(domain) <= _LONGEST_DOMAIN and domain.isascii()
    if not is_name or set(domain) & set("@*?,/\\\"'` ") or not domain.isprintable():
        raise BadInput(
            f"--domain: {text[:60]!r} is not allowed; one domain as it stands behind the @ of an "
            "address is, such as example.net"
        )
    return domain
