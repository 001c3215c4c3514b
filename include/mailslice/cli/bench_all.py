"""`bench all`: hot path, view and duties in all sizes, one after the other, as a page with machine and date."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mailslice.cli.bench_blobs import measure_blobs
from mailslice.cli.bench_counters import measure_counters
from mailslice.cli.bench_curves import curves_svg
from mailslice.cli.bench_hotpath import Wanted, measure
from mailslice.cli.bench_view import measure_view
from mailslice.cli.output import cell, iso
from mailslice.model.clock import system_clock
from mailslice.worker.apart import apart

if TYPE_CHECKING:
    from mailslice.cli.output import Output
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

Row = Mapping[str, Any]
_KIB, _MIB = 1024, 1024 * 1024
HOTPATH = (
    Wanted(
        5000,
        4 * _KIB,
        64,
        repeats=3,
        load=0.8,
        processes=(1, 2, 4),
        waiting=100_000,
        warm_up=timedelta(minutes=2),
        curve=True,
    ),
    Wanted(3000, 50 * _KIB, 64, repeats=3, load=0.8),
    Wanted(600, 200 * _KIB, 64),
    Wanted(400, _MIB, 64, repeats=3, load=0.8),
    Wanted(64, 25 * _MIB, 64),
)
"""The first one finds stores that have just started: it waits longer for them."""
PARTS = (100, 10, 1)
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

    `page` and its JSON are written after each measurement, the picture at the end: it takes most of an hour, and what stops it is not to cost what is known.
    """
    rows: list[Row] = []
    for row in _measured(settings, queue, largest, say):
        rows.append(row)
        if out.as_json:
            out.one(row)
        if page is not None:
            _write(page, rows)
    if not out.as_json:
        print(_text(rows))
    if page is not None:
        page.with_suffix(".svg").write_bytes(
            curves_svg(_of(rows, "view"), _of(rows, "counters", "blob_gc"))
        )
        say(f"{page} is written")


def _measured(
    settings: Settings, queue: QueueName, largest: int, say: Callable[[str], None]
) -> Iterator[Row]:
    for wanted in HOTPATH:
        say(f"{wanted.mails} mails of {wanted.each} bytes")
        yield {"bench": "hotpath", **measure(settings, queue, wanted, say)}
    for dead in (0, *(largest // part for part in PARTS)):
        yield from _alone(
            say,
            f"{dead} dead rows",
            "view",
            measure_view,
            settings,
            queue,
            live=1000,
            dead=dead,
            slices=100,
        )
    yield from _duties(settings, largest, say)


def _alone(
    say: Callable[[str], None],
    what: str,
    bench: str,
    measure: Callable[..., dict[str, Any]],
    *given: Any,
    **named: Any,
) -> Iterator[Row]:
    """Measured in a process of its own: its memory is not what Spark took for the sizes before it."""
    say(what)
    yield {"bench": bench, **apart(partial(measure, *given, **named, say=_nothing))}


def _nothing(_: str) -> None:
    """What a process of its own says."""


def _write(page: Path, rows: Sequence[Row]) -> None:
    page.write_text(_text(rows) + "\n", encoding="utf-8")
    measured = {"date": iso(system_clock())[:10], "machine": _machine(), "rows": rows}
    page.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def _of(rows: Sequence[Row], *benches: str) -> list[Row]:
    return [row for row in rows if row["bench"] in benches]


def _text(rows: Sequence[Row]) -> str:
    return "\n".join(
        _page(_of(rows, "hotpath"), _of(rows, "view"), _of(rows, "counters", "blob_gc"))
    )


def _duties(settings: Settings, largest: int, say: Callable[[str], None]) -> Iterator[Row]:
    """counter_repair and blob_gc at a hundredth, a tenth and the whole; once more with many mailboxes, and once with copies of what is deleted."""
    of = {part: largest // part for part in PARTS}
    for each, mailboxes in [
        *((of[part], max(1, of[part] // 1000)) for part in PARTS),
        (of[100], max(1, of[100])),
    ]:
        what = f"{each} messages in {mailboxes} mailboxes"
        yield from _alone(
            say, what, "counters", measure_counters, settings, mailboxes=mailboxes, messages=each
        )
    for each, keep in [*((of[part], False) for part in PARTS), (of[100], True)]:
        what = f"{each // 5} blobs, {each} references{', copies kept' if keep else ''}"
        yield from _alone(
            say,
            what,
            "blob_gc",
            measure_blobs,
            settings,
            blobs=each // 5,
            references=each,
            keep=keep,
        )


def _page(hot: Sequence[Row], views: Sequence[Row], duties: Sequence[Row]) -> list[str]:
    return [
        "# Performance",
        "",
        f"Measured by `make bench` on {iso(system_clock())[:10]}: {_machine()}. Client, Cassandra, RabbitMQ, S3 and Spark share the machine:",
        "compare figures of one run with each other, not with those of other machines.",
        "",
        "## Hot path",
        "",
        "A dequeue is dequeue + complete, and its latency begins when the broker delivers: it holds the wait among the mails that are in flight. Medians of",
        "the repeats; what stands as a - b is their least and their most.",
        "",
        *_table(HOT_COLUMNS, hot),
        "",
        "Before each size, unmeasured: mails there and back in rounds, until four rounds needed no less CPU than the best before (level), or the time was up.",
        "The first size finds stores that have just been started. CPU seconds are of worker and stores together, for 1,000 mails there and back.",
        "",
        *_table(WARM_COLUMNS, [row for row in hot if row.get("warm_up")]),
        "",
        "CPU seconds per 1,000 mails, enqueue / dequeue, of the worker and of the stores' processes; the rates at which those would keep all cores busy, and",
        "which share of that limit was reached.",
        "",
        *_table(CPU_COLUMNS, hot),
        "",
        "The stores' own limits, a second, each alone in the same run, by the same clients, with the same sizes and mails in flight (a mail is two blobs).",
        "",
        *_table(LIMIT_COLUMNS, hot),
        "",
        "Latencies at a share of the peak rate: an enqueue's from when it was due, a dequeue's from when its message was due to be published, by a process of",
        "its own, to the end of the completion.",
        "",
        *_table(PACED_COLUMNS, [row for row in hot if "paced" in row]),
        "",
        "Several processes against one queue, each with as many mails in flight; CPU seconds per 1,000 mails of all of them together, and of Cassandra /",
        "RabbitMQ / S3. Idle is the share of the cores that neither they nor the stores used: it would grow if processes waited for a lock.",
        "",
        *_table(
            SCALING_COLUMNS,
            [{"size": row["size"], **each} for row in hot for each in row.get("scaling", ())],
        ),
        "",
        "By mails in flight: `fixed` gives S3 all of them at once, `adaptive` as many requests as it bears (ADR 58), given last as PUTs / GETs. In flight is",
        "an enqueue's latency from when its first request was let in; what it waited before is in its whole latency.",
        "",
        *_table(
            CURVE_COLUMNS,
            [{"size": row["size"], **each} for row in hot for each in row.get("curve", ())],
        ),
        "",
        "With many mails waiting: enqueues before they wait and while they do, and a drain of all of them, whose rate is given by tenths of it.",
        "",
        *_table(
            WAITING_COLUMNS,
            [{"size": row["size"], **row["waiting"]} for row in hot if "waiting" in row],
        ),
        "",
        "## Counting, browsing and cleaning the view",
        "",
        "1,000 live mails among dead rows in 100 slices, before and after a `queue_cleanup`; rates are rows read a second, dead ones included. Each size has a",
        "process of its own, here and below, and waits until Cassandra compacts no more of what was inserted. Cassandra keeps the marks of the small sizes in",
        "memory; those of the largest are read from disk, which is what a row costs more there.",
        "",
        *_table(VIEW_COLUMNS, views),
        "",
        f"Cleanup of those dead rows: rows a second of the two steps, Spark's start before them. {_MEMORY}",
        "",
        *_table(CLEANUP_COLUMNS, [view["cleanup"] for view in views if view["dead"]]),
        "",
        "CPU of the two steps, microseconds a row: Cassandra's, and that of driver, JVM and Python workers; the rows a second at which both would keep all",
        "cores busy, and those at which Cassandra alone would.",
        "",
        *_table(CLEANUP_CPU_COLUMNS, [view["cleanup"] for view in views if view["dead"]]),
        "",
        "## Duties",
        "",
        "counter_repair: messages a second that both tables are compared and counted at (the first run starts Spark), mailboxes a second corrected.",
        "",
        *_table(COUNTER_COLUMNS, [row for row in duties if row["bench"] == "counters"]),
        "",
        "blob_gc: a quarter of the blobs are orphans. S3's own limit is that of a HEAD and a delete for each key (and a copy, where copies are kept), alone.",
        "",
        *_table(BLOB_COLUMNS, [row for row in duties if row["bench"] == "blob_gc"]),
        "",
        "![Seconds by rows](performance.svg)",
    ]


HOT_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("mails", "count"),
    ("enqueues/s", "enqueue_rate"),
    ("of all runs", "runs.enqueue_rate"),
    ("p50 / p95 / p99 ms", "enqueue_ms"),
    ("dequeues/s", "dequeue_rate"),
    ("of all runs", "runs.dequeue_rate"),
    ("p50 / p95 / p99 ms", "dequeue_ms"),
    ("peak MiB", "peak_mib"),
)
WARM_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("seconds", "warm_up.seconds"),
    ("mails", "warm_up.mails"),
    ("level", "warm_up.level"),
    ("CPU s / 1,000 by rounds", "warm_up.cpu_seconds_per_1000_of_rounds"),
)
CPU_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("worker, enqueue", "enqueue_cpu_seconds_per_1000"),
    ("worker, dequeue", "dequeue_cpu_seconds_per_1000"),
    ("Cassandra", "stores_cpu_seconds_per_1000.cassandra"),
    ("RabbitMQ", "stores_cpu_seconds_per_1000.rabbitmq"),
    ("S3", "stores_cpu_seconds_per_1000.s3"),
    ("mails/s at most", "cpu_bound_rate"),
    ("share reached", "share_of_cpu_bound_rate"),
)
LIMIT_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("S3 puts", "limits.s3_puts"),
    ("S3 gets", "limits.s3_gets"),
    ("S3 bulk deletes", "limits.s3_bulk_deletes"),
    ("view inserts", "limits.view_inserts"),
    ("reads of marks", "limits.view_reads"),
    ("marks", "limits.view_marks"),
    ("confirmed publishes", "limits.confirmed_publishes"),
    ("acked deliveries", "limits.acked_deliveries"),
)
PACED_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("share", "paced.load"),
    ("mails", "paced.count"),
    ("enqueues/s", "paced.enqueue_rate"),
    ("p50 / p95 / p99 ms", "paced.enqueue_ms"),
    ("dequeues/s", "paced.dequeue_rate"),
    ("p50 / p95 / p99 ms", "paced.dequeue_ms"),
)
SCALING_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("processes", "processes"),
    ("enqueues/s", "enqueue_rate"),
    ("CPU s / 1,000", "enqueue_cpu_seconds_per_1000"),
    ("stores", "enqueue_stores_cpu_seconds_per_1000"),
    ("idle", "enqueue_share_of_cores.rest"),
    ("dequeues/s", "dequeue_rate"),
    ("CPU s / 1,000", "dequeue_cpu_seconds_per_1000"),
    ("stores", "dequeue_stores_cpu_seconds_per_1000"),
    ("idle", "dequeue_share_of_cores.rest"),
    ("peak MiB of one", "peak_mib"),
)
CURVE_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("in flight", "in_flight"),
    ("window", "window"),
    ("enqueues/s", "enqueue_rate"),
    ("p50 / p95 / p99 ms", "enqueue_ms"),
    ("in flight p50 / p95 / p99 ms", "enqueue_in_flight_ms"),
    ("dequeues/s", "dequeue_rate"),
    ("p50 / p95 / p99 ms", "dequeue_ms"),
    ("window at the end", "window_limit"),
)
WAITING_COLUMNS: Sequence[tuple[str, str]] = (
    ("bytes", "size"),
    ("waiting", "waiting"),
    ("enqueues/s before", "enqueue_rate_alone"),
    ("p50 / p95 / p99 ms", "enqueue_ms_alone"),
    ("enqueues/s", "enqueue_rate"),
    ("p50 / p95 / p99 ms", "enqueue_ms"),
    ("drained/s", "drain_rate"),
    ("by tenths", "drain_rate_of_tenths"),
    ("peak MiB", "peak_mib"),
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
_MEMORY = "Memory: the most of all processes of the run, of Spark's JVM (it grows to its heap, given in brackets), and of driver and Python workers."
_MEMORY_COLUMNS = (
    ("peak MiB", "peak_mib"),
    ("JVM", "peak_jvm_mib"),
    ("(heap)", "jvm_heap"),
    ("Python", "peak_python_mib"),
)
CLEANUP_CPU_COLUMNS: Sequence[tuple[str, str]] = (
    ("dead rows", "rows"),
    ("plan: Cassandra", "cpu.plan.cassandra"),
    ("ours", "cpu.plan.ours"),
    ("rows/s at most", "cpu.plan.rows_per_second"),
    ("Cassandra alone", "cpu.plan.rows_per_second_of_cassandra"),
    ("apply: Cassandra", "cpu.apply.cassandra"),
    ("ours", "cpu.apply.ours"),
    ("rows/s at most", "cpu.apply.rows_per_second"),
    ("Cassandra alone", "cpu.apply.rows_per_second_of_cassandra"),
)
CLEANUP_COLUMNS: Sequence[tuple[str, str]] = (
    ("dead rows", "rows"),
    ("plan rows/s", "plan_rows_per_second"),
    ("apply rows/s", "apply_rows_per_second"),
    ("Spark's start, s", "spark_start_seconds"),
    ("whole run, s", "seconds"),
    *_MEMORY_COLUMNS,
)
COUNTER_COLUMNS: Sequence[tuple[str, str]] = (
    ("mailboxes", "mailboxes"),
    ("messages", "messages"),
    ("messages/s, first plan", "plan_messages_per_second"),
    ("messages/s, next plan", "plan_again_messages_per_second"),
    ("mailboxes/s corrected", "apply_mailboxes_per_second"),
    *_MEMORY_COLUMNS,
)
BLOB_COLUMNS: Sequence[tuple[str, str]] = (
    ("blobs", "blobs"),
    ("references", "references"),
    ("copies kept", "keep"),
    ("blobs/s listed", "listed_blobs_per_second"),
    ("references/s", "references_per_second"),
    ("keys/s deleted", "deleted_keys_per_second"),
    ("S3's own limit", "s3_limits.keys_per_second"),
    *_MEMORY_COLUMNS,
)


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> list[str]:
    head = [f"| {' | '.join(title for title, _ in columns)} |", "|" + "---:|" * len(columns)]
    return head + [f"| {' | '.join(_figure(row, path) for _, path in columns)} |" for row in rows]


def _figure(row: Row, path: str) -> str:
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        if "min" in value:
            return f"{_figure(value, 'min')} - {_figure(value, 'max')}"
        return " / ".join(_figure(value, key) for key in value)
    if isinstance(value, list):
        return " ".join(f"{each:,.0f}" if each >= 100 else f"{each:.3g}" for each in value)
    if isinstance(value, bool):
        return cell(value)
    return f"{value:,}" if isinstance(value, int | float) else cell(value)


def _machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = next(
        (
            int(line.split()[1]) // 1024 // 1024
            for line in _lines("/proc/meminfo")
            if line.startswith("MemTotal")
        ),
        None,
    )
    system = next(
        (
            line.partition("=")[2].strip('"')
            for line in _lines("/etc/os-release")
            if line.startswith("PRETTY_NAME")
        ),
        platform.system(),
    )
    return f"{os.cpu_count()} cores ({model}), {memory} GiB, {system}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
