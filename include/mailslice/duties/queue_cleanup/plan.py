"""Step 1: read the view, find the slices that are dead, decide where browseStart may go; write it all down. Changes nothing in the stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from mailslice.codec import message
from mailslice.duties.queue_cleanup import candidates, decide
from mailslice.duties.queue_cleanup.decide import Shape, SliceFound
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan_file import (
    PARTS,
    WHY,
    Plan,
    PlannedPlace,
    Reads,
    SomeRows,
)
from mailslice.duties.queue_cleanup.repair_risk import unrepaired_tables
from mailslice.duties.queue_cleanup.starts import micros
from mailslice.duties.queue_cleanup.strays import strays_of
from mailslice.duties.queue_cleanup.view import (
    Starts,
    by_slice,
    oldest_row,
    shape_of,
    slices_before,
    slices_to_read,
    starts_of,
    tables_of,
)
from mailslice.duty.artifacts import iso
from mailslice.duty.clocks import require_clock
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.request import STEPS
from mailslice.model import crash
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, Place
from mailslice.model.names import QueueTable
from mailslice.model.slices import is_live
from mailslice.queue.directory import require
from mailslice.spark.plan_files import Digest
from mailslice.spark.slices import PlaceFound, Scan, millis, scan

BULKY = ("decided", "slices")
_SAMPLED_PLACES, _SAMPLED_ROWS = 5, 20
_LIVE_PLACES, _LIVE_IDS = 200, 20
"""Of so many places with live rows a plan names so many ids: verify looks for them."""
_WRITTEN = {*(FILES[step] for step in STEPS[:4]), "progress.json", "left.json", "after.json"}


def run(context: StepContext) -> dict[str, Any]:
    """The plan, written to plan/ and, by the road, to plan.json."""
    params = context.params(Params)
    grace = params.grace_or(context.settings.duty.grace)
    stores, queue = context.stores, context.queue
    require(stores, queue)
    skew = require_clock(context, grace)
    _forget_earlier_try(context)
    shape, tables = shape_of(stores, context.settings), tables_of(stores)
    starts = starts_of(stores, queue)
    now = context.clock()
    if params.restarted is not None and params.restarted > now:
        raise BadInput(
            f"restarted={iso(params.restarted)} lies ahead; allowed: the time at which the last node of James or worker of mailslice was restarted"
        )
    shape = shape.once_restarted(params.restarted, now=now, grace=grace)
    keys, buckets = (
        _keys(context, params, shape, starts, now)
        if starts.browse is not None
        else ([], shape.buckets)
    )
    swept, buckets = _swept(context, keys, buckets) if params.sweep and keys else ([], buckets)
    keys = [*swept, *keys]
    what = Scan(
        context.settings,
        queue,
        tables,
        buckets,
        context.folder.artifacts,
        context.folder.file(PARTS),
        WHY,
        micros(now),
    )
    asked = [(millis(start), decide.closed(start, shape, now=now, grace=grace)) for start in keys]
    found = _scan(context, what, asked)
    crash.point("plan:after-scan")
    marks_read = context.clock()
    # Read again after the marks were read: what lies behind this one proves nothing by having no mark.
    browse = starts_of(stores, queue).browse
    slices = by_slice(found)
    plan = _decide(
        context,
        params,
        _Seen(
            shape,
            tables,
            starts,
            found,
            slices,
            browse.value if browse else None,
            now,
            marks_read,
            len(keys) * buckets * len(tables),
        ),
    )
    strays = strays_of(found, swept)
    if params.sweep and browse is not None:
        plan = replace(
            plan,
            swept=tuple(swept),
            strays=strays if params.aside else (),
        )
    seen = decide.counts(slices, browse.value, shape.window) if browse else decide.Counts(0, 0, 0)
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": plan.planned,
        "live": seen.live,
        "dead": seen.dead,
        "unproven": seen.unproven,
        "undated": sum(each.undated for each in slices),
        "before": {
            "browseStart": iso(plan.browse_start),
            "contentStart": iso(plan.content_start),
            "live": seen.live,
            "dead": seen.dead,
        },
        "newBrowseStart": iso(plan.new_browse_start),
        "clockSkewSeconds": round(skew.total_seconds(), 3),
        "message": "; ".join(
            [
                _message(plan, seen, params, starts),
                *([_offer(len(strays))] if strays and not params.aside else []),
            ]
        ),
        "reads": {
            "slices": len(keys),
            "buckets": buckets,
            "tables": len(tables),
            "wanted": plan.reads.wanted,
            "read": plan.reads.read,
        },
        "readTwice": plan.reads.twice,
        "bytes": round(plan.planned * _bytes_a_row(context, plan)),
        "unrepaired": unrepaired_tables(context, plan),
        "strays": [each.shown() for each in strays],
        "slices": _shown(slices, found),
    }


def _keys(
    context: StepContext, params: Params, shape: Shape, starts: Starts, now: datetime
) -> tuple[list[datetime], int]:
    """The slices to read: from contentStart (James 3.5 and a crash leave none: from the oldest row) to the one after now's, for clocks that are ahead."""
    browse = starts.browse.value if starts.browse else now
    content = (
        starts.content.value
        if starts.content
        else (oldest_row(context.stores, context.queue) or browse)
    )
    first, last = min(content, browse), now + shape.largest_window
    if params.slices_from is not None:
        first = max(first, params.slices_from)
    if params.slices_before is not None:
        last = min(last, params.slices_before)
    if first > last:
        return [], shape.buckets
    keys, buckets = slices_to_read(context.stores, context.queue, shape, first, last)
    return [start for start in keys if params.covers(start)], buckets


def _swept(
    context: StepContext, keys: Sequence[datetime], buckets: int
) -> tuple[list[datetime], int]:
    before, needed = slices_before(context.stores, context.queue, keys[0])
    return before, max(buckets, needed)


def _scan(context: StepContext, what: Scan, asked: Sequence[tuple[int, bool]]) -> list[PlaceFound]:
    if not asked:
        return []
    context.folder.artifacts.folder(context.folder.file(PARTS))
    spark = context.spark()
    found = scan(spark, what, asked)
    # A task that was tried again has left the file of its first try: only what the summaries name is the plan.
    named = {each.part.file for each in found if each.planned}
    for file in context.folder.artifacts.files(context.folder.file(PARTS)):
        if file.rpartition("/")[2] not in named:
            context.folder.artifacts.remove(file)
    return found


def _forget_earlier_try(context: StepContext) -> None:
    """A plan step that is tried again starts from nothing."""
    for file in context.folder.artifacts.files(context.folder.name):
        name = file.removeprefix(context.folder.name + "/")
        if name.startswith(PARTS + "/") or name in _WRITTEN:
            context.folder.artifacts.remove(file)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the plan is decided by. `browse` is browseStart as it was read after the marks."""

    shape: Shape
    tables: tuple[QueueTable, ...]
    starts: Starts
    found: Sequence[PlaceFound]
    slices: Sequence[SliceFound]
    browse: datetime | None
    now: datetime
    marks_read: datetime
    wanted: int


def _decide(context: StepContext, params: Params, seen: _Seen) -> Plan:
    grace = params.grace_or(context.settings.duty.grace)
    browse = seen.browse
    oldest = (
        decide.oldest_live(seen.slices, browse, seen.shape.window) if browse is not None else None
    )
    moves = browse is not None and not params.ranged
    planned = (PlannedPlace.of(each) for each in seen.found if each.planned)
    return Plan(
        run=context.request.run,
        queue=context.queue,
        made_at=seen.now,
        marks_read=seen.marks_read,
        grace=grace,
        shape=seen.shape,
        tables=seen.tables,
        ranged=params.ranged,
        browse_start=browse,
        content_start=seen.starts.content.value if seen.starts.content else None,
        new_browse_start=decide.new_browse_start(
            browse, oldest, seen.shape, now=seen.now, grace=grace
        )
        if moves and browse is not None
        else None,
        oldest_live=oldest,
        candidates=None if params.ranged else candidates.recorded(context),
        reads=Reads(
            seen.wanted,
            len(seen.found),
            len(seen.found)
            - len({(each.table, each.slice_ms, each.bucket) for each in seen.found}),
        ),
        live=_live(seen),
        rows=sum((each.digest for each in seen.found), Digest()),
        places=tuple(
            sorted(
                planned,
                key=lambda each: (each.place.slice_start, each.table.value, each.place.bucket),
            )
        ),
    )


def _live(seen: _Seen) -> tuple[SomeRows, ...]:
    """The places with live rows, oldest first."""
    if seen.browse is None:
        return ()
    places = [
        each
        for each in sorted(seen.found, key=lambda each: (each.slice_ms, each.table, each.bucket))
        if each.unmarked and is_live(each.slice_start, seen.browse, seen.shape.window)
    ]
    return tuple(
        SomeRows(
            QueueTable(each.table),
            Place(each.slice_start, each.bucket),
            tuple(
                EnqueueId(UUID(one))
                for one in (each.survivors[:_LIVE_IDS] if number < _LIVE_PLACES else ())
            ),
        )
        for number, each in enumerate(places)
    )


def _message(plan: Plan, seen: decide.Counts, params: Params, starts: Starts) -> str:
    """What the plan comes to, in words."""
    if starts.browse is None:
        return "nothing to do: the queue has no browseStart, so no mail was ever put into it"
    words = [
        f"{plan.planned} dead rows in {len({each.place.slice_start for each in plan.places})} slices can go"
        if plan.planned
        else "no dead row can go"
    ]
    if params.ranged:
        words.append("the starts stay, as the run is held to a range of slices")
    elif plan.new_browse_start is not None:
        words.append(f"browseStart can go to {iso(plan.new_browse_start)}")
    elif plan.oldest_live is not None:
        words.append(
            f"browseStart stays at {iso(plan.browse_start)} for the live row in slice {iso(plan.oldest_live)}"
        )
    if seen.unproven:
        words.append(
            f"{seen.unproven} rows without a mark lie behind browseStart: they are kept, and nothing is said of them"
        )
    if plan.browse_start is not None and not decide.aligned(plan.browse_start, plan.shape.window):
        words.append(
            f"browseStart {iso(plan.browse_start)} is no multiple of the window: James finds no slice from it"
        )
    return "; ".join(words)


def _offer(count: int) -> str:
    return f"{count} rows without a mark lie before contentStart: `--sweep --aside` sets them aside, from where `mailslice stuck release` puts them back"


def _bytes_a_row(context: StepContext, plan: Plan) -> float:
    """About how many bytes a planned row holds: the mean of a few, as James' message has them. 0 when none could be read."""
    sizes = []
    for each in plan.places[:: max(1, len(plan.places) // _SAMPLED_PLACES)][:_SAMPLED_PLACES]:
        table = (
            context.stores.tables.v3 if each.table is QueueTable.V3 else context.stores.tables.v4
        )
        sizes += [
            len(message.encode(row.item))
            for row in islice(table.rows(context.queue, each.place), _SAMPLED_ROWS)
        ]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _shown(slices: Sequence[SliceFound], found: Sequence[PlaceFound]) -> list[dict[str, object]]:
    """The slices that have rows, for people, gates and statistics."""
    survivors: dict[datetime, list[str]] = {}
    for place in found:
        if place.survivors:
            survivors.setdefault(place.slice_start, []).extend(place.survivors)
    return [
        {
            "start": iso(each.start),
            "rows": each.rows,
            "dead": each.dead,
            "unmarked": each.unmarked,
            "undated": each.undated,
            "planned": each.planned,
            "survivors": survivors.get(each.start, [])[:100],
        }
        for each in slices
        if each.rows
    ]
