"""Step 1: find the old live mails, gather the evidence, judge each. Changes no mail; a census, when asked for, says first what it changes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.queue_audit.candidates import Looking, OldPlace, old_places
from mailslice.duties.queue_audit.evidence import Gathered, gather
from mailslice.duties.queue_audit.judge import Counts
from mailslice.duties.queue_audit.params import Params
from mailslice.duties.queue_audit.verdicts import Judging, judge_all, total
from mailslice.duty.artifacts import iso
from mailslice.duty.audits import CENSUS_PATIENCE, PARTS, lock_name
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import digest_of
from mailslice.model import crash
from mailslice.model.durations import format_duration
from mailslice.queue.configuration import Shape, view_shape
from mailslice.queue.directory import require
from mailslice.queue.live import LiveRows
from mailslice.spark.slices import instant

log = logging.getLogger(__name__)

BULKY = ("decided",)
CANDIDATES = "candidates"
_WINDOWS = 2
"""Slice windows after which a mail is old enough to be asked about, when nothing else was said."""


def run(context: StepContext) -> dict[str, Any]:
    """The verdicts, in plan/, and their counts. Raises UnknownQueue, Refused for a census that would do harm, LockHeld."""
    require(context.stores, context.queue)
    # The same lock keeps a republish away: what the census finds in no queue must not come in beside it.
    with locked(
        context.stores.own.locks,
        lock_name(context.queue),
        context.request.run,
        patience=CENSUS_PATIENCE,
    ) as lock:
        return _audit(context, lock)


def _audit(context: StepContext, lock: Lock) -> dict[str, Any]:
    params, stores, queue = context.params(Params), context.stores, context.queue
    _forget_earlier_try(context)
    view = view_shape(stores)
    age = params.older_than if params.older_than is not None else _WINDOWS * view.window
    now = context.clock()
    slices, buckets = _slices(context, view, now, now - age)
    slices = [start for start in slices if params.covers(start)]
    looking = Looking(
        context.settings,
        queue,
        buckets,
        now - age,
        context.folder.artifacts,
        context.folder.file(CANDIDATES),
    )
    places = _old_places(context, looking, slices)
    crash.point("plan:after-first-read")

    asked = params.census and not params.dry_run
    gathered = gather(context, census=asked, youngest=_youngest(places))
    crash.point("plan:after-evidence")
    lock.check()

    context.folder.artifacts.folder(context.folder.file(PARTS))
    judging = Judging(
        context.settings,
        queue,
        view.window,
        context.folder.artifacts,
        context.folder.file(CANDIDATES),
        context.folder.file(PARTS),
    )
    with_mails = [place for place in places if place.old]
    outcomes = (
        judge_all(context.spark(), judging, with_mails, gathered.evidence) if with_mails else []
    )
    verdicts, rows = total(outcomes)
    reads = {
        "wanted": len(slices) * buckets * len(stores.tables.existing),
        "read": len({(each.table, each.slice_ms, each.bucket) for each in places}),
        "twice": len(places)
        - len({(each.table, each.slice_ms, each.bucket, each.delayed) for each in places}),
        "candidates": sum(each.old for each in places),
        "rows": sum(each.rows for each in places),
    }
    decided: dict[str, object] = {
        "run": context.request.run,
        "queue": queue,
        "madeAt": iso(now),
        "olderThan": format_duration(age),
        "shared": gathered.evidence.shared,
        "census": asked,  # where no mail is old enough there is none that a census could prove lost, and it is left out
        "verdicts": verdicts,
        "rows": str(rows),
        "files": sorted(each.file for each in outcomes if each.file),
        "reads": {
            **reads,
            "judged": rows.count + sum(each.gone for each in outcomes),
        },
        "unproved": gathered.evidence.unproved is not None,
    }
    _forget_other_files(context, {each.file for each in outcomes})
    return {
        "decided": decided,
        "planDigest": digest_of(decided),
        "planned": rows.count,
        "verdicts": verdicts,
        "olderThan": format_duration(age),
        "census": _told(params, gathered),
        "broker": _broker(gathered.evidence.counts),
        "mails": rows.count,
        "goneMeanwhile": sum(each.gone for each in outcomes),
        "reads": reads,
        "message": _message(verdicts, age, rows.count, params),
    }


def _slices(
    context: StepContext, view: Shape, now: datetime, latest: datetime
) -> tuple[list[datetime], int]:
    """The slices from browseStart on that may hold mails enqueued until `latest`, and the most buckets there are."""
    places = list(LiveRows(context.stores.tables, context.queue, view).places(now))
    buckets = max([view.buckets, *(place.bucket + 1 for place in places)])
    # A writer's slice and its enqueued time come from two looks at its clock, and its clock may be ahead.
    return sorted(
        {place.slice_start for place in places if place.slice_start <= latest + view.largest_window}
    ), buckets


def _old_places(
    context: StepContext, looking: Looking, slices: Sequence[datetime]
) -> list[OldPlace]:
    if not slices:
        return []
    context.folder.artifacts.folder(looking.folder)
    return old_places(context.spark(), looking, slices)


def _youngest(places: Sequence[OldPlace]) -> datetime | None:
    """When the latest of the old mails was enqueued; None without any."""
    return max((instant(place.youngest_ms) for place in places if place.old), default=None)


def _forget_earlier_try(context: StepContext) -> None:
    """A plan step that is tried again starts from nothing."""
    for file in context.folder.artifacts.files(context.folder.name):
        name = file.removeprefix(context.folder.name + "/")
        if name.startswith((f"{PARTS}/", f"{CANDIDATES}/")) or name in {
            "plan.json",
            "check.json",
            "applied.json",
            "verify.json",
        }:
            context.folder.artifacts.remove(file)


def _forget_other_files(context: StepContext, named: set[str]) -> None:
    """The candidates, and what a task that was tried again has left of its first try: only what the outcomes name is the plan."""
    for file in context.folder.artifacts.files(context.folder.file(PARTS)):
        if file.rpartition("/")[2] not in named:
            context.folder.artifacts.remove(file)
    for file in context.folder.artifacts.files(context.folder.file(CANDIDATES)):
        context.folder.artifacts.remove(file)


def _told(params: Params, gathered: Gathered) -> dict[str, object]:
    """What became of the census."""
    if gathered.census is not None:
        return {"taken": True, **gathered.census}
    if not params.census:
        return {"taken": False, "why": "it was not asked for"}
    if params.dry_run:
        return {"taken": False, "why": "a dry run takes none"}
    return {"taken": False, "needless": True, "why": "no mail is old enough"}


def _broker(counts: Counts) -> dict[str, object]:
    return {
        "ready": counts.ready,
        "unacknowledged": counts.unacknowledged,
        "consumers": counts.consumers,
        "delayed": counts.delayed,
        "deadLetters": counts.dead_letters,
        "head": iso(counts.head),
    }


def _message(verdicts: dict[str, int], age: timedelta, mails: int, params: Params) -> str:
    """The verdicts in words."""
    if not mails:
        return f"no live mail is older than {format_duration(age)}"
    told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if count)
    hint = (
        "; a census (--census) would tell the unknown ones apart"
        if verdicts["unknown"] and not params.census
        else ""
    )
    return f"{mails} live mails are older than {format_duration(age)}: {told}{hint}"
