"""Holds: a person tells mailslice's workers to leave a queue, or a domain of it, alone. Pure.

A hold is a row that workers read every few seconds. It ends by its `until`, or by a release. A
mail of which one recipient is of a held domain waits as a whole (ADR 86).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Self

from mailslice.model.delay_levels import DELAY_LEVELS
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.throttling import destination

WHOLE_QUEUE = ""
"""In the place of a domain."""
APPLIES_TO = "mailslice's workers; James' consumers are not affected"
_LONGEST_DOMAIN = 255
_SHARE = 4
_NEVER = datetime.max.replace(tzinfo=UTC)
_PAUSES = tuple(seconds for seconds in DELAY_LEVELS if 5 <= seconds <= 240)
"""Seconds for which a mail of a held domain is set aside: each is one delay level."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold. `domain`: as `destination` names it, or WHOLE_QUEUE. `until` None: a release.

    `change` is new with each change: a worker's record names the changes that it knows.
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
        """What is held, by whom, until when, why, and for whom it does not hold."""
        what = f"domain {self.domain}" if self.domain else "the whole queue"
        until = f"until {_time(self.until)}" if self.until else "until it is released"
        since = f"since {_time(self.since)} by {self.who}"
        return f"{what} {since} {until}: {self.reason} (James' consumers are not affected)"

    @property
    def release(self) -> str:
        """The command that ends it."""
        domain = f" --domain {self.domain}" if self.domain else ""
        return f"mailslice queue release {quote(self.queue)}{domain}"

    def pause(self, now: datetime) -> timedelta:
        """How long a mail is set aside: a quarter of the time that the hold lasts already, by one
        delay level of 5 s to 4 minutes, and not beyond its end.

        So mails of a long hold cost little, and come back soon after a short one.
        """
        age = (now - self.since).total_seconds() / _SHARE
        level = max((one for one in _PAUSES if one <= age), default=_PAUSES[0])
        pause = timedelta(seconds=level)
        if self.until is None:
            return pause
        return max(min(pause, self.until - now), timedelta(seconds=1))


@dataclass(frozen=True, slots=True)
class ActiveHolds:
    """What is held of one queue at a moment."""

    whole: Hold | None = None
    domains: Mapping[str, Hold] = field(default_factory=dict)

    @classmethod
    def at(cls, now: datetime, holds: Iterable[Hold]) -> Self:
        """Those of `holds` whose end is yet to come."""
        active = {hold.domain: hold for hold in holds if hold.is_active(now)}
        return cls(active.pop(WHOLE_QUEUE, None), active)

    def of(self, domains: Iterable[str]) -> Hold | None:
        """The hold of one of these domains that lasts longest; None where none is held."""
        if not self.domains:
            return None
        names = map(destination, domains)
        held = [self.domains[one] for one in names if one in self.domains]
        return max(held, key=lambda hold: hold.until or _NEVER, default=None)

    @property
    def all(self) -> tuple[Hold, ...]:
        """The whole queue first."""
        return (*([self.whole] if self.whole else []), *self.domains.values())

    @property
    def changes(self) -> tuple[str, ...]:
        """For the worker's record."""
        return tuple(sorted(hold.change for hold in self.all))


def held_domain(text: str) -> str:
    """A domain as holds name it. Raises BadInput: patterns and addresses are none."""
    domain = destination(text.strip())
    is_name = domain and len(domain) <= _LONGEST_DOMAIN and domain.isascii()
    if not is_name or set(domain) & set("@*?,/\\\"'` ") or not domain.isprintable():
        raise BadInput(
            f"--domain: {text[:60]!r} is not allowed; one domain as it stands behind the @ of an "
            "address is, such as example.net"
        )
    return domain


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
