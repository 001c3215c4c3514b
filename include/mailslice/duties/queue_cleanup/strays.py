"""Rows without a mark before contentStart, which a sweep finds. Nobody browses them, and whether their mail was delivered nobody can say.

They are named in the report and kept. A person who wants them back asks for it (`aside`): then they are set aside in quarantine, from where
`mailslice stuck release` enqueues them anew and `stuck discard` drops them. Never delivered by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from mailslice.duties.queue_cleanup.view import starts_of
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock
from mailslice.model.mail import EnqueueId, Place
from mailslice.model.names import QueueTable
from mailslice.model.slices import is_live
from mailslice.queue.quarantine import Decided, Holder, Quarantine
from mailslice.spark.slices import PlaceFound, instant, millis
from mailslice.stores.cassandra.own.quarantine import State

MOST = 100
"""A run; the next sweep takes more."""
ACTION = "stray"
_WHY = "a row without a mark before contentStart: nobody browses it, and nobody can say whether its mail was delivered"


@dataclass(frozen=True, slots=True)
class Stray:
    """One row, and where it is."""

    table: QueueTable
    place: Place
    enqueue_id: EnqueueId

    def as_json(self) -> list[object]:
        """For the plan."""
        return [
            self.table.value,
            millis(self.place.slice_start),
            self.place.bucket,
            str(self.enqueue_id),
        ]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Stray:
        """What `as_json` gave."""
        table, start, bucket, enqueue_id = value
        return cls(QueueTable(table), Place(instant(start), bucket), EnqueueId(UUID(enqueue_id)))

    def shown(self) -> dict[str, object]:
        """For the report."""
        return {"slice": iso(self.place.slice_start), "enqueueId": str(self.enqueue_id)}


def strays_of(found: Iterable[PlaceFound], swept: Iterable[datetime]) -> tuple[Stray, ...]:
    """The rows without a mark in the swept slices, the first of them."""
    before = set(swept)
    places = (place for place in found if place.slice_start in before)
    rows = [
        Stray(QueueTable(each.table), Place(each.slice_start, each.bucket), EnqueueId(UUID(one)))
        for each in places
        for one in each.survivors
    ]
    return tuple(rows[:MOST])


def set_aside(context: StepContext, strays: Sequence[Stray], window: timedelta, lock: Lock) -> int:
    """Copy each planned row's mail into quarantine, then mark it as deleted; how many. What changed since the plan is left alone.

    What a kill leaves half done is finished by the next sweep, or by stuck_mails.
    """
    stores, queue = context.stores, context.queue
    quarantine = Quarantine(stores, queue, context.clock)
    throttle = context.throttle("s3")
    done = 0
    for stray in strays:
        lock.check()
        throttle.take()
        starts = starts_of(stores, queue)
        table = stores.tables.v3 if stray.table is QueueTable.V3 else stores.tables.v4
        row = table.read(queue, stray.place, stray.enqueue_id)
        behind = all(
            start is not None and not is_live(stray.place.slice_start, start.value, window)
            for start in (starts.browse, starts.content)
        )
        if row is None or not behind or stores.tables.deleted.is_marked(queue, stray.enqueue_id):
            continue
        since = row.enqueued_time or stray.place.slice_start
        holder = Holder("-", ACTION, since, context.clock() - since)
        # It may be the row of a try that was killed long ago, which stuck_mails is withdrawing: then the next sweep takes the mail.
        decided = Decided(ACTION, _WHY, context.request.who, context.request.run)
        kept = quarantine.renew(quarantine.keep(row.item, holder, decided))
        # One that a worker kept for some recipients: the others, too.
        kept = (
            quarantine.name(kept, row.item, decided)
            if kept is not None and kept.state is State.KEPT
            else kept
        )
        if kept is None:
            continue
        stores.tables.deleted.mark_many(queue, [stray.enqueue_id])
        quarantine.settle(kept)
        done += 1
    return done
