"""docs/scale.md: what a deployment of 100 million mails a day needs, computed from the unit costs that `make bench` left in docs/performance.json.

A figure that was not measured is not guessed: its rows say so. Times scale by rows and by executors, as the duties split their work by slice or token range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mailslice.duties.queue_size.advice import MAILS_A_SLICE
from mailslice.model.durations import format_duration

Row = Mapping[str, Any]
LISTED, DELETED = 1000, 1000
"""Keys a request of S3: a page of a listing, a bulk delete."""
MARKS_A_REQUEST = 100
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is assumed. `peak`: the busiest minute over the mean; `stored_blobs` and `messages` are of the mailboxes beside the queue."""

    mails_a_day: int = 100_000_000
    mail_bytes: int = 50 * 1024
    row_bytes: int = 600
    peak: float = 3.0
    copies: int = 3
    nodes: int = 12
    stored_blobs: int = 2_000_000_000
    messages: int = 1_000_000_000
    night: timedelta = timedelta(hours=4)

    @property
    def mean_rate(self) -> float:
        """Mails a second."""
        return self.mails_a_day / _DAY

    @property
    def peak_rate(self) -> float:
        """Mails a second in the busiest minute."""
        return self.mean_rate * self.peak


@dataclass(frozen=True, slots=True)
class Costs:
    """Unit costs of one machine of two cores; None: not measured. Rates are a second, CPU seconds are of 1,000 mails."""

    enqueue_rate: float | None = None
    dequeue_rate: float | None = None
    cpu_seconds: float | None = None
    plan_rows: float | None = None
    apply_rows: float | None = None
    list_keys: float | None = None
    scan_rows: float | None = None
    delete_keys: float | None = None
    counter_messages: float | None = None

    @classmethod
    def of(cls, measured: Sequence[Row], mail_bytes: int) -> Costs:
        """From the rows of `make bench`: the hot path at the size nearest to `mail_bytes`, every duty at its largest run."""
        hot = min(
            (row for row in measured if row.get("bench") == "hotpath"),
            key=lambda row: abs(row["size"] - mail_bytes),
            default={},
        )
        view = max(
            (row for row in measured if row.get("bench") == "view"),
            key=lambda row: row["dead"],
            default={},
        ).get("cleanup", {})
        gc = max(
            (row for row in measured if row.get("bench") == "blob_gc"),
            key=lambda row: row.get("blobs", 0),
            default={},
        )
        counters = max(
            (row for row in measured if row.get("bench") == "counters"),
            key=lambda row: row.get("messages", 0),
            default={},
        )
        return cls(
            enqueue_rate=hot.get("enqueue_rate"),
            dequeue_rate=hot.get("dequeue_rate"),
            cpu_seconds=hot.get("cpu_seconds_per_1000"),
            plan_rows=view.get("plan_rows_per_second"),
            apply_rows=view.get("apply_rows_per_second"),
            list_keys=gc.get("listed_blobs_per_second"),
            scan_rows=gc.get("references_per_second"),
            delete_keys=gc.get("deleted_keys_per_second"),
            counter_messages=counters.get("plan_again_messages_per_second"),
        )


def read_measured(file: Path) -> dict[str, Any]:
    """`{"date", "machine", "rows"}` as `make bench` wrote them; no rows when there is no file."""
    found: dict[str, Any] = (
        json.loads(file.read_text(encoding="utf-8"))
        if file.is_file()
        else {"date": None, "machine": None, "rows": []}
    )
    return found


def buckets(deployment: Deployment, window: timedelta) -> int:
    """The fewest that keep a partition of the busiest slice within what is advised."""
    return max(1, -(-int(deployment.peak_rate * window.total_seconds()) // MAILS_A_SLICE))


def processes(rate: float, each: float | None) -> int | None:
    """How many processes that do `each` a second reach the rate."""
    return None if not each else -(-int(rate) // max(1, int(each)))


def hours(items: float, rate: float | None) -> float | None:
    """Hours that one executor of two cores takes."""
    return None if not rate else items / rate / 3600


def executors(items: float, rates: Sequence[float | None], limit: timedelta) -> int | None:
    """The fewest of two cores that do all the passes, one after the other, within the limit."""
    if not all(rates):
        return None
    alone = sum(items / rate for rate in rates if rate)
    return max(1, -(-int(alone) // int(limit.total_seconds())))


def scale_page(measured: Mapping[str, Any], deployment: Deployment | None = None) -> str:
    """The page."""
    has = deployment or Deployment()
    costs = Costs.of(measured["rows"], has.mail_bytes)
    lines = [
        "# Scale",
        "",
        "Generated (`make docs`) from docs/performance.json, which `make bench` writes; a test compares.",
    ]
    lines += [
        f"Unit costs: {measured['date'] or 'nothing was measured yet'}{', ' + measured['machine'] if measured['machine'] else ''}."
    ]
    lines += [
        "One process, or one executor of two cores, is taken to do what the measured machine did beside the stores it shared its cores with: a floor.",
        "What stands as `-` was not measured.",
        "",
        f"## {has.mails_a_day:,} mails a day",
        "",
        *_table(("assumed", "value"), _assumed(has)),
        "",
        "## Slices and buckets",
        "",
        f"At most {MAILS_A_SLICE:,} mails of the busiest slice in one partition. A window of a minute keeps browse and cleanup fine-grained;",
        f"take at least as many buckets as Cassandra has nodes ({has.nodes}), so that the mail of one moment is written by all of them.",
        "",
        *_table(
            ("slice window", "buckets", "slices a day", "partitions a day"),
            [_slices(has, window) for window in _WINDOWS],
        ),
        "",
        "## Workers",
        "",
        *_table(("for the busiest minute", "processes", "cores"), _workers(has, costs)),
        "",
        "## Requests and disk a day",
        "",
        *_table(("what", "a day", "a second, mean"), _requests(has)),
        "",
        "## Duties",
        "",
        f"Executors of two cores that end within {format_duration(has.night)}, and the hours that one alone would take.",
        "",
        *_table(("duty", "items", "hours of one", "executors"), _duties(has, costs)),
        "",
        "The cleanup's deletes are one request a partition and its marks one request for each 100, so that they grow with slices and mails, not with queues.",
        "Reclaim rewrites each node's files once a week, one node after the other: its hours are those of a compaction of these tables, times the nodes.",
    ]
    return "\n".join(lines) + "\n"


_WINDOWS = (timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=5), timedelta(hours=1))


def _assumed(has: Deployment) -> list[tuple[str, ...]]:
    return [
        ("mean size of a mail", f"{has.mail_bytes / 1024:.0f} KiB"),
        (
            "busiest minute over the mean",
            f"{has.peak:g}: {has.peak_rate:,.0f} mails/s over {has.mean_rate:,.0f}",
        ),
        ("copies of a row, nodes of Cassandra", f"{has.copies}, {has.nodes}"),
        ("bytes of a row on disk, one copy", f"{has.row_bytes}"),
        ("blobs of queue and mailboxes together", f"{has.stored_blobs:,}"),
        ("messages in mailboxes", f"{has.messages:,}"),
    ]


def _slices(has: Deployment, window: timedelta) -> tuple[str, ...]:
    count, slices = buckets(has, window), int(_DAY / window.total_seconds())
    return (format_duration(window), f"{count:,}", f"{slices:,}", f"{slices * count:,}")


def _workers(has: Deployment, costs: Costs) -> list[tuple[str, ...]]:
    cores = None if costs.cpu_seconds is None else has.peak_rate * costs.cpu_seconds / 1000
    return [
        ("enqueue", _count(processes(has.peak_rate, costs.enqueue_rate)), ""),
        ("dequeue and complete", _count(processes(has.peak_rate, costs.dequeue_rate)), ""),
        ("CPU of both", "", "-" if cores is None else f"{cores:.0f}"),
    ]


def _requests(has: Deployment) -> Sequence[tuple[str, ...]]:
    day = has.mails_a_day
    keys = 2 * day
    counts = [
        ("S3 PUT: header and body", keys),
        ("S3 GET: header and body", keys),
        (f"S3 bulk deletes of up to {DELETED} keys, at least", -(-keys // DELETED)),
        (
            f"S3 list pages of a weekly blob_gc, a {LISTED:,} keys, a day of seven",
            -(-has.stored_blobs // LISTED) // 7,
        ),
        ("Cassandra: rows and marks written", 2 * day),
        ("Cassandra: deleted checks", day),
        (f"Cassandra: drops of marks, {MARKS_A_REQUEST} a request", -(-day // MARKS_A_REQUEST)),
        ("RabbitMQ: confirmed publishes", day),
    ]
    disk = day * has.row_bytes * has.copies
    sizes = [
        ("Cassandra: disk that a day's rows take until cleanup and reclaim", disk),
        ("S3: bytes in and out", 2 * day * has.mail_bytes),
    ]
    rows = [(what, f"{count:,}", f"{count / _DAY:,.0f}") for what, count in counts]
    return rows + [
        (what, f"{size / 2**30:,.0f} GiB", f"{size / 2**20 / _DAY:,.1f} MiB")
        for what, size in sizes
    ]


def _duties(has: Deployment, costs: Costs) -> Sequence[tuple[str, ...]]:
    passes: list[tuple[str, str, float, Sequence[float | None]]] = [
        (
            "queue_cleanup, nightly: plan and apply",
            "dead rows",
            has.mails_a_day,
            [costs.plan_rows, costs.apply_rows],
        ),
        ("blob_gc, weekly: scan of references", "rows", has.stored_blobs, [costs.scan_rows]),
        ("blob_gc, weekly: listing", "keys", has.stored_blobs, [costs.list_keys]),
        (
            "blob_gc, weekly: deleting 1 in 1,000",
            "keys",
            has.stored_blobs / 1000,
            [costs.delete_keys],
        ),
        ("counter_repair, weekly", "messages", has.messages, [costs.counter_messages]),
    ]
    return [
        (
            name,
            f"{items:,.0f} {what}",
            _hours(items, rates),
            _count(executors(items, rates, has.night)),
        )
        for name, what, items, rates in passes
    ]


def _hours(items: float, rates: Sequence[float | None]) -> str:
    each = [hours(items, rate) for rate in rates]
    return "-" if any(one is None for one in each) else f"{sum(one or 0 for one in each):,.1f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|---|" + "---:|" * (len(head) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
