"""`bench all`: the sizes of the issue, one after the other, as a page with machine and date."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mailslice.cli.bench_hotpath import measure
from mailslice.cli.bench_view import measure_view
from mailslice.cli.output import cell, iso
from mailslice.model.clock import system_clock

if TYPE_CHECKING:
    from mailslice.cli.output import Output
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

Row = Mapping[str, Any]
_KIB, _MIB = 1024, 1024 * 1024
HOTPATH = ((4000, 4 * _KIB, 64), (600, 200 * _KIB, 64), (64, 25 * _MIB, 64))
"""Mails, bytes of each, in flight."""


def run_all(out: Output, settings: Settings, queue: QueueName, *, largest: int, page: Path | None, say: Callable[[str], None]) -> None:
    """Measure everything. JSON lines appear one by one; the page is printed, and written to `page`, at the end."""
    hot, views = [], []
    for mails, each, in_flight in HOTPATH:
        say(f"{mails} mails of {each} bytes")
        hot.append({"bench": "hotpath", **measure(settings, queue, mails=mails, each=each, in_flight=in_flight, repeat=1, say=say)})
        _line(out, hot[-1])
    for dead in (0, largest // 10, largest):
        views.append({"bench": "view", **measure_view(settings, queue, live=1000, dead=dead, slices=100, say=say)})
        _line(out, views[-1])
    text = "\n".join(_page(hot, views)) + "\n"
    if not out.as_json:
        print(text)
    if page is not None:
        page.write_text(text, encoding="utf-8")
        say(f"{page} is written")


def _line(out: Output, row: Row) -> None:
    if out.as_json:
        out.one(row)


def _page(hot: Sequence[Row], views: Sequence[Row]) -> list[str]:
    return [
        "# Performance",
        "",
        f"Measured by `make bench` on {iso(system_clock())[:10]}: {_machine()}. Client, Cassandra, RabbitMQ, S3 and Spark share the machine:",
        "compare figures of one run with each other, not with those of other machines.",
        "",
        "## Hot path",
        "",
        "A dequeue is dequeue + complete. The stores' own limits were measured alone, in the same run, with the same sizes and mails in flight.",
        "",
        *_table(HOT_COLUMNS, hot),
        "",
        "## Counting, browsing and cleaning the view",
        "",
        "1,000 live mails among dead rows in 100 slices, before and after a `queue_cleanup`; rates are rows read a second, dead ones included.",
        "",
        *_table(VIEW_COLUMNS, views),
        "",
        "Cleanup of those dead rows: rows a second of the two steps (Spark's start-up included), and the most memory of driver, JVM and Python workers.",
        "",
        *_table(CLEANUP_COLUMNS, [view["cleanup"] for view in views if view["dead"]]),
    ]


HOT_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("mails", "count"),
    ("enqueues/s", "enqueue_rate"),
    ("p50 / p95 / p99 ms", "enqueue_ms"),
    ("dequeues/s", "dequeue_rate"),
    ("p50 / p95 / p99 ms", "dequeue_ms"),
    ("CPU s / 1,000", "cpu_seconds_per_1000"),
    ("peak MiB", "peak_mib"),
    ("S3 puts/s", "limits.s3_puts"),
    ("view inserts/s", "limits.view_inserts"),
    ("confirmed publishes/s", "limits.confirmed_publishes"),
)
VIEW_COLUMNS: Sequence[tuple[str, str]] = (
    ("dead rows", "dead"),
    ("size before, s", "before.size_seconds"),
    ("rows/s", "before.size_rows_per_second"),
    ("browse before, s", "before.browse_seconds"),
    ("rows/s", "before.browse_rows_per_second"),
    ("size after, s", "after.size_seconds"),
    ("browse after, s", "after.browse_seconds"),
)
CLEANUP_COLUMNS: Sequence[tuple[str, str]] = (
    ("dead rows", "rows"),
    ("plan rows/s", "plan_rows_per_second"),
    ("apply rows/s", "apply_rows_per_second"),
    ("whole run, s", "seconds"),
    ("peak MiB", "peak_mib"),
)


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> list[str]:
    head = [f"| {' | '.join(title for title, _ in columns)} |", "|" + "---:|" * len(columns)]
    return head + [f"| {' | '.join(_figure(row, path) for _, path in columns)} |" for row in rows]


def _figure(row: Row, path: str) -> str:
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        return " / ".join(_figure(value, key) for key in ("p50", "p95", "p99"))
    return f"{value:,}" if isinstance(value, int | float) else cell(value)


def _machine() -> str:
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    memory = next((int(line.split()[1]) // 1024 // 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), None)
    system = next((line.partition("=")[2].strip('"') for line in _lines("/etc/os-release") if line.startswith("PRETTY_NAME")), platform.system())
    return f"{os.cpu_count()} cores ({model}), {memory} GiB, {system}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
