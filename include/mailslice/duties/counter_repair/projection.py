"""Rewrite rows of messageIdTable from the truth: only rows that the plan lists, each looked at again, deletions last.

A write is one microsecond newer than the newest of what it replaces and copies, never now: whatever James writes after it wins, whoever's clock is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from mailslice.duties.counter_repair.differences import ONLY_PROJECTED, REPAIRABLE
from mailslice.duties.counter_repair.parallel import beside_each_other
from mailslice.duties.counter_repair.plan_file import Plan
from mailslice.duties.counter_repair.rows_file import read_rows
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock
from mailslice.model import crash
from mailslice.model.errors import StoreUnavailable
from mailslice.stores.cassandra.mailboxes import MessageRow

WRITTEN, DELETED, FAILED, LEFT = "written", "deleted", "failed", "left"
RIGHT_NOW = "right by now"
GONE = "the mailbox is gone"
SHARED_UID = "two messages of the truth have this uid"
DELETED_LATER = "deleted after its truth was written: a person must say whether the message is to come back"
UNDATED = "its write time is not known"


def repair_projection(context: StepContext, plan: Plan, lock: Lock) -> dict[str, Any]:
    """What was done: planned, written, deleted, failed, left, skipped by reason.

    Rows to delete go last: where the uid is another message's, its row has replaced them by then, and a deletion would hide it.
    """
    repair = _Projection(context, lock)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(8) as pool:
        for to_delete in (False, True):
            counts.update(beside_each_other(pool, repair.row, _rows(context, plan, to_delete=to_delete)))
    done = {name: counts.pop(name, 0) for name in (WRITTEN, DELETED, FAILED, LEFT)}
    return {"planned": sum(done.values()) + sum(counts.values()), **done, "skipped": sum(counts.values()), "skippedBy": dict(counts)}


def _rows(context: StepContext, plan: Plan, *, to_delete: bool) -> Iterator[dict[str, Any]]:
    for file in plan.differences:
        yield from (row for row in read_rows(file, context.folder) if row["kind"] in REPAIRABLE and (row["kind"] == ONLY_PROJECTED) == to_delete)


class _Projection:
    """Looks at rows again and rewrites them; threads may share it."""

    def __init__(self, context: StepContext, lock: Lock) -> None:
        self._context = context
        self._lock = lock
        self._tables = context.stores.mailboxes
        self._throttle = context.throttle("cassandra")

    def row(self, row: dict[str, Any]) -> str:
        """What became of a row: one of the outcomes above, or why it was skipped."""
        if self._context.out_of_time():
            return LEFT
        self._throttle.take()
        self._lock.check()
        try:
            return self._row(UUID(row["mailbox"]), row["uid"], UUID(row["message"]))
        except StoreUnavailable:
            return FAILED

    def _row(self, mailbox: UUID, uid: int, message: UUID) -> str:
        if not self._tables.exists(mailbox):
            return GONE
        projected = self._tables.projected(mailbox, uid)
        truth = self._tables.truth(message, mailbox, uid)
        crash.point("apply:projection-read")
        if truth is None:
            return self._delete(mailbox, uid, message, projected)
        if projected is not None and projected.message == message and projected.state == truth.state:
            return RIGHT_NOW
        if projected is not None and projected.message != message and self._tables.truth(projected.message, mailbox, uid) is not None:
            return SHARED_UID
        return self._write(mailbox, uid, truth, projected)

    def _delete(self, mailbox: UUID, uid: int, message: UUID, projected: MessageRow | None) -> str:
        if projected is None or projected.message != message:
            return RIGHT_NOW
        if not projected.written_us:
            return UNDATED
        self._tables.unproject(mailbox, uid, projected.written_us + 1)
        return DELETED

    def _write(self, mailbox: UUID, uid: int, truth: MessageRow, projected: MessageRow | None) -> str:
        if not truth.written_us:
            return UNDATED
        self._tables.project(truth, max(truth.written_us, projected.written_us if projected else 0) + 1)
        now = self._tables.projected(mailbox, uid)
        return WRITTEN if now is not None and now.message == truth.message else DELETED_LATER
