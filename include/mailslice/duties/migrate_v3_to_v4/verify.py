"""Step 4: hold every live row of V3 against V4. Counts and hashes of each slice are for the report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from mailslice.duties.migrate_v3_to_v4.comparing import PlaceCompared, compare_places
from mailslice.duties.migrate_v3_to_v4.plan_file import PARTS, Plan, read_plan
from mailslice.duties.migrate_v3_to_v4.reading import Source
from mailslice.duties.migrate_v3_to_v4.view import (
    first_slice,
    has_v3,
    reachable,
    v3_places,
)
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.model.names import QueueTable
from mailslice.quality.gate import Expectation, Frame
from mailslice.queue.configuration import view_shape
from mailslice.spark.plan_files import Digest
from mailslice.spark.slices import instant, millis
from mailslice.stores.cassandra.ddl import tables_of

BULKY = ("slices",)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run(context: StepContext) -> dict[str, Any]:
    """What is in both tables now. Raises GateFailed."""
    plan, applied = (
        read_plan(context.need("plan"), context.request.run, context.queue),
        context.need("apply"),
    )
    found = _compare(context, plan)
    slices = _slices(found)
    return {
        **judged(context, "verify", [totals(applied, found)]),
        "verified": sum(each.same for each in found),
        "newer": sum(each.newer for each in found),
        "missing": sum(each.missing for each in found),
        "slices": slices,
    }


def _compare(context: StepContext, plan: Plan) -> list[PlaceCompared]:
    """Every place of V3 that a browse comes to."""
    stores, queue = context.stores, context.queue
    there = tables_of(stores.cassandra, stores.settings.cassandra.keyspace)
    if not has_v3(stores) or QueueTable.V4.cql not in there:
        return []
    view = view_shape(stores, checked=True)
    first = first_slice(queue, view.window)(stores)
    places = [
        place
        for place in v3_places(stores, queue)
        if reachable(place, view) and (first is None or place.slice_start >= first)
    ]
    if not places:
        return []
    source = Source(context.settings, queue, context.folder.artifacts, context.folder.file(PARTS))
    made_us = (plan.made_at - _EPOCH) // timedelta(microseconds=1)
    return compare_places(
        context.spark(),
        source,
        [(millis(place.slice_start), place.bucket) for place in places],
        made_us,
    )


def totals(applied: dict[str, Any], found: Sequence[PlaceCompared]) -> Frame:
    """One row: the queue as a whole."""
    excused = applied["failed"] + applied["left"]
    row = {
        "missing": sum(each.missing for each in found),
        "differing": sum(each.differing for each in found),
    }
    expect = [
        Expectation.between(
            "missing",
            0,
            excused,
            "Every live row of V3 is in V4, but those that are reported as failed or left, or were written since.",
        ),
        Expectation.equal("differing", 0, "Every copy holds what its row in V3 holds."),
    ]
    return Frame("totals", [row], expect)


def _slices(found: Sequence[PlaceCompared]) -> list[dict[str, Any]]:
    """Counts and hashes of each slice over its buckets, oldest first."""
    slices = []
    for start, places in groupby(
        sorted(found, key=lambda each: each.slice_ms), key=lambda each: each.slice_ms
    ):
        of = list(places)
        counts = {
            name: sum(getattr(each, name) for each in of)
            for name in ("live", "same", "missing", "newer", "differing")
        }
        hashes = {
            name: str(sum((getattr(each, name) for each in of), Digest())) for name in ("v3", "v4")
        }
        if counts["live"]:
            slices.append({"slice": iso(instant(start)), **counts, **hashes})
    return slices
