"""Rows without a mark before contentStart, which a sweep finds.

Nobody browses them, and whether their mail was delivered nobody can say. They are named in the
report and kept. A person who wants them back asks for it (`aside`): then they
are set aside in quarantine, from where `mailslice stuck release` enqueues them anew and `stuck
discard` drops them. Never delivered by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.duties.queue_cleanup.plan import RowKey
from mailslice.duties.queue_cleanup.view import rows_of, starts_of
from mailslice.engine.partition_scan import PlaceFound
from mailslice.maintenance.run import Run
from mailslice.model.mail import EnqueueId, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.slices import is_live
from mailslice.stores.cassandra.own.quarantine import State

log = logging.getLogger(__name__)

MOST = 100
"""A run; the next sweep takes more."""
ACTION = "stray"
_WHY = (
    "a row without a mark before contentStart: nobody browses it, and nobody can say whether its "
    "mail was delivered"
)
_IN_QUARANTINE = frozenset({State.KEPT, State.RELEASING, State.RELEASED})


def strays_of(partitions: Iterable[PlaceFound], swept: Collection[datetime]) -> tuple[RowKey, ...]:
    """The rows without a mark in the swept slices, the first of them."""
    rows = (
        RowKey(QueueTable(found.table), found.slice_ms, found.bucket, EnqueueId(UUID(one)))
        for found in partitions
        if found.slice_start in swept
        for one in found.survivors
    )
    return tuple(islice(rows, MOST))


@dataclass
class Aside:
    """How many rows were set aside; `kept_anew`: mails that a person must look at, in words."""

    rows: int = 0
    kept_anew: list[str] = field(default_factory=list)


def set_aside(run: Run, strays: Iterable[RowKey], window: timedelta) -> Aside:
    """Copy each planned row's mail into quarantine, then mark it as deleted.

    What changed since the plan is left alone. What a kill leaves half done is finished by the next
    sweep, or by stuck_mails.
    """
    throttle, aside = run.throttle("s3"), Aside()
    for stray in strays:
        run.require_lock()
        throttle.take()
        row = rows_of(run.stores, stray.table).read(run.queue, stray.place, stray.enqueue_id)
        if row is not None and _is_behind(run, stray, window):
            _set_one_aside(run, stray, row, aside)
    return aside


def _is_behind(run: Run, stray: RowKey, window: timedelta) -> bool:
    """Whether both starts have passed it and nobody has marked it."""
    starts = starts_of(run.stores, run.queue)
    passed = all(
        start is not None and not is_live(stray.slice_start, start, window)
        for start in (starts.browse, starts.content)
    )
    return passed and not run.stores.tables.deleted.is_marked(run.queue, stray.enqueue_id)


def _set_one_aside(run: Run, stray: RowKey, row: ViewRow, aside: Aside) -> None:
    quarantine = Quarantine(run.stores, run.queue, run.clock)
    since = row.enqueued_time or stray.slice_start
    holder = Holder("-", ACTION, since, run.clock() - since)
    decided = Decided(ACTION, _WHY, run.request.who, run.request.run)
    # Its copy may be of a try that was killed long ago, which stuck_mails is withdrawing: then the
    # next sweep takes the mail.
    kept = quarantine.renew(quarantine.keep(row.item, holder, decided))
    if kept is not None and kept.state is State.KEPT:
        # One that a worker kept for some recipients: the others, too.
        kept = quarantine.name(kept, row.item, decided)
    if kept is None:
        return
    run.stores.tables.deleted.mark_many(run.queue, [stray.enqueue_id])
    aside.rows += 1
    if quarantine.settle(kept).state in _IN_QUARANTINE:
        return
    # The mail is marked, and its copy went at this very moment.
    content = quarantine.keep_for_good(row.item, holder, decided).content
    words = (
        f"{stray.enqueue_id} was withdrawn from quarantine while it was set aside: kept anew, its "
        f"content is {content}; look at 'mailslice stuck list {run.queue}'"
    )
    log.error(words, extra={"action": "kept_anew", "enqueue_id": str(stray.enqueue_id)})
    aside.kept_anew.append(words)
