"""Rewrite rows of messageIdTable that the plan lists from the truth, read again; deletions last.

A write is one microsecond newer than the newest of what it replaces and copies, never now: whatever
James writes after it wins, whoever's clock is right.

A row that James, or a person, deleted alone has left a tombstone, which may be newer than anything
the truth has. Such a row is written with the time at which the plan began to read, and no sooner
than `settle` after it. If the truth still has the message then, whatever deleted its projection
before that time was no deletion of the message: that deletes both, one right after the other. A
deletion of the message since then has a newer time and wins, unless the clock of who deletes is
more than `settle` behind (ADR 17).
"""

import itertools
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from mailslice.codec.row import epoch_us
from mailslice.duties.counter_repair.corrections import AT_ONCE, THREADS
from mailslice.duties.counter_repair.planned import (
    ONLY_PROJECTED,
    REPAIRABLE,
    CounterPlan,
    Difference,
)
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.stores.cassandra.mailboxes import MessageRow

log = logging.getLogger(__name__)

WRITTEN, DELETED, FAILED, REMAINING = "written", "deleted", "failed", "left"
RIGHT_NOW = "right by now"
NO_MAILBOX = "the mailbox is gone"
SHARED_UID = "two messages of the truth have this uid"
DELETED_LATER = "deleted since the plan began to read, by its write time: the next run looks again"
NEWER = "something newer in the row stayed: the next run looks again"
UNDATED = "its write time is not known"
_MAX_WARNINGS = 20


def repair_projection(run: Run, plan: CounterPlan) -> dict[str, Any]:
    """What was done: planned, written, deleted, failed, left, skipped by reason.

    Rows to delete go last: where the uid is another message's, its row has replaced them by then,
    and a deletion would hide it.
    """
    repair = _Projection(run, plan)
    counts: Counter[str] = Counter()
    to_write = [kind for kind in REPAIRABLE if kind != ONLY_PROJECTED]
    with ThreadPoolExecutor(THREADS) as pool:
        for kinds in (to_write, [ONLY_PROJECTED]):
            for rows in batches(plan.read_differences(run, kinds), AT_ONCE):
                counts.update(pool.map(repair.row, rows))
    done = {name: counts.pop(name, 0) for name in (WRITTEN, DELETED, FAILED, REMAINING)}
    skipped = counts.total()
    planned = sum(done.values()) + skipped
    return {"planned": planned, **done, "skipped": skipped, "skippedBy": dict(counts)}


class _Projection:
    """Looks at rows again and rewrites them; threads may share it."""

    def __init__(self, run: Run, plan: CounterPlan) -> None:
        self._run = run
        self._plan_read_us = epoch_us(plan.made_at)
        self._tables = run.stores.mailboxes
        self._throttle = run.throttle("cassandra")
        self._refused = itertools.count()

    def row(self, row: Difference) -> str:
        """What became of a row: one of the outcomes above, or why it was skipped."""
        if self._run.out_of_time():
            return REMAINING
        self._throttle.take()
        self._run.require_lock()
        try:
            return self._row(UUID(row.mailbox), row.uid, UUID(row.message))
        except StoreUnavailable:
            return FAILED
        except BadSetting as error:
            if next(self._refused) < _MAX_WARNINGS:
                log.warning("row %s of mailbox %s: %s", row.uid, row.mailbox, error)
            return FAILED

    def _row(self, mailbox: UUID, uid: int, message: UUID) -> str:
        if not self._tables.exists(mailbox):
            return NO_MAILBOX
        projected = self._tables.projected(mailbox, uid)
        truth = self._tables.truth(message, mailbox, uid)
        crash.point("apply:projection-read")
        if truth is None:
            return self._delete(mailbox, uid, message, projected)
        other = projected.message if projected is not None else None
        if projected is not None and other == message and projected.state == truth.state:
            return RIGHT_NOW
        if other is not None and other != message and self._tables.truth(other, mailbox, uid):
            return SHARED_UID
        return self._write(mailbox, uid, truth, projected)

    def _delete(self, mailbox: UUID, uid: int, message: UUID, projected: MessageRow | None) -> str:
        if projected is None or projected.message != message:
            return RIGHT_NOW
        if not projected.written_us:
            return UNDATED
        self._tables.unproject(mailbox, uid, projected.written_us + 1)
        return DELETED if self._tables.projected(mailbox, uid) is None else NEWER

    def _write(
        self, mailbox: UUID, uid: int, truth: MessageRow, projected: MessageRow | None
    ) -> str:
        if not truth.written_us:
            return UNDATED
        newest = max(truth.written_us, projected.written_us if projected else 0) + 1
        self._tables.project(truth, newest if projected else max(newest, self._plan_read_us))
        now = self._tables.projected(mailbox, uid)
        if now is None:
            return DELETED_LATER
        return WRITTEN if now.message == truth.message and now.state == truth.state else NEWER
