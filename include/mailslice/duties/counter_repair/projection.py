"""Rewrites planned rows of messageIdTable from the truth, which is read again. Deletes rows last.

The timestamp of a write is one microsecond after the newest cell that it replaces or copies, not
the current time. So any later write of James wins, even if the clocks differ.

If James or a person deleted only the row of the projection, its tombstone may be newer than all
cells of the truth. Such a row is written with the time T at which the plan began to read, at the
earliest `settle` after T. If the truth has the message then, a deletion of the projection before T
did not delete the message, because James deletes both rows one right after the other. A deletion of
the message after T has a newer timestamp and wins. This fails only if the deleting clock is more
than `settle` behind (ADR 17).
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
    """Gives counts of rows: planned, written, deleted, failed, left, skipped by reason.

    Deletions come last. If the uid belongs to another message, a write has replaced the row by
    then, and the deletion is skipped: it would hide the new row.
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
    """Reads rows again and rewrites them. Thread-safe."""

    def __init__(self, run: Run, plan: CounterPlan) -> None:
        self._run = run
        self._plan_read_us = epoch_us(plan.made_at)
        self._tables = run.stores.mailboxes
        self._throttle = run.throttle("cassandra")
        self._refused = itertools.count()

    def row(self, row: Difference) -> str:
        """Repair a row. Gives WRITTEN, DELETED, FAILED or REMAINING, or why it was skipped."""
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
