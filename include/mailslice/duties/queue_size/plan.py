"""Step 1: measure. Changes nothing; what it found is plan.json, slice by slice, and the later steps only publish it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from mailslice.duties.queue_size.advice import Facts, advice
from mailslice.duties.queue_size.measure import Measure, SliceMeasured, slice_json, total_shape
from mailslice.duties.queue_size.measured import digest
from mailslice.duties.queue_size.params import Params
from mailslice.duty.artifacts import iso
from mailslice.duty.clocks import require_clock
from mailslice.duty.context import StepContext
from mailslice.duty.emptiness import sample_once, second_pass
from mailslice.model.errors import MailsliceError
from mailslice.model.names import RabbitNames
from mailslice.model.slices import slice_start, slices_between, whole_seconds
from mailslice.queue.configuration import Shape, view_shape
from mailslice.queue.directory import require
from mailslice.queue.live import LiveRows
from mailslice.spark.slices import instant
from mailslice.stores import Stores
from mailslice.stores.rabbitmq.management import Depth

_MOST_BEHIND = 10_000
"""Slices behind browseStart that are read one by one; beyond, those that exist are looked up by a scan of the keys."""


def run(context: StepContext, *, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """What was measured. Raises UnknownQueue."""
    params, stores = context.params(Params), context.stores
    require(stores, context.queue)
    first = sample_once(stores, context.queue, context.clock) if params.sample else None
    now = context.clock()
    view = view_shape(stores)
    start = stores.tables.browse_starts.read(context.queue)
    content = stores.tables.content_starts.read(context.queue)
    slices, buckets = slices_to_measure(stores, context, view, now)
    measure = Measure(
        context.settings, context.queue, view.window, buckets, start.value if start else None, now
    )
    found = sorted(
        measure.in_spark(context.spark(), slices) if slices else [], key=lambda each: each.slice_ms
    )
    told = [
        slice_json(each, now - view.largest_window - context.settings.duty.grace)
        for each in found
        if each.live or each.dead or each.unproven
    ]
    nodes, letters, work = (
        _nodes(stores),
        _dead_letters(context),
        _depth(context, RabbitNames(context.queue).work_queue),
    )
    facts = _facts(
        found, view, now=now, browse=start.value if start else None, nodes=nodes, letters=letters
    )
    oldest = min((each.oldest_ms for each in found if each.oldest_ms >= 0), default=None)
    seen = second_pass(stores, context.queue, first, context.clock, sleep=sleep)
    if seen is not None:
        require_clock(context)  # deleted marks may go by when it was
    last = stores.own.queue_samples.read(context.queue)
    summary = {
        "measuredAt": iso(now),
        "size": facts.live,
        "live": facts.live,
        "dead": facts.dead,
        "unproven": facts.unproven,
        "oldest": iso(instant(oldest)) if oldest is not None else None,
        "oldestAgeSeconds": round((now - instant(oldest)).total_seconds(), 3)
        if oldest is not None
        else None,
        "browseStart": iso(start.value) if start else None,
        "contentStart": iso(content.value) if content else None,
        "survivors": sum(each["survivors"] for each in told),
        "slices": told,
        "fullest": {"slice": iso(facts.fullest_slice), "mails": facts.fullest},
        "shape": total_shape(found).top(params.domains),
        "deadLetters": letters,
        "ready": work.ready if work else None,
        "unacknowledged": work.unacknowledged if work else None,
        "consumers": work.consumers if work else None,
        "parked": _parked(context),
        "lastSeenEmpty": iso(seen.first_pass if seen else last.first_pass if last else None),
        "passes": [iso(seen.first_pass), iso(seen.second_pass)] if seen else None,
        "window": whole_seconds(view.window),
        "buckets": buckets,
        "nodes": nodes,
        "advice": advice(facts),
        "reads": {
            "wanted": len(slices),
            "read": len(found),
            "twice": len(found) - len({each.slice_ms for each in found}),
        },
    }
    return {**summary, "planDigest": digest(summary)}


def slices_to_measure(
    stores: Stores, context: StepContext, view: Shape, now: datetime
) -> tuple[list[datetime], int]:
    """The slices that a browse reads, and those from contentStart to browseStart, where dead rows may still be; and the most buckets there are."""
    places = list(LiveRows(stores.tables, context.queue, view).places(now))
    buckets = max([view.buckets, *(place.bucket + 1 for place in places)])
    starts = {place.slice_start for place in places}
    browse, content = (
        stores.tables.browse_starts.read(context.queue),
        stores.tables.content_starts.read(context.queue),
    )
    if browse is not None and content is not None and content.value < browse.value:
        first, last = slice_start(content.value, view.largest_window), browse.value
        if (last - first) // view.window * buckets <= _MOST_BEHIND:
            starts.update(slices_between(first, last, view.window))
        else:
            existing = {
                place.slice_start
                for table in stores.tables.existing
                for place in table.places(context.queue)
            }
            starts.update(each for each in existing if first <= each <= last)
    return sorted(starts), buckets


def _facts(
    found: Sequence[SliceMeasured],
    view: Shape,
    *,
    now: datetime,
    browse: datetime | None,
    nodes: int,
    letters: int | None,
) -> Facts:
    fullest = max(found, key=lambda each: each.fullest, default=None)
    return Facts(
        now=now,
        window=view.window,
        buckets=view.buckets,
        nodes=nodes,
        fullest=fullest.fullest if fullest else 0,
        fullest_slice=instant(fullest.slice_ms) if fullest and fullest.fullest else None,
        live=sum(each.live for each in found),
        dead=sum(each.dead for each in found),
        unproven=sum(each.unproven for each in found),
        browse_start=browse,
        aligned=browse is None or slice_start(browse, view.window) == browse,
        dead_letters=letters,
    )


def _dead_letters(context: StepContext) -> int | None:
    """Messages in the dead letter queue; None when nobody could say."""
    depth = _depth(context, RabbitNames(context.queue).dead_letter_queue)
    return depth.total if depth is not None else None


def _depth(context: StepContext, name: str) -> Depth | None:
    """What the broker says of one of its queues; None when it cannot be asked: a size does not need it."""
    try:
        return context.stores.management.depth(name)
    except MailsliceError:
        return None


def _parked(context: StepContext) -> int | None:
    """Messages that wait until a store answers for them; None when nobody could say."""
    try:
        return context.stores.management.parked(context.queue)
    except MailsliceError:
        return None


def _nodes(stores: Stores) -> int:
    """Nodes of the Cassandra cluster, at least 1."""
    return max(1, len(stores.cassandra.cluster.metadata.all_hosts()))
