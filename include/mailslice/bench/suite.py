"""`bench all`: measures the parts one after the other, and writes the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mailslice.bench.blobs import measure_gc
from mailslice.bench.clients import measure_clients
from mailslice.bench.counters import measure_counters
from mailslice.bench.delayed import measure_delays
from mailslice.bench.hotpath import measure
from mailslice.bench.isolated import isolated
from mailslice.bench.marks import measure_marks
from mailslice.bench.page import machine, page_text, write_page
from mailslice.bench.relay import measure_relay
from mailslice.bench.scale import read_measured
from mailslice.bench.servers import measure_servers
from mailslice.bench.view import measure_view
from mailslice.model.errors import BadInput

if TYPE_CHECKING:
    from mailslice.cli.output import Output
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

_KIB, _MIB = 1024, 1024 * 1024
_RTT = timedelta(milliseconds=20)
_SHARES = (100, 10, 1)
"""Divisors of the largest number of rows: the points of the curves."""
Measurement = tuple[str, Callable[..., Any]]
"""Name of a bench, and a function of `print_progress` that returns its row or rows."""


def run_all(
    out: Output,
    table: Mapping[str, Sequence[Measurement]],
    parts: Sequence[str],
    page: Path | None,
    print_progress: Callable[[str], None],
) -> None:
    """Measures `parts`, or all parts of the table. Prints JSON lines one by one.

    Writes `page` after each measurement, so that a stopped run keeps its figures, and prints the
    page at the end. Parts that are not measured keep their figures on the page. Goes on after a
    failure and raises the first one at the end. Raises BadInput if the kept figures are of another
    machine, as figures of two machines cannot be compared.
    """
    failures: list[Exception] = []
    rows = _rows_of_page(page) if page and parts else []
    for part in parts or table:
        others = [row for row in rows if row.get("part") != part]
        measured: list[dict[str, Any]] = []
        for bench, measure_rows in table[part]:
            print_progress(part)
            try:
                result = measure_rows(print_progress=print_progress)
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                out.note(f"bench: {part} failed: {type(error).__name__}: {error}")
                failures.append(error)
                continue
            for row in result if isinstance(result, list) else [result]:
                measured.append({"bench": bench, "part": part, **row})
                if out.as_json:
                    out.one(measured[-1])
            rows = [*others, *measured]
            if page is not None:
                write_page(page, rows)
    if not out.as_json:
        print(page_text(rows))
    if failures:
        raise failures[0]


def _rows_of_page(page: Path) -> list[dict[str, Any]]:
    earlier = read_measured(page.with_suffix(".json"))
    if earlier["rows"] and earlier["machine"] != machine():
        raise BadInput(
            f"--write {page}: its figures are of {earlier['machine']}, this machine is "
            f"{machine()}. Measure all parts, or name another page"
        )
    return list(earlier["rows"])


def parts_of(
    settings: Settings, queue: QueueName, servers: Sequence[Path], largest: int
) -> dict[str, list[Measurement]]:
    """Part -> its measurements, in the order in which they are made."""

    def mails(function: Callable[..., Any], **sizes: Any) -> Callable[..., Any]:
        return partial(function, settings, queue=queue, **sizes)

    def hotpath(count: int, size: int, **more: Any) -> Measurement:
        return "hotpath", mails(measure, mails=count, size=size, in_flight=64, **more)

    def duty(bench: str, function: Callable[..., Any], **sizes: Any) -> Measurement:
        return bench, partial(_alone, function, settings, sizes)

    small: dict[str, Any] = {"mails": 2000, "size": 4 * _KIB, "warm_up": timedelta(seconds=30)}
    relayed: dict[str, Any] = {
        "mails": 400,
        "size": 4 * _KIB,
        "recipients": 1,
        "concurrency": 8,
        "rtt": _RTT,
    }
    # The first part finds stores that have just started: its warm-up is longer.
    peak = {"processes": (1, 2, 4), "waiting": 30_000, "warm_up": timedelta(minutes=2)}
    paced = {"repeats": 3, "load": 0.8}
    kinds = {"servers": servers, "in_flight": (16, 64), "rtt": _RTT}
    sizes = [largest // share for share in _SHARES]
    smallest = sizes[0]
    return {
        "hotpath": [hotpath(5000, 4 * _KIB, **paced, **peak)],
        "sizes": [
            hotpath(3000, 50 * _KIB, **paced),
            hotpath(600, 200 * _KIB),
            hotpath(400, _MIB, **paced),
            hotpath(64, 25 * _MIB),
        ],
        "curve": [hotpath(2000, 4 * _KIB, curve=True)],
        "far": [hotpath(2000, 4 * _KIB, curve=True, rtt=_RTT)],
        "s3": [("s3", mails(measure_servers, **kinds, **small))],
        "clients": [("clients", mails(measure_clients, in_flight=64, turns=3, **small))],
        "delays": [("delays", mails(measure_delays, mails=500))],
        "relay": [("relay", partial(measure_relay, settings, **relayed))],
        "view": [
            duty("view", measure_view, queue=queue, live=1000, dead=dead, slices=100)
            for dead in (0, *sizes)
        ],
        "counters": [
            duty("counters", measure_counters, mailboxes=mailboxes, messages=messages)
            for mailboxes, messages in (
                *((max(1, n // 1000), n) for n in sizes),
                (smallest, smallest),
            )
        ],
        "blobs": [
            duty("blob_gc", measure_gc, blobs=size // 5, references=size, keep=keep)
            for size, keep in (*((size, False) for size in sizes), (smallest, True))
        ],
        "marks": [duty("marks", measure_marks, queue=queue, rows=largest // 4)],
    }


def _alone(
    function: Callable[..., Any],
    settings: Settings,
    sizes: Mapping[str, Any],
    print_progress: Callable[[str], None],
) -> Any:
    """Runs in a process of its own, so that memory excludes what Spark took for earlier sizes."""
    print_progress(", ".join(f"{name} {value}" for name, value in sizes.items()))
    return isolated(function, settings, **sizes, print_progress=_silent)


def _silent(_: str) -> None:
    """The `print_progress` of a child process, which prints nothing."""
