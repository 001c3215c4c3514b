"""Step 4: the invariants over what is now in the stores, for what this run wrote. James writes beside us, by its own lights: that is not judged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from mailslice.duties.queue_cleanup import decide
from mailslice.duties.queue_cleanup.deleting import OUT_OF_TIME
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan, PlannedPlace, read_plan
from mailslice.duties.queue_cleanup.view import by_slice, oldest_row, slices_to_read, starts_of
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.model.mail import EnqueueId, Place
from mailslice.model.slices import is_live
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate
from mailslice.spark.compare import Comparison, PlaceKey, PlaceNow, compare
from mailslice.spark.slices import SURVIVORS_A_PLACE, PlaceFound, Scan, millis, scan

BULKY = ("closedSlices",)
_MOST_SURVIVOR_SLICES = 200


def run(context: StepContext) -> dict[str, Any]:
    """What is there now, and whether the invariants hold. Raises GateFailed."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    applied = context.need("apply")
    starts = starts_of(context.stores, context.queue)
    browse = starts.browse.value if starts.browse else None
    content = starts.content.value if starts.content else None
    found = _scan_now(context, plan, browse, content) if browse is not None else []
    slices = by_slice(found)
    seen = (
        decide.counts(slices, browse, plan.shape.window)
        if browse is not None
        else decide.Counts(0, 0, 0)
    )
    after = {
        "browseStart": iso(browse),
        "contentStart": iso(content),
        "live": seen.live,
        "dead": seen.dead,
    }
    frame = Frame("after", [_row(context, plan, applied, found, browse)], _expectations(applied))
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    context.folder.write_json("after.json", {"after": after, "unproven": seen.unproven})
    result = run_gate("verify", [frame], docs)
    return {
        "success": True,
        "after": after,
        "unproven": seen.unproven,
        "expectations": result.lines(),
        "dataDocs": result.link,
        "closedSlices": _closed_slices(context, plan, found) if not plan.ranged else [],
    }


def _scan_now(
    context: StepContext, plan: Plan, browse: datetime, content: datetime | None
) -> list[PlaceFound]:
    first = min(content or oldest_row(context.stores, context.queue) or browse, browse)
    slices, buckets = slices_to_read(
        context.stores,
        context.queue,
        plan.shape,
        first,
        context.clock() + plan.shape.largest_window,
    )
    if plan.ranged:
        params = context.params(Params)
        slices = [start for start in slices if params.covers(start)]
    spark = context.spark()
    what = Scan(context.settings, context.queue, plan.tables, buckets)
    return scan(spark, what, [(millis(start), False) for start in slices])


def _row(
    context: StepContext,
    plan: Plan,
    applied: dict[str, Any],
    found: Sequence[PlaceFound],
    browse_now: datetime | None,
) -> dict[str, Any]:
    """One row: what is expected of this run's writes."""
    positions = applied["positions"]
    browse, content = (
        datetime.fromisoformat(positions[name]) if positions[name] else None
        for name in ("browseStart", "contentStart")
    )
    moved = applied.get("moved", {})
    wrote_browse = (
        bool(moved.get("browseStart")) and browse is not None and browse == plan.new_browse_start
    )
    wrote_content = bool(moved.get("contentStart")) and content is not None
    still = _still_there(context, plan, applied)
    unmarked = _unmarked(context, still)
    passed = sum(
        each["unmarked"]
        for each in context.need("plan")["slices"]
        if wrote_browse and plan.browse_start is not None and browse is not None
        if is_live(
            start := datetime.fromisoformat(each["start"]), plan.browse_start, plan.shape.window
        )
        and start < browse
    )
    return {
        "planned_rows_left": sum(now.matched for _, now in still),
        "planned_rows_left_without_mark": unmarked,
        "live_rows_passed": passed,
        "browse_start_lowered": int(
            wrote_browse
            and plan.browse_start is not None
            and browse is not None
            and browse < plan.browse_start
        ),
        "browse_start_unaligned": int(
            wrote_browse and browse is not None and not decide.aligned(browse, plan.shape.window)
        ),
        "content_start_past_browse_start": int(
            wrote_content and browse is not None and content is not None and content > browse
        ),
        "content_start_unaligned": int(
            wrote_content and content is not None and not decide.aligned(content, plan.shape.window)
        ),
        "accounted": applied["applied"]
        + applied["skipped"]
        + applied["failed"]
        - applied["planned"],
        "survivors_lost": _survivors_lost(context, plan, found, browse_now),
    }


def _expectations(applied: dict[str, Any]) -> list[Expectation]:
    left = applied["failed"] + applied["skippedBy"].get(OUT_OF_TIME, 0)
    return [
        Expectation.between(
            "planned_rows_left",
            0,
            left,
            "No planned row is left but those that failed, or that the time limit left to the next run.",
        ),
        Expectation.equal(
            "planned_rows_left_without_mark",
            0,
            "No row that was planned dead has lost its deleted mark while it is there.",
        ),
        Expectation.equal(
            "live_rows_passed",
            0,
            "browseStart passed no mail that was live when the plan was made.",
        ),
        Expectation.equal("browse_start_lowered", 0, "browseStart did not move back."),
        Expectation.equal(
            "browse_start_unaligned", 0, "browseStart is a multiple of the slice window."
        ),
        Expectation.equal(
            "content_start_past_browse_start", 0, "contentStart is not after browseStart."
        ),
        Expectation.equal(
            "content_start_unaligned", 0, "contentStart is a multiple of the slice window."
        ),
        Expectation.equal(
            "accounted", 0, "Every planned row is either applied, skipped or failed."
        ),
        Expectation.equal(
            "survivors_lost",
            0,
            "Every mail that was live when the plan was made is there, or was done since.",
        ),
    ]


def _still_there(
    context: StepContext, plan: Plan, applied: dict[str, Any]
) -> list[tuple[PlannedPlace, PlaceNow]]:
    """Planned places, without the skipped slices, in which planned rows are left."""
    skipped = set(applied.get("skippedSlices", {}))
    places = {
        (place.table.value, millis(place.place.slice_start), place.place.bucket): place
        for place in plan.places
        if iso(place.place.slice_start) not in skipped
    }
    found = _compare(
        context, [PlaceKey(*key, place.part) for key, place in places.items()], marks=False
    )
    return [(places[now.table, now.slice_ms, now.bucket], now) for now in found if now.matched]


def _unmarked(context: StepContext, still: Sequence[tuple[PlannedPlace, PlaceNow]]) -> int:
    keys = [PlaceKey(now.table, now.slice_ms, now.bucket, place.part) for place, now in still]
    return sum(now.unmarked_planned for now in _compare(context, keys, marks=True))


def _compare(context: StepContext, keys: list[PlaceKey], *, marks: bool) -> list[PlaceNow]:
    if not keys:
        return []
    spark = context.spark()
    what = Comparison(
        context.settings,
        context.queue,
        context.folder.artifacts,
        context.folder.file(PARTS),
        marks=marks,
    )
    return compare(spark, what, keys)


def _survivors_lost(
    context: StepContext, plan: Plan, found: Sequence[PlaceFound], browse: datetime | None
) -> int:
    """Live rows of the plan, a sample a slice, that have neither row nor mark now. Behind today's browseStart James may have cleaned them."""
    if browse is None:
        return 0
    window = plan.shape.window
    surviving = (
        (each, datetime.fromisoformat(each["start"]))
        for each in context.need("plan")["slices"]
        if each["survivors"]
    )
    slices = [(each, start) for each, start in surviving if is_live(start, browse, window)]
    buckets = max((each.bucket + 1 for each in found), default=1)
    lost = 0
    for each, start in slices[:_MOST_SURVIVOR_SLICES]:
        places = [Place(start, bucket) for bucket in range(buckets)]
        there = {
            one
            for rows in context.stores.tables.existing
            for _, page in rows.bare_ids_of(context.queue, places)
            for one in page
        }
        gone = [EnqueueId(UUID(one)) for one in each["survivors"] if UUID(one) not in there]
        if gone:
            marked = context.stores.tables.deleted.marked(context.queue, gone)
            moved_on = starts_of(context.stores, context.queue).browse
            if moved_on is not None and is_live(start, moved_on.value, window):
                lost += len(set(gone) - marked)
    return lost


def _closed_slices(
    context: StepContext, plan: Plan, found: Sequence[PlaceFound]
) -> list[dict[str, object]]:
    """Closed slices that still have rows: what size and browse may know without reading dead rows. A hint, never a proof: a late insert may come."""
    now = context.clock()
    survivors: dict[datetime, list[str]] = {}
    for place in found:
        survivors.setdefault(place.slice_start, []).extend(place.survivors)
    return [
        {
            "start": iso(each.start),
            "live": each.unmarked,
            "dead": each.dead,
            "survivors": survivors[each.start][:SURVIVORS_A_PLACE],
        }
        for each in by_slice(found)
        if each.rows and decide.closed(each.start, plan.shape, now=now, grace=plan.grace)
    ]
