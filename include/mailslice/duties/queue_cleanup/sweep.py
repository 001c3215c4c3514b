"""The weekly sweep: what a late insert, a failed enqueue or a node back from the dead left: rows before contentStart, and marks without a row.

Swept rows are judged like all others: dead ones may go, one without a mark is kept and named in the report. A mark without a row waits as every other
mark does (I5): its table keeps no write time, so the moment it was seen counts, and a proof must be younger than a slice that was opened then.
Marks of a plan whose files broke are such marks, too: a sweep that saw all marks takes them over, and forgets that plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from uuid import UUID

from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.pending import LEFT, OpenedPending, digest_of_left, read_left
from mailslice.duties.queue_cleanup.plan_file import Plan
from mailslice.duties.queue_cleanup.view import existing_places
from mailslice.duty.context import StepContext
from mailslice.model.errors import PlanRefused
from mailslice.model.names import QueueTable
from mailslice.spark.compare import Comparison, PlaceKey, compare
from mailslice.spark.slices import millis
from mailslice.stores.cassandra.own import PendingMark

log = logging.getLogger(__name__)

FILE = "marks-without-row.json"
MOST = 200_000
"""Marks without a row that one run takes; the next sweep takes more."""
_MOST_READ = 20_000_000
"""Marks that are looked at, 16 bytes each."""


def slices_before(context: StepContext, first: datetime) -> tuple[list[datetime], int]:
    """Slices before `first` that have a partition, oldest first, and the buckets they need."""
    places = [
        place
        for place in existing_places(context.stores, context.queue)
        if place.slice_start < first
    ]
    return sorted({place.slice_start for place in places}), max(
        (place.bucket + 1 for place in places), default=1
    )


def find_marks_without_row(context: StepContext, tables: Iterable[QueueTable]) -> str:
    """Write the ids of marks that have no row to FILE; their digest, empty when there are none.

    Marks are read first: the row of a mark that is read is there already, unless it is gone for good. Marks of registered plans have no rows either;
    they wait for a proof of their own, and are left out. FILE names the plans whose files cannot be used, too, when no mark was left for another sweep.
    """
    import numpy as np

    marks = np.frombuffer(
        b"".join(
            each.bytes
            for each in islice(context.stores.tables.deleted.ids(context.queue), _MOST_READ)
        ),
        dtype=">u8",
    ).reshape(-1, 2)
    places = existing_places(context.stores, context.queue)
    keys = [
        PlaceKey(table.value, millis(place.slice_start), place.bucket)
        for place in sorted(places, key=str)
        for table in tables
    ]
    what = Comparison(
        context.settings, context.queue, context.folder.artifacts, context.folder.name, marks=False
    )
    rows = np.frombuffer(
        b"".join(now.ids for now in compare(context.spark(), what, keys)), dtype=">u8"
    )
    known, unusable = [rows.astype(np.uint64)], []
    for pending in context.stores.own.pending_marks.list(context.queue):
        waiting = OpenedPending.open(context, None, pending).low_halves(context)
        if waiting is None:
            unusable.append(pending.run)
        else:
            known.append(waiting)
    without = marks[~np.isin(marks[:, 1].astype(np.uint64), np.concatenate(known))]
    whole = len(marks) < _MOST_READ and len(without) <= MOST
    found = sorted(str(UUID(bytes=each.tobytes())) for each in without[:MOST])
    left = [(each, 0, 0) for each in found]
    context.folder.write_json(FILE, {"left": left, "unusable": unusable if whole else []})
    return digest_of_left(left) if left else ""


def register_marks_without_row(context: StepContext, plan: Plan) -> int:
    """Let them wait for their proof beside the plans'; how many. Raises PlanRefused when the file is not what the plan says."""
    if not plan.marks_without_row:
        return 0
    try:
        left = read_left(context.folder.read_json(FILE) or {})
    except (KeyError, TypeError, ValueError) as error:
        raise PlanRefused(
            f"{context.folder.uri}/{FILE} was changed since the plan was made ({type(error).__name__}: {error}): plan again"
        ) from error
    if digest_of_left(left) != plan.marks_without_row:
        raise PlanRefused(
            f"{context.folder.uri}/{FILE} was changed since the plan was made: plan again"
        )
    name = f"{plan.digest[:12]}.sweep"
    context.folder.write_json(f"{name}-{LEFT}", {"left": left})
    closed_at = plan.made_at + plan.shape.open_for + plan.grace
    pending = PendingMark(
        f"{plan.run}#{name}",
        context.folder.file(f"{name}-{LEFT}"),
        plan.marks_without_row,
        len(left),
        closed_at,
    )
    context.stores.own.pending_marks.save(context.queue, pending)
    return len(left)


def forget_unusable_plans(context: StepContext) -> None:
    """Forget the plans that this run's sweep found unusable, once its own marks are registered: what they waited for is among those, or gone.

    Else they would be reported, and their run's files kept, for good. One whose files are there again goes its own way.
    """
    swept = context.folder.read_json(FILE) if context.params(Params).sweep else None
    unusable = (swept or {}).get("unusable")
    if not isinstance(unusable, list):
        return
    for pending in context.stores.own.pending_marks.list(context.queue):
        if pending.run in unusable:
            opened = OpenedPending.open(context, None, pending)
            if opened.low_halves(context) is None:
                log.warning(
                    "the plan of run %s is forgotten: its files cannot be used, and the sweep took its marks over",
                    pending.run,
                )
                opened.keep_only(context, ())
