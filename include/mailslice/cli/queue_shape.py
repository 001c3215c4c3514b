"""`queue shape`: live mails by recipient domain and age, as Postfix' qshape draws them."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mailslice.codec.addresses import NO_DOMAIN, domain_of
from mailslice.duties.queue_size.age_histogram import COLUMNS, OTHERS, AgeHistogram
from mailslice.model.mail import QueueName, ViewRow
from mailslice.model.throttling import Limits, Load, destination
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DelayState, Destinations

TOTAL = "TOTAL"
_LIMITED = ("perMinute", "connections", "connectionsInUse", "lineSeconds")


@dataclass(slots=True)
class Shaped:
    """Counts of one queue by age; delayed and throttled mails by domain."""

    ages: AgeHistogram = field(default_factory=AgeHistogram)
    delayed: Counter[str] = field(default_factory=Counter)
    throttled: Counter[str] = field(default_factory=Counter)

    def add(self, row: ViewRow, now: datetime, state: DelayState, limits: Limits) -> None:
        """Count a mail. A throttled mail counts for those of its domains that have a limit."""
        recipients = row.item.mail.recipients
        self.ages.add(recipients, row.enqueued_time, now)
        if state.due is None:
            return
        domains = {domain_of(recipient) for recipient in recipients} or {NO_DOMAIN}
        self.delayed.update({TOTAL, *domains})
        if state.throttled:
            self.throttled.update(
                {TOTAL, *({domain for domain in domains if limits.of(domain)} or domains)}
            )


def shape_rows(
    stores: Stores, queue: QueueName, rows: Iterable[ViewRow], now: datetime, limit: int | None
) -> Iterator[dict[str, Any]]:
    """An object for all mails (domain `TOTAL`), one a domain, the fullest first, and `OTHERS`."""
    limits = stores.settings.relay.limits
    shaped = Shaped()
    for row, state in stores.with_delays(queue, rows):
        shaped.add(row, now, state, limits)
    top = shaped.ages.top(len(shaped.ages.domains) if limit is None else limit)
    yield _line(queue, TOTAL, top["total"], shaped.delayed[TOTAL], shaped.throttled[TOTAL])
    named = [row["domain"] for row in top["domains"] if row["domain"] != OTHERS]
    books = _books(
        stores, queue, [domain for domain in named if limits.of(domain) or shaped.throttled[domain]]
    )
    listed = {TOTAL, *named}
    for counts in (shaped.delayed, shaped.throttled):
        counts[OTHERS] = sum(count for name, count in counts.items() if name not in listed)
    for row in top["domains"]:
        domain = row["domain"]
        delayed, throttled = shaped.delayed[domain], shaped.throttled[domain]
        line = _line(queue, domain, row["counts"], delayed, throttled)
        yield line | _limited(limits, domain, books.get(domain))


def as_table(line: dict[str, Any]) -> dict[str, Any]:
    """The columns for a terminal: those of qshape, then mailslice's own."""
    shown = {"domain": line["domain"], "T": line["total"], **line["counts"]}
    shown |= {"delayed": line["delayed"], "throttled": line["throttled"]}
    return shown | {"per minute": line["perMinute"], "connections": line["connections"]}


def _line(
    queue: QueueName, domain: str, counts: list[int], delayed: int, throttled: int
) -> dict[str, Any]:
    named = dict(zip(COLUMNS, counts, strict=True))
    limited = dict.fromkeys(_LIMITED)
    line = {"queue": queue, "domain": domain, "total": sum(counts), "counts": named}
    return {**line, "delayed": delayed, "throttled": throttled, **limited}


def _limited(limits: Limits, domain: str, book: Load | None) -> dict[str, Any]:
    """Limits and use of the domain. `lineSeconds`: for how long a mail would be postponed now."""
    limit = limits.of(domain) if domain != OTHERS else None
    now_us = int(time.time() * 1e6)
    line: dict[str, Any] = dict.fromkeys(_LIMITED)
    if limit:
        line |= {"perMinute": limit.per_minute, "connections": limit.connections}
    if book:
        line["connectionsInUse"] = sum(lapses > now_us for lapses in book.holders.values())
        line["lineSeconds"] = round(max(0, book.line_us - now_us) / 1e6, 1)
    return line


def _books(stores: Stores, queue: QueueName, domains: list[str]) -> dict[str, Load]:
    table = Destinations.existing(stores.cassandra, stores.settings) if domains else None
    if table is None:
        return {}
    named = {domain: destination(domain) for domain in domains}
    books = table.books(queue, set(named.values()))
    return {domain: books[book] for domain, book in named.items() if book in books}
