"""Step 1: read V3, find the live rows that V4 has not, or has older; write their ids down. Changes nothing in the stores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mailslice.duties.migrate_v3_to_v4.plan_file import PARTS, Plan, PlannedPlace
from mailslice.duties.migrate_v3_to_v4.reading import PlaceFound, Source, read_places
from mailslice.duties.migrate_v3_to_v4.view import (
    first_slice,
    has_v3,
    has_v4,
    reachable,
    v3_places,
)
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.model import crash
from mailslice.queue.configuration import view_shape
from mailslice.queue.directory import require
from mailslice.spark.plan_files import Digest
from mailslice.spark.slices import instant, millis

BULKY = ("decided",)
DEAD, THERE, BEHIND, UNDATED, UNREACHABLE = (
    "deleted mark",
    "in V4 already",
    "behind browseStart",
    "no write time",
    "no slice or bucket of the view",
)
_BYTES_A_ROW = 500


def run(context: StepContext) -> dict[str, Any]:
    """The plan, written to plan/ and, by the road, to plan.json. Raises UnknownQueue, Refused when nobody asked for V4 yet."""
    stores, queue = context.stores, context.queue
    require(stores, queue)
    _forget_earlier_try(context)
    if not has_v3(stores):
        return _summary(
            _plan(context, [], context.clock(), [], to_read=0),
            [],
            {},
            "nothing to do: there is no table enqueuedMailsV3",
        )
    v4 = has_v4(stores)
    view = view_shape(stores, checked=True)
    first_of = first_slice(queue, view.window)
    now, first = context.clock(), first_of(stores)
    keys = [
        (
            millis(place.slice_start),
            place.bucket,
            _counts(place.slice_start, first) and reachable(place, view),
        )
        for place in v3_places(stores, queue)
    ]
    found = _read(context, keys, v4=v4)
    crash.point("plan:after-read")
    # Read again after the marks were read: what lies behind this one proves nothing by having no mark.
    first = first_of(stores)
    kept = [each for each in found if each.planned and _counts(instant(each.slice_ms), first)]
    plan = _plan(context, kept, now, found, to_read=len(keys))
    skipped = _skipped(found, first)
    return {
        **_summary(plan, found, skipped, _message(plan, found) + _behind(skipped)),
        "reads": {"wanted": len(keys), "read": len(found)},
    }


def _counts(start: datetime, first: datetime | None) -> bool:
    return first is None or start >= first


def _read(
    context: StepContext, keys: Sequence[tuple[int, int, bool]], *, v4: bool
) -> list[PlaceFound]:
    if not keys:
        return []
    context.folder.artifacts.folder(context.folder.file(PARTS))
    source = Source(
        context.settings, context.queue, context.folder.artifacts, context.folder.file(PARTS), v4
    )
    found = sorted(
        read_places(context.spark(), source, keys), key=lambda each: (each.slice_ms, each.bucket)
    )
    # A task that was tried again has left the file of its first try: only what the summaries name is the plan.
    named = {each.part.file for each in found if each.planned}
    for file in context.folder.artifacts.files(context.folder.file(PARTS)):
        if file.rpartition("/")[2] not in named:
            context.folder.artifacts.remove(file)
    return found


def _forget_earlier_try(context: StepContext) -> None:
    for file in context.folder.artifacts.files(context.folder.name):
        if not file.endswith("/request.json"):
            context.folder.artifacts.remove(file)


def _plan(
    context: StepContext,
    kept: Sequence[PlaceFound],
    now: datetime,
    found: Sequence[PlaceFound],
    *,
    to_read: int,
) -> Plan:
    rows = sum((each.digest for each in kept), Digest())
    places = tuple(
        PlannedPlace(each.slice_ms, each.bucket, each.planned, each.part) for each in kept
    )
    twice = len(found) - len({(each.slice_ms, each.bucket) for each in found})
    return Plan(context.request.run, context.queue, now, rows, places, to_read, len(found), twice)


def _skipped(found: Sequence[PlaceFound], first: datetime | None) -> dict[str, int]:
    """Rows of V3 that are not copied, by reason."""
    behind = [each for each in found if not _counts(instant(each.slice_ms), first)]
    ahead = [each for each in found if _counts(instant(each.slice_ms), first)]
    counted = {
        DEAD: sum(each.dead for each in found),
        THERE: sum(each.there for each in ahead),
        BEHIND: sum(each.live for each in behind),
        UNDATED: sum(each.undated for each in found),
        UNREACHABLE: sum(each.live - each.there - each.planned for each in ahead),
    }
    return {why: count for why, count in counted.items() if count}


def _summary(
    plan: Plan, found: Sequence[PlaceFound], skipped: dict[str, int], message: str
) -> dict[str, Any]:
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": plan.planned,
        "rows": sum(each.rows for each in found),
        "places": len(found),
        "readTwice": plan.read_twice,
        "skippedBy": skipped,
        "bytes": plan.planned * _BYTES_A_ROW,
        "oldest": iso(instant(min(place.slice_ms for place in plan.places)))
        if plan.places
        else None,
        "message": message,
        "reads": {"wanted": 0, "read": 0},
    }


def _behind(skipped: dict[str, int]) -> str:
    """Said aloud: a James that reads V4 alone may have moved browseStart past mails of V3, and a start is never moved back."""
    return (
        f"; {skipped[BEHIND]} rows without a mark lie behind browseStart and are left out"
        if skipped.get(BEHIND)
        else ""
    )


def _message(plan: Plan, found: Sequence[PlaceFound]) -> str:
    if not found:
        return "nothing to do: enqueuedMailsV3 holds no row of this queue"
    if not plan.planned:
        return "nothing to do: every live row of enqueuedMailsV3 is in enqueuedMailsV4"
    return f"{plan.planned} live rows in {len(plan.places)} places to copy, of {sum(each.rows for each in found)} rows in enqueuedMailsV3"
