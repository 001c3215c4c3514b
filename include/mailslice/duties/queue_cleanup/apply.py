"""Step 3: do what the plan lists, and nothing else: each slice proved again, starts first, rows next, marks with a proof, contentStart last.

Every stage may be the last one: rows that a killed run left are found by the next plan, marks by the next sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from mailslice.duties.queue_cleanup import candidates
from mailslice.duties.queue_cleanup.deleting import OUT_OF_TIME, delete_places
from mailslice.duties.queue_cleanup.marks import MarksOutcome, drop_proved_marks
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan, PlannedPlace, read_plan
from mailslice.duties.queue_cleanup.remaining import FILE, Remaining, read_remaining
from mailslice.duties.queue_cleanup.starts import Moved, move_browse_start, move_content_start
from mailslice.duties.queue_cleanup.strays import set_aside
from mailslice.duties.queue_cleanup.view import shape_of, slices_to_read, starts_of, tables_of
from mailslice.duty.artifacts import iso
from mailslice.duty.clocks import require_clock
from mailslice.duty.context import StepContext
from mailslice.duty.emptiness import sample_once
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import require_gate
from mailslice.duty.throttle import Throttle
from mailslice.model import crash
from mailslice.model.errors import PlanRefused
from mailslice.model.slices import is_live, slice_start
from mailslice.spark.compare import Comparison, PlaceKey, PlaceNow, compare
from mailslice.spark.failures import unreadable
from mailslice.spark.plan_files import NO_PART, Digest
from mailslice.spark.slices import instant, millis

CHANGED, LIVE_AGAIN, GONE = "changed since plan", "live again", "gone since plan"
PROGRESS = "progress.json"


@dataclass
class _Progress:
    """What was done so far; kept in the run's folder after each stage, for the report of a run that ends early."""

    context: StepContext
    plan: Plan
    values: dict[str, Any] = field(default_factory=dict)

    def keep(self, **more: Any) -> None:
        self.values |= more
        self.context.folder.write_json(PROGRESS, self.values)


def run(context: StepContext) -> dict[str, Any]:
    """Apply the plan of this run. Raises PlanRefused when plan or files were changed, the gate was not passed, or the view's shape is another."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    require_gate(context, plan)
    require_clock(context, plan.grace)
    with locked(
        context.stores.own.locks, f"queue_cleanup/{context.queue}", context.request.run
    ) as lock:
        crash.point("apply:locked")
        if plan.browse_start is None:
            return _nothing(context, plan)
        return _apply(context, plan, lock)


def _apply(context: StepContext, plan: Plan, lock: Lock) -> dict[str, Any]:
    stores, queue = context.stores, context.queue
    _require_same_shape(context, plan)
    earlier = context.folder.read_json(PROGRESS) or {}
    progress = _Progress(context, plan)
    first = _seen_empty(context, plan)
    low = _lowest_browse_start(context, plan)
    now = _second_read(context, plan, low)
    _require_same_rows(plan, now)
    skipped = _skipped(plan, now)
    crash.point("apply:after-second-read")

    lock.check()
    wanted = _browse_start(context, plan, now, low)
    progress.keep(writes=iso(wanted))
    browse = move_browse_start(stores, queue, wanted, context.clock)
    if browse.wrote is None and earlier.get("writes"):  # by a try of this run that was killed
        browse = replace(browse, wrote=datetime.fromisoformat(earlier["writes"]))
    crash.point("apply:after-browse-start")

    aside = set_aside(context, plan.strays, plan.shape.window, lock)
    crash.point("apply:after-aside")

    places = [place for place in plan.places if place.place.slice_start not in skipped]
    # A try of this run that had begun to delete: what is gone may be its own work.
    theirs = {} if "planned" in earlier else _rows_that_others_deleted(places, now)
    skips = plan.planned - sum(place.rows for place in places) + sum(theirs.values())
    progress.keep(planned=plan.planned, aside=aside, skipped=skips, browseStart=iso(browse.after))

    throttle = _throttle(context)
    deletes = delete_places(context, places, lock, throttle)
    places, left = places[: deletes.tried], places[deletes.tried :]
    crash.point("apply:after-deletes")

    remaining = read_remaining(context, plan)
    context.folder.write_json(FILE, remaining.as_json())
    gone = sum(theirs.get(place, 0) for place in places)
    applied = sum(place.rows - remaining.planned_rows(place) for place in places) - gone
    tried = sum(place.rows for place in places) - gone
    progress.keep(applied=applied, failed=tried - applied)
    crash.point("apply:after-read-back")

    lock.check()
    marks = drop_proved_marks(context, plan, remaining, first, throttle)
    progress.keep(marks=marks.as_json())
    crash.point("apply:after-marks")
    if context.params(Params).sweep:
        lock.check()
        marks.listed = candidates.record(context, remaining.ids()).marks
        progress.keep(marks=marks.as_json())

    lock.check()
    content = _content_start(context, plan, remaining)
    crash.point("apply:after-content-start")
    outcome = _Outcome(
        tried,
        applied,
        skipped,
        gone,
        sum(place.rows for place in left),
        deletes.failures,
        marks,
        browse,
        content,
        remaining.rows,
    )
    return {**_summary(plan, outcome), "aside": aside}


def _seen_empty(context: StepContext, plan: Plan) -> datetime | None:
    """When the queue was seen empty just now, for marks that need it; the second look comes when they are to go."""
    if not context.settings.queue.shared or not (plan.planned or plan.candidates):
        return None
    return sample_once(context.stores, context.queue, context.clock)


def _rows_that_others_deleted(
    places: Iterable[PlannedPlace], now: Iterable[PlaceNow]
) -> dict[PlannedPlace, int]:
    """Planned rows that were gone at the second read, by place: another run was faster, or James."""
    there = {(place.table, place.slice_ms, place.bucket): place.matched for place in now}
    gone = {
        place: place.rows
        - there[place.table.value, millis(place.place.slice_start), place.place.bucket]
        for place in places
    }
    return {place: rows for place, rows in gone.items() if rows}


def _throttle(context: StepContext) -> Throttle:
    """What settings and param allow, the lower of both."""
    general, asked = context.throttle("cassandra"), context.params(Params).rate
    return (
        replace(general, per_second=min(asked, general.per_second or asked)) if asked else general
    )


def _require_same_shape(context: StepContext, plan: Plan) -> None:
    shape, tables = shape_of(context.stores, context.settings), tables_of(context.stores)
    if (shape, tables) != (replace(plan.shape, open_for=plan.shape.largest_window), plan.tables):
        raise PlanRefused(
            f"the configuration of the queue view changed since the plan was made: it was {plan.shape} in {plan.tables}, it is {shape} in {tables}; plan again"
        )


def _lowest_browse_start(context: StepContext, plan: Plan) -> datetime | None:
    """The lower of the planned and the stored browseStart: should James have lowered it, the rows from there on are live again."""
    stored = starts_of(context.stores, context.queue).browse
    return (
        min(plan.browse_start, stored.value)
        if stored is not None and plan.browse_start is not None
        else None
    )


def _second_read(context: StepContext, plan: Plan, low: datetime | None) -> list[PlaceNow]:
    """The second quorum read: every place of every planned slice, and of all slices that browseStart would pass."""
    parts = {
        (place.table.value, millis(place.place.slice_start), place.place.bucket): place.part
        for place in plan.places
    }
    slices = {place.place.slice_start for place in plan.places}
    if plan.new_browse_start is not None and low is not None:
        passed, _ = slices_to_read(
            context.stores,
            context.queue,
            plan.shape,
            low,
            plan.new_browse_start - plan.shape.window,
        )
        slices |= {start for start in passed if start < plan.new_browse_start}
    buckets = max([plan.shape.buckets, *(place.place.bucket + 1 for place in plan.places)])
    wanted = [
        (table.value, millis(start), bucket)
        for start in sorted(slices)
        for bucket in range(buckets)
        for table in plan.tables
    ]
    keys = [PlaceKey(*key, parts.pop(key, NO_PART)) for key in wanted]
    if parts:
        raise PlanRefused(
            f"the plan names {len(parts)} places outside the view's tables and buckets, such as {next(iter(parts))}; plan again"
        )
    if not keys:
        return []
    spark = context.spark()
    what = Comparison(
        context.settings,
        context.queue,
        context.folder.artifacts,
        context.folder.file(PARTS),
    )
    try:
        found = compare(spark, what, keys)
    except Exception as error:
        if problem := unreadable(error):
            raise PlanRefused(
                f"the files of the plan below {context.folder.uri}/{PARTS} were changed or removed ({problem}): plan again"
            ) from error
        raise
    if len(found) != len(keys):
        raise PlanRefused(
            f"the second read gave {len(found)} of {len(keys)} places: nothing is known of the others; plan again"
        )
    return found


def _require_same_rows(plan: Plan, now: Sequence[PlaceNow]) -> None:
    digest = sum((place.digest for place in now), Digest())
    if digest != plan.rows:
        raise PlanRefused(
            f"the files of the plan were changed: their rows have the digest {digest}, plan.json says {plan.rows}; plan again"
        )


def _skipped(plan: Plan, now: Iterable[PlaceNow]) -> dict[datetime, str]:
    """Planned slices that are left alone, whole, and why: rows that the plan does not know, or a planned row whose mark is gone."""
    planned = {millis(place.place.slice_start) for place in plan.places}
    skipped: dict[datetime, str] = {}
    for place in now:
        if place.slice_ms in planned:
            if place.unmarked_planned:
                skipped[instant(place.slice_ms)] = LIVE_AGAIN
            elif place.foreign:
                skipped.setdefault(instant(place.slice_ms), CHANGED)
    return skipped


def _browse_start(
    context: StepContext, plan: Plan, now: Sequence[PlaceNow], low: datetime | None
) -> datetime | None:
    """The planned browseStart, or up to the oldest live row of the second read. None, it stays: when it was lowered below what that read covers."""
    stored = starts_of(context.stores, context.queue).browse
    if plan.new_browse_start is None or stored is None or low is None or stored.value < low:
        return None
    unmarked = (instant(place.slice_ms) for place in now if place.unmarked)
    oldest = min(
        (start for start in unmarked if is_live(start, stored.value, plan.shape.window)),
        default=None,
    )
    return (
        plan.new_browse_start
        if oldest is None
        else min(plan.new_browse_start, slice_start(oldest, plan.shape.window))
    )


def _content_start(context: StepContext, plan: Plan, remaining: Remaining) -> Moved:
    stored = starts_of(context.stores, context.queue).content
    after = stored.value if stored else None
    if plan.ranged:
        return Moved(after, None, after)
    oldest = remaining.oldest_row(at_or_after=after)
    content = move_content_start(context.stores, context.queue, oldest, plan.shape, context.clock)
    if content.after is not None:
        context.stores.own.slice_statistics.delete_before(context.queue, content.after)
    return content


def _nothing(context: StepContext, plan: Plan) -> dict[str, Any]:
    stored = starts_of(context.stores, context.queue)
    positions = {
        "browseStart": iso(stored.browse.value if stored.browse else None),
        "contentStart": iso(stored.content.value if stored.content else None),
    }
    return {
        "planDigest": plan.digest,
        "planned": 0,
        "applied": 0,
        "skipped": 0,
        "failed": 0,
        "skippedBy": {},
        "skippedSlices": {},
        "positions": positions,
        "marks": MarksOutcome().as_json(),
    }


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a plan."""

    tried: int
    applied: int
    skipped: dict[datetime, str]
    gone: int
    rows_of_next_run: int
    failures: dict[str, str]
    marks: MarksOutcome
    browse: Moved
    content: Moved
    rows_left: int


def _summary(plan: Plan, outcome: _Outcome) -> dict[str, Any]:
    reasons: dict[str, int] = {}
    for place in plan.places:
        if why := outcome.skipped.get(place.place.slice_start):
            reasons[why] = reasons.get(why, 0) + place.rows
    if outcome.gone:
        reasons[GONE] = outcome.gone
    if outcome.rows_of_next_run:
        reasons[OUT_OF_TIME] = outcome.rows_of_next_run
    return {
        "planDigest": plan.digest,
        "planned": plan.planned,
        "applied": outcome.applied,
        "skipped": plan.planned - outcome.tried,
        "failed": outcome.tried - outcome.applied,
        "skippedBy": reasons,
        "failures": outcome.failures,
        "skippedSlices": {str(iso(start)): why for start, why in sorted(outcome.skipped.items())},
        "positions": {
            "browseStart": iso(outcome.browse.after),
            "contentStart": iso(outcome.content.after),
        },
        "moved": {
            "browseStart": outcome.browse.wrote is not None,
            "contentStart": outcome.content.wrote is not None,
        },
        "before": {
            "browseStart": iso(outcome.browse.before),
            "contentStart": iso(outcome.content.before),
        },
        "wrote": {
            "browseStart": iso(outcome.browse.wrote),
            "contentStart": iso(outcome.content.wrote),
        },
        "marks": outcome.marks.as_json(),
        "rowsLeft": outcome.rows_left,
    }
