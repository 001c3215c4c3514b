"""Measure a queue, slice by slice; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from mailslice.admin.queues import require
from mailslice.duties.queue_size.advice import QueueFacts, advice
from mailslice.duties.queue_size.measure import Measure, SliceMeasured, slice_json, total_shape
from mailslice.duties.queue_size.params import Params
from mailslice.engine.partition_scan import instant
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.clocks import require_clock
from mailslice.maintenance.drained import sample_once, second_pass
from mailslice.maintenance.run import Run
from mailslice.model.errors import MailsliceError
from mailslice.model.names import RabbitNames
from mailslice.model.slices import slice_start, slices_between, whole_seconds
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.live_rows import LiveRows

_MOST_BEHIND = 10_000
"""Most slices behind browseStart that are read one by one.

Where there are more, a scan of the partition keys looks up those that exist.
"""

T = TypeVar("T")


def take(run: Run, sleep: Callable[[float], None]) -> dict[str, Any]:
    """What was measured, as JSON; `passes`: when the broker was seen empty. Raises UnknownQueue."""
    params, stores, names = run.params(Params), run.stores, RabbitNames(run.queue)
    require(stores, run.queue)
    first = sample_once(stores, run.queue, run.clock) if params.sample else None
    now = run.clock()
    view = view_shape(stores)
    start = stores.tables.browse_starts.read(run.queue)
    content = stores.tables.content_starts.read(run.queue)
    browse = start.value if start else None
    slices, buckets = slices_to_measure(run, view, now)
    measure = Measure(run.settings, run.queue, view.window, buckets, browse, now)
    measured = sorted(
        measure.in_spark(run.spark(), slices) if slices else [], key=lambda one: one.slice_ms
    )
    last_closed = now - view.largest_window - run.settings.duty.grace
    rows = [
        slice_json(one, last_closed) for one in measured if one.live or one.dead or one.unproven
    ]
    management = stores.management
    work = _answered(lambda: management.depth(names.work_queue))
    letters = _answered(lambda: management.depth(names.dead_letter_queue))
    nodes = max(1, len(stores.cassandra.cluster.metadata.all_hosts()))
    facts = _facts(
        measured,
        view,
        now=now,
        browse=browse,
        nodes=nodes,
        letters=letters.total if letters else None,
    )
    oldest_ms = min((one.oldest_ms for one in measured if one.oldest_ms >= 0), default=None)
    oldest = None if oldest_ms is None else instant(oldest_ms)
    empty = second_pass(stores, run.queue, first, run.clock, sleep=sleep)
    if empty is not None:
        require_clock(run)  # deleted marks may go by when it was
    last = empty or stores.own.queue_samples.read(run.queue)
    return {
        "measuredAt": iso(now),
        "size": facts.live,
        "live": facts.live,
        "dead": facts.dead,
        "unproven": facts.unproven,
        "oldest": iso(oldest),
        "oldestAgeSeconds": round((now - oldest).total_seconds(), 3) if oldest else None,
        "browseStart": iso(browse),
        "contentStart": iso(content.value) if content else None,
        "survivors": sum(row["survivors"] for row in rows),
        "slices": rows,
        "fullest": {"slice": iso(facts.fullest_slice), "mails": facts.fullest},
        "shape": total_shape(measured).top(params.domains),
        "deadLetters": facts.dead_letters,
        "ready": work.ready if work else None,
        "unacknowledged": work.unacknowledged if work else None,
        "consumers": work.consumers if work else None,
        "parked": _answered(lambda: management.parked(run.queue)),
        "lastSeenEmpty": iso(last.first_pass) if last else None,
        "passes": [iso(empty.first_pass), iso(empty.second_pass)] if empty else None,
        "window": whole_seconds(view.window),
        "buckets": buckets,
        "nodes": nodes,
        "advice": advice(facts),
        "reads": {
            "wanted": len(slices),
            "read": len(measured),
            "twice": len(measured) - len({one.slice_ms for one in measured}),
        },
    }


def slices_to_measure(run: Run, view: Shape, now: datetime) -> tuple[list[datetime], int]:
    """The slices to read, and the largest number of buckets.

    They are those that a browse reads, and those from contentStart to browseStart, where dead rows
    may remain.
    """
    tables = run.stores.tables
    partitions = list(LiveRows(tables, run.queue, view).partitions(now))
    buckets = max([view.buckets, *(partition.bucket + 1 for partition in partitions)])
    starts = {partition.slice_start for partition in partitions}
    browse, content = tables.browse_starts.read(run.queue), tables.content_starts.read(run.queue)
    if browse is not None and content is not None and content.value < browse.value:
        first, last = slice_start(content.value, view.largest_window), browse.value
        if (last - first) // view.window * buckets <= _MOST_BEHIND:
            starts.update(slices_between(first, last, view.window))
        else:
            existing = {
                partition.slice_start
                for table in tables.existing
                for partition in table.partitions(run.queue)
            }
            starts.update(start for start in existing if first <= start <= last)
    return sorted(starts), buckets


def _facts(
    slices: Sequence[SliceMeasured],
    view: Shape,
    *,
    now: datetime,
    browse: datetime | None,
    nodes: int,
    letters: int | None,
) -> QueueFacts:
    fullest = max(slices, key=lambda measured: measured.fullest, default=None)
    return QueueFacts(
        now=now,
        window=view.window,
        buckets=view.buckets,
        nodes=nodes,
        fullest=fullest.fullest if fullest else 0,
        fullest_slice=instant(fullest.slice_ms) if fullest and fullest.fullest else None,
        live=sum(measured.live for measured in slices),
        dead=sum(measured.dead for measured in slices),
        unproven=sum(measured.unproven for measured in slices),
        browse_start=browse,
        aligned=browse is None or slice_start(browse, view.window) == browse,
        dead_letters=letters,
    )


def _answered(ask: Callable[[], T]) -> T | None:
    """What the broker says; None when it cannot be asked: a size does not need it."""
    try:
        return ask()
    except MailsliceError:
        return None
