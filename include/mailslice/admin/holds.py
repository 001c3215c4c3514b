"""Holds of a queue, or of recipient domains in it, for mailslice's workers: set, release, list.

Workers read holds every few seconds (`worker.io.hold_watch`). James' consumers ignore them. The
caller records the decision: who, what, why.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

from mailslice.admin import queues
from mailslice.codec.row import epoch_ms, instant
from mailslice.model.clock import Clock
from mailslice.model.errors import BadInput, Refused, StoreUnavailable
from mailslice.model.holds import APPLIES_TO, WHOLE_QUEUE, ActiveHolds, Hold, parse_hold_domain
from mailslice.model.mail import QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import Holds

MAX_DOMAINS = 500
"""Most holds of one queue. Workers read all of them every few seconds."""
MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class HoldState:
    """A hold. `seen_by` of the `workers` know it. A silent worker counts until the idle limit."""

    hold: Hold
    seen_by: int
    workers: int

    def as_json(self) -> dict[str, object]:
        return {
            "queue": self.hold.queue,
            "domain": self.hold.domain or None,
            "since": self.hold.since,
            "until": self.hold.until,
            "who": self.hold.who,
            "reason": self.hold.reason,
            "seenBy": self.seen_by,
            "workers": self.workers,
            "appliesTo": APPLIES_TO,
        }


def hold(
    stores: Stores,
    queue: QueueName,
    clock: Clock,
    *,
    who: str,
    reason: str,
    domains: Iterable[str] = (),
    lasts: timedelta | None = None,
) -> list[Hold]:
    """Hold the whole queue, or these recipient domains. Returns the new holds.

    `lasts` None: until a release. An existing hold gets the new end, who and reason, and keeps its
    start. Raises BadInput, UnknownQueue, Refused for too many domains, ClockSkew; StoreUnavailable
    where a concurrent change overwrote this one.
    """
    names = _names(domains)
    if not reason.strip() or len(reason) > MAX_REASON:
        raise BadInput(f"a hold needs a reason (--reason) of 1 to {MAX_REASON} characters")
    queues.require(stores, queue)
    stores.cassandra.require_clock(clock)
    table = stores.own.holds
    now = instant(epoch_ms(clock()))  # as it is stored
    known = {one.domain: one.since for one in table.list(queue) if one.is_active(now)}
    if len(known.keys() | names) > MAX_DOMAINS:
        raise Refused(
            f"queue {queue} has {len(known)} holds; at most {MAX_DOMAINS} are allowed: hold the "
            "whole queue, or release some"
        )
    terms = None if lasts is None else now + lasts, who, reason.strip()
    new = [
        Hold(queue, name, known.get(name, now), *terms, uuid4().hex[:12]) for name in sorted(names)
    ]
    for one in new:
        table.save(one, lasts)
    _require({one.change for one in new} <= _changes(table, queue), queue)
    return new


def release(
    stores: Stores, queue: QueueName, clock: Clock, *, domains: Iterable[str] = ()
) -> list[Hold]:
    """End the hold of the whole queue, or of these domains. Returns the holds that were active.

    Without `domains` only the hold of the whole queue ends: holds of domains stay. Raises BadInput,
    UnknownQueue, ClockSkew and StoreUnavailable as `hold`.
    """
    names = _names(domains)
    queues.require(stores, queue)
    stores.cassandra.require_clock(clock)
    table = Holds.existing(stores.cassandra, stores.settings)
    if table is None:
        return []
    ended = [one for one in table.list(queue) if one.domain in names and one.is_active(clock())]
    for name in names:
        table.delete(queue, name)
    _require(_changes(table, queue).isdisjoint(one.change for one in ended), queue)
    return ended


def active_holds(
    stores: Stores, clock: Clock, queue: QueueName | None = None
) -> dict[QueueName, ActiveHolds]:
    """Queue -> active holds, of `queue` or of all queues that have any. One read; no new table."""
    table = Holds.existing(stores.cassandra, stores.settings)
    by_queue: dict[QueueName, list[Hold]] = {}
    for one in table.list(queue) if table is not None else ():
        by_queue.setdefault(one.queue, []).append(one)
    now = clock()
    active = {name: ActiveHolds.at(now, rows) for name, rows in by_queue.items()}
    return {name: one for name, one in sorted(active.items()) if one.all}


def holds(stores: Stores, clock: Clock, queue: QueueName | None = None) -> list[HoldState]:
    """The active holds of `queue` or of all queues: of each, the whole queue before its domains."""
    states: list[HoldState] = []
    for name, active in active_holds(stores, clock, queue).items():
        alive = [one for one in stores.worker_records(name) if replace(one, in_flight=()).is_alive]
        for one in active.all:
            seen_by = sum(one.change in record.holds for record in alive)
            states.append(HoldState(one, seen_by, len(alive)))
    return states


def _changes(table: Holds, queue: QueueName) -> set[str]:
    return {one.change for one in table.list(queue)}


def _require(done: bool, queue: QueueName) -> None:
    """Raises StoreUnavailable unless `done`: Cassandra keeps the write of the later clock."""
    if not done:
        raise StoreUnavailable(
            f"queue {queue}: somebody else holds or releases it at the same time, or did by a "
            "clock that is ahead: look at queue holds, and ask again"
        )


def _names(domains: Iterable[str]) -> set[str]:
    return {parse_hold_domain(one) for one in domains} or {WHOLE_QUEUE}
