"""`bench all`: every part in the sizes of the issue, one after the other, and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mailslice.bench.blobs import measure_blobs
from mailslice.bench.counters import measure_counters
from mailslice.bench.hotpath import Spec, measure
from mailslice.bench.isolated import isolated
from mailslice.bench.page import Row, page_text, write_page
from mailslice.bench.view import measure_view

if TYPE_CHECKING:
    from mailslice.cli.output import Output
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

_KIB, _MIB = 1024, 1024 * 1024
PEAK = Spec(
    5000,
    4 * _KIB,
    64,
    repeats=3,
    load=0.8,
    processes=(1, 2, 4),
    waiting=50_000,
    warm_up=timedelta(minutes=2),
)
"""It finds stores that have just started: it waits longer for them."""
SIZES = (
    Spec(3000, 50 * _KIB, 64, repeats=3, load=0.8),
    Spec(600, 200 * _KIB, 64),
    Spec(400, _MIB, 64, repeats=3, load=0.8),
    Spec(64, 25 * _MIB, 64),
)
SHARES = (100, 10, 1)
"""What the largest number of rows is divided by, for the curves."""


def run_all(
    out: Output,
    settings: Settings,
    queue: QueueName,
    *,
    largest: int,
    page: Path | None,
    say: Callable[[str], None],
) -> None:
    """Measure everything. JSON lines appear one by one; the page is printed at the end.

    `page` is written after each measurement: what stops it is not to cost what is known.
    """
    rows: list[Row] = []
    for row in _measured(settings, queue, largest, say):
        rows.append(row)
        if out.as_json:
            out.one(row)
        if page is not None:
            write_page(page, rows)
    if not out.as_json:
        print(page_text(rows))
    if page is not None:
        say(f"{page} is written")


def _measured(
    settings: Settings, queue: QueueName, largest: int, say: Callable[[str], None]
) -> Iterator[Row]:
    for spec in (PEAK, *SIZES):
        say(f"{spec.mails} mails of {spec.size} bytes")
        yield {"bench": "hotpath", **measure(settings, queue, spec, say)}
    # Each in a process of its own: its memory is not what Spark took for the sizes before it.
    for bench, function, sizes in _duties(queue, largest):
        say(", ".join(f"{name}: {value}" for name, value in sizes.items()))
        yield {"bench": bench, **isolated(partial(function, settings, say=_silent, **sizes))}


def _duties(
    queue: QueueName, largest: int
) -> Iterator[tuple[str, Callable[..., dict[str, Any]], Mapping[str, Any]]]:
    """At a hundredth, a tenth and the whole; with many mailboxes; with copies of what is deleted."""
    sizes: Sequence[int] = [largest // share for share in SHARES]
    few = sizes[0]
    for dead in (0, *sizes):
        yield "view", measure_view, {"name": queue, "live": 1000, "dead": dead, "slices": 100}
    for mailboxes, messages in (*((max(1, size // 1000), size) for size in sizes), (few, few)):
        yield "counters", measure_counters, {"mailboxes": mailboxes, "messages": messages}
    for size, keep in (*((size, False) for size in sizes), (few, True)):
        yield "blob_gc", measure_blobs, {"blobs": size // 5, "references": size, "keep": keep}


def _silent(_: str) -> None:
    """What a process of its own says."""
