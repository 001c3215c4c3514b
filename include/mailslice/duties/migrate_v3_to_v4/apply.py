"""Step 3: copy what the plan lists, and nothing else, in batches: each row proved live once more. May be killed anywhere and run again.

No cleanup of ours works meanwhile: between our second read of a mail and our write it could be done, its row and mark cleaned away, and come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mailslice.duties.migrate_v3_to_v4.copying import Copying, PlaceCopied, copy_places
from mailslice.duties.migrate_v3_to_v4.plan_file import PARTS, Plan, PlannedPlace, read_plan
from mailslice.duties.migrate_v3_to_v4.reading import Source
from mailslice.duties.migrate_v3_to_v4.view import first_slice, has_v4
from mailslice.duty.clocks import require_clock
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import require_gate
from mailslice.model import crash
from mailslice.model.errors import PlanRefused
from mailslice.queue.configuration import view_shape
from mailslice.spark.frames import slots_of
from mailslice.spark.marks import Dropping, digest_of_parts

FILE = "progress.json"
CLEANUP_LOCK = "queue_cleanup"
_ROWS_A_BATCH, _PLACES_A_BATCH = 100_000, 2000
_REASONS = {
    "marked": "deleted since the plan",
    "gone": "left V3 since the plan",
    "behind": "behind browseStart since the plan",
}


def run(context: StepContext) -> dict[str, Any]:
    """Apply the plan of this run. Raises PlanRefused when plan or files were changed, or the gate was not passed; LockHeld while a cleanup works."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    require_gate(context, plan)
    require_clock(context)
    if not plan.places:
        return _summary(plan, [], left=0)
    locks, run = context.stores.own.locks, context.request.run
    with (
        locked(locks, f"migrate_v3_to_v4/{context.queue}", run) as own,
        locked(locks, f"{CLEANUP_LOCK}/{context.queue}", run) as cleanup,
    ):
        crash.point("apply:locked")
        return _apply(context, plan, (own, cleanup))


def _apply(context: StepContext, plan: Plan, locks: Sequence[Lock]) -> dict[str, Any]:
    if not has_v4(context.stores):
        context.stores.tables.create()  # as the first start of a worker would
    source = Source(
        context.settings, context.queue, context.folder.artifacts, context.folder.file(PARTS)
    )
    _require_same_rows(context, plan, source)
    window = view_shape(context.stores, checked=True).window
    throttle, spark = context.throttle("cassandra"), context.spark()
    what = Copying(
        source,
        first_slice(context.queue, window),
        None if throttle.free else throttle.share(slots_of(spark)).take,
    )
    done: list[PlaceCopied] = []
    left = plan.planned
    for batch in _batches(plan.places):
        if context.out_of_time():
            break
        for lock in locks:
            lock.check()
        done += copy_places(
            spark, what, [(place.slice_ms, place.bucket, place.part) for place in batch]
        )
        left -= sum(place.rows for place in batch)
        context.folder.write_json(FILE, _summary(plan, done, left))
        crash.point("apply:after-batch")
    return _summary(plan, done, left)


def _require_same_rows(context: StepContext, plan: Plan, source: Source) -> None:
    what = Dropping(context.settings, context.queue, source.place, source.folder)
    digest = digest_of_parts(context.spark(), what, [place.part for place in plan.places])
    if digest != plan.rows:
        raise PlanRefused(
            f"the files of the plan were changed: their rows have the digest {digest}, plan.json says {plan.rows}; plan again"
        )


def _batches(places: Sequence[PlannedPlace]) -> Iterator[list[PlannedPlace]]:
    """The oldest first; each not too large to be left by the clock after it."""
    batch: list[PlannedPlace] = []
    rows = 0
    for place in places:
        batch.append(place)
        rows += place.rows
        if rows >= _ROWS_A_BATCH or len(batch) >= _PLACES_A_BATCH:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _summary(plan: Plan, done: Sequence[PlaceCopied], left: int) -> dict[str, Any]:
    skipped = {
        why: count
        for name, why in _REASONS.items()
        if (count := sum(getattr(place, name) for place in done))
    }
    return {
        "planDigest": plan.digest,
        "planned": plan.planned,
        "applied": sum(place.copied for place in done),
        "failed": sum(place.failed for place in done),
        "skippedBy": skipped,
        "left": left,
    }
