"""docs/performance.md and its JSON: one table a section, whose columns are fields of the JSON."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailslice.bench.curves import curves_svg
from mailslice.cli.output import cell, iso
from mailslice.model.clock import system_clock

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the rows of one bench, or of the objects in their field `part`."""

    text: str
    bench: str
    columns: str
    part: str = ""
    title: str = ""

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """Those of the section, with the size of the row that they are a part of."""
        parts: list[Row] = []
        for row in rows:
            part = row.get(self.part) if self.part else row
            if row["bench"] == self.bench and part:
                several = part if isinstance(part, list) else [part]
                parts += [{"size": row.get("size"), **each} for each in several]
        return parts


_MEMORY = "peak_mib peak_jvm_mib jvm_heap peak_python_mib"
SECTIONS = (
    Section(
        "A dequeue is dequeue + complete; its latency, in ms, begins when the broker delivers, so "
        "it holds the wait among the mails in flight. Medians of the repeats; `runs`: least and "
        "most.",
        "hotpath",
        "size rtt_ms count enqueue_rate runs.enqueue_rate enqueue_ms dequeue_rate "
        "runs.dequeue_rate dequeue_ms peak_mib",
        title="Hot path",
    ),
    Section(
        "Before it, unmeasured: rounds there and back, until four needed no less CPU than the best "
        "before (level), or the time was up.",
        "hotpath",
        "size seconds mails level cpu_seconds_per_1000_of_rounds",
        "warm_up",
    ),
    Section(
        "CPU seconds per 1,000 mails, enqueue / dequeue, of worker and stores; the rates at which "
        "those would keep all cores busy, and the share of that which was reached.",
        "hotpath",
        "size enqueue_cpu_seconds_per_1000 dequeue_cpu_seconds_per_1000 "
        "stores_cpu_seconds_per_1000.cassandra stores_cpu_seconds_per_1000.rabbitmq "
        "stores_cpu_seconds_per_1000.s3 cpu_bound_rate share_of_cpu_bound_rate",
    ),
    Section(
        "Each store alone, operations a second, in the same run, by the same clients, with the "
        "same sizes and mails in flight (a mail is two blobs).",
        "hotpath",
        "s3_puts s3_gets s3_bulk_deletes view_inserts view_reads view_marks confirmed_publishes "
        "acked_deliveries",
        "limits",
    ),
    Section(
        "Latencies at a share of the peak rate: from when an enqueue, or the publishing of a "
        "message by another process, was due.",
        "hotpath",
        "size load count enqueue_rate enqueue_ms dequeue_rate dequeue_ms",
        "paced",
    ),
    Section(
        "Several processes against one queue; CPU of all of them; `rest` of the cores was idle.",
        "hotpath",
        "size processes enqueue_rate enqueue_cpu_seconds_per_1000 enqueue_share_of_cores.rest "
        "dequeue_rate dequeue_cpu_seconds_per_1000 dequeue_share_of_cores.rest peak_mib",
        "scaling",
    ),
    Section(
        "By mails in flight: `fixed` gives S3 all of them at once, `adaptive` as many requests as "
        "it bears (ADR 58). In flight: from when the first request was let in.",
        "hotpath",
        "in_flight window enqueue_rate enqueue_ms enqueue_in_flight_ms dequeue_rate dequeue_ms "
        "window_limit",
        "curve",
    ),
    Section(
        "64 asked for: what follows latency, by the fixed window with the most enqueues a second.",
        "hotpath",
        "asked best ratio.enqueue_rate ratio.enqueue_ms_p99 ratio.enqueue_in_flight_ms_p99 "
        "ratio.dequeue_rate ratio.dequeue_ms_p99",
        "window",
    ),
    Section(
        "With many mails waiting: enqueues before and while, and a drain of all, by its tenths.",
        "hotpath",
        "waiting enqueue_rate_alone enqueue_ms_alone enqueue_rate enqueue_ms drain_rate "
        "drain_rate_of_tenths peak_mib",
        "waiting",
    ),
    Section(
        "By S3 server and way. Tuned: 32 threads, a large heap; untuned: 200 threads, 512 MiB. "
        "Cold: that server alone was just started. Far: a proxy adds 20 ms. Ratio: to the first "
        "server, warm and near, with as many in flight.",
        "s3",
        "server state way in_flight enqueue_rate enqueue_ms dequeue_rate dequeue_ms "
        "ratio.enqueue_rate ratio.enqueue_ms_p99 ratio.dequeue_rate ratio.dequeue_ms_p99 "
        "window_limit",
        title="S3",
    ),
    Section(
        "The client for small objects by obstore, in turn on the same stores: rates, and CPU of "
        "the worker.",
        "clients",
        "ratio.enqueue_rate ratio.dequeue_rate ratio.enqueue_cpu_seconds_per_1000 "
        "ratio.dequeue_cpu_seconds_per_1000 ratio.s3_puts_cpu_seconds_per_1000 "
        "ratio.s3_gets_cpu_seconds_per_1000",
    ),
    Section(
        "Delayed mails: hops through delay levels, and how late.",
        "delays",
        "delay hops_a_mail late_ms cpu_seconds_per_1000",
        "measured",
        title="Delays and relay",
    ),
    Section("Hops of delays that were not waited for.", "delays", "delay hops", "computed"),
    Section(
        "Relay to a server that is a round trip away: kept connections by one mail a connection.",
        "relay",
        "rttMs recipients concurrency oneMailAConnection.mailsPerSecond "
        "keptConnections.mailsPerSecond ratio keptConnections.cpuMsAMail",
    ),
    Section(
        "Live mails among dead rows, before and after a cleanup; rates are rows read a second. "
        "Cassandra has come to rest before; marks of the largest size are read from disk.",
        "view",
        "dead before.size_seconds before.size_rows_per_second before.browse_seconds "
        "before.browse_rows_per_second after.size_seconds after.browse_seconds",
        title="Counting, browsing and cleaning the view",
    ),
    Section(
        "CPU of both, before: microseconds a row, Cassandra's / ours; rows a second that would keep "
        "all cores busy, by both / by Cassandra alone.",
        "view",
        "dead before.cpu.size before.cpu.browse",
    ),
    Section(
        "The cleanup, Spark's start before it. Memory: the most of all processes, of the JVM (it "
        "grows to its heap), and of Python.",
        "view",
        f"rows plan_rows_per_second apply_rows_per_second spark_start_seconds seconds {_MEMORY}",
        "cleanup",
    ),
    Section(
        "Its CPU, as above.",
        "view",
        "rows cpu.plan cpu.apply",
        "cleanup",
    ),
    Section(
        "counter_repair: messages compared and counted, mailboxes corrected. The first run starts "
        "Spark.",
        "counters",
        "mailboxes messages plan_messages_per_second plan_again_messages_per_second "
        f"apply_mailboxes_per_second {_MEMORY}",
        title="Duties",
    ),
    Section(
        "blob_gc: a quarter of the blobs are orphans; beside it S3 alone, a HEAD and a delete for "
        "each key (and a copy, where copies are kept).",
        "blob_gc",
        "blobs references keep listed_blobs_per_second references_per_second "
        f"deleted_keys_per_second s3_limits.keys_per_second deleted_share_of_limit {_MEMORY}",
    ),
    Section(
        "A sweep of deleted marks without a row: the apply step that lists them, and that of the "
        "next run, which drops them (ADR 41). CPU: microseconds a mark.",
        "marks",
        "rows listed_marks_per_second listed_cpu.cassandra listed_cpu.ours "
        f"dropped_marks_per_second dropped_cpu.cassandra dropped_cpu.ours {_MEMORY}",
    ),
)


def write_page(file: Path, rows: Sequence[Row]) -> None:
    """The page, its JSON and its picture, side by side."""
    file.write_text(page_text(rows) + "\n", encoding="utf-8")
    measured = {"date": iso(system_clock())[:10], "machine": machine(), "rows": rows}
    file.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".svg").write_bytes(curves_svg(rows))


def page_text(rows: Sequence[Row]) -> str:
    """The page; sections that nothing was measured of are left out."""
    lines = [
        "# Performance",
        "",
        f"Measured by `make bench` on {iso(system_clock())[:10]}: {machine()}.",
        "Client, Cassandra, RabbitMQ, S3 and Spark share the machine: compare figures of one run,",
        "not with those of other machines. Some parts alone (ADR 64):",
        '`make bench ARGS="all --part curve,far --write docs/performance.md"`.',
    ]
    title = ""
    for section in SECTIONS:
        title = section.title or title
        if shown := section.rows(rows):
            lines += ["", f"## {title}"] if title else []
            lines += ["", section.text, "", *table(section.columns.split(), shown)]
            title = ""
    return "\n".join([*lines, "", "![Seconds by rows](performance.svg)"])


def table(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Markdown; a column is a field of the rows, or a path to it."""
    head = " | ".join(column.replace("_", " ").replace(".", ": ") for column in columns)
    lines = [f"| {' | '.join(_text(_at(row, column)) for column in columns)} |" for row in rows]
    return [f"| {head} |", "|" + "---:|" * len(columns), *lines]


def _at(row: Row, path: str) -> Any:
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        if "min" in value:
            return f"{_text(value['min'])} - {_text(value['max'])}"
        return " / ".join(_text(each) for each in value.values())
    if isinstance(value, list):
        return " ".join(f"{each:,.0f}" if each >= 100 else f"{each:.3g}" for each in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return cell(value)
    return f"{value:,}"


def machine() -> str:
    """Cores, memory, system, Python."""

    def field(path: str, pattern: str, otherwise: str) -> str:
        try:
            match = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            match = None
        return match[1] if match else otherwise

    model = field("/proc/cpuinfo", r"^model name\s*:\s*(.+)$", platform.machine())
    kib = int(field("/proc/meminfo", r"^MemTotal:\s+(\d+)", "0"))
    system = field("/etc/os-release", r'^PRETTY_NAME="?([^"\n]+)', platform.system())
    python = platform.python_version()
    return f"{os.cpu_count()} cores ({model}), {kib // 2**20} GiB, {system}, Python {python}"
