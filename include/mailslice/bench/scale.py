"""docs/scale.md: what 100 million mails a day need, computed from what `make bench` measured.

A figure that was not measured is not guessed: its rows say so. Times scale by rows and executors,
as the duties split their work by slice or token range.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mailslice.duties.queue_size.advice import MAILS_A_SLICE
from mailslice.model.durations import format_duration
from mailslice.stores.cassandra.ids import IDS_A_REQUEST

Row = Mapping[str, Any]
_KEYS = 1000
"""Of a request of S3: a page of a listing, a bulk delete."""
_DAY = 86_400
_WINDOWS = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300, 3600))


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is assumed. `peak`: the busiest minute over the mean.

    `stored_blobs` and `messages` are of the mailboxes beside the queue.
    """

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
    def peak_rate(self) -> float:
        """Mails a second in the busiest minute."""
        return self.mails_a_day / _DAY * self.peak


def costs_of(measured: Sequence[Row], mail_bytes: int) -> Row:
    """Figures by their names in the JSON, of one machine of two cores; none for what is unknown.

    The hot path at the size nearest to `mail_bytes`, every duty at its largest run.
    """

    def best(bench: str, key: Callable[[Row], float]) -> Row:
        return max((row for row in measured if row["bench"] == bench), key=key, default={})

    return {
        **best("hotpath", lambda row: -abs(row["size"] - mail_bytes)),
        **best("view", lambda row: row["dead"]).get("cleanup", {}),
        **best("blob_gc", lambda row: row["blobs"]),
        **best("counters", lambda row: row["messages"]),
    }


def read_measured(file: Path) -> dict[str, Any]:
    """`{"date", "machine", "rows"}` as `make bench` wrote them; no rows when there is no file."""
    if not file.is_file():
        return {"date": None, "machine": None, "rows": []}
    measured: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return measured


def buckets(deployment: Deployment, window: timedelta) -> int:
    """The fewest that keep a partition of the busiest slice within what is advised."""
    return max(1, -(-int(deployment.peak_rate * window.total_seconds()) // MAILS_A_SLICE))


def processes(rate: float, each: float | None) -> int | None:
    """How many processes that do `each` a second reach the rate."""
    return None if not each else -(-int(rate) // max(1, int(each)))


def hours(items: float, *rates: float | None) -> float | None:
    """Hours that one executor of two cores takes for these passes, one after the other."""
    return sum(items / rate for rate in rates if rate) / 3600 if all(rates) else None


def executors(items: float, rates: Sequence[float | None], limit: timedelta) -> int | None:
    """The fewest of two cores that do all the passes within the limit."""
    alone = hours(items, *rates)
    return None if alone is None else max(1, -(-int(3600 * alone) // int(limit.total_seconds())))


_PAGE = """# Scale

Generated (`make docs`) from docs/performance.json, which `make bench` writes; a test compares.
Unit costs: {measured}.
One process, or one executor of two cores, is taken to do what the measured machine did beside the \
stores it shared its cores with: a floor.
What stands as `-` was not measured.

## {mails:,} mails a day

{assumed}

## Slices and buckets

At most {most:,} mails of the busiest slice in one partition. A window of a minute keeps browse \
and cleanup fine-grained;
take at least as many buckets as Cassandra has nodes ({nodes}), so that the mail of one moment is \
written by all of them.

{slices}

## Workers

{workers}

## Requests and disk a day

{requests}

## Duties

Executors of two cores that end within {night}, and the hours that one alone would take.

{duties}

The cleanup's deletes are one request a partition and its marks one request for each 100, so that \
they grow with slices and mails, not with queues.
Reclaim rewrites each node's files once a week, one node after the other: its hours are those of a \
compaction of these tables, times the nodes.
"""


def scale_page(measured: Mapping[str, Any], deployment: Deployment | None = None) -> str:
    """The page."""
    has = deployment or Deployment()
    costs = costs_of(measured["rows"], has.mail_bytes)
    machine = f", {measured['machine']}" if measured["machine"] else ""
    return _PAGE.format(
        measured=f"{measured['date'] or 'nothing was measured yet'}{machine}",
        mails=has.mails_a_day,
        most=MAILS_A_SLICE,
        nodes=has.nodes,
        night=format_duration(has.night),
        assumed=_table(_assumed(has), "assumed", "value"),
        slices=_table(_slices(has), "slice window", "buckets", "slices a day", "partitions a day"),
        workers=_table(_workers(has, costs), "for the busiest minute", "processes", "cores"),
        requests=_table(_requests(has), "what", "a day", "a second, mean"),
        duties=_table(_duties(has, costs), "duty", "items", "hours of one", "executors"),
    )


def _assumed(has: Deployment) -> Iterable[tuple[object, ...]]:
    rates = f"{has.peak_rate:,.0f} mails/s over {has.mails_a_day / _DAY:,.0f}"
    yield "mean size of a mail", f"{has.mail_bytes / 1024:.0f} KiB"
    yield "busiest minute over the mean", f"{has.peak:g}: {rates}"
    yield "copies of a row, nodes of Cassandra", f"{has.copies}, {has.nodes}"
    yield "bytes of a row on disk, one copy", has.row_bytes
    yield "blobs of queue and mailboxes together", has.stored_blobs
    yield "messages in mailboxes", has.messages


def _slices(has: Deployment) -> Iterable[tuple[object, ...]]:
    for window in _WINDOWS:
        count, slices = buckets(has, window), int(_DAY / window.total_seconds())
        yield format_duration(window), count, slices, slices * count


def _workers(has: Deployment, costs: Row) -> Iterable[tuple[object, ...]]:
    cpu = costs.get("cpu_seconds_per_1000")
    yield "enqueue", processes(has.peak_rate, costs.get("enqueue_rate")), ""
    yield "dequeue and complete", processes(has.peak_rate, costs.get("dequeue_rate")), ""
    yield "CPU of both", "", None if cpu is None else round(has.peak_rate * cpu / 1000)


def _requests(has: Deployment) -> Iterable[tuple[object, ...]]:
    day, stored = has.mails_a_day, has.stored_blobs
    for name, count in {
        "S3 PUT: header and body": 2 * day,
        "S3 GET: header and body": 2 * day,
        f"S3 bulk deletes of up to {_KEYS} keys, at least": -(-2 * day // _KEYS),
        f"S3 list pages of a weekly blob_gc, a {_KEYS:,} keys, a day of seven": -(-stored // _KEYS)
        // 7,
        "Cassandra: rows and marks written": 2 * day,
        "Cassandra: deleted checks": day,
        f"Cassandra: drops of marks, {IDS_A_REQUEST} a request": -(-day // IDS_A_REQUEST),
        "RabbitMQ: confirmed publishes": day,
    }.items():
        yield name, count, f"{count / _DAY:,.0f}"
    for name, size in {
        "Cassandra: disk that a day's rows take until cleanup and reclaim": day
        * has.row_bytes
        * has.copies,
        "S3: bytes in and out": 2 * day * has.mail_bytes,
    }.items():
        yield name, f"{size / 2**30:,.0f} GiB", f"{size / 2**20 / _DAY:,.1f} MiB"


def _duties(has: Deployment, costs: Row) -> Iterable[tuple[object, ...]]:
    day, blobs = has.mails_a_day, has.stored_blobs
    for name, unit, items, *figures in (
        ("queue_cleanup, nightly: plan and apply", "dead rows", day, "plan_rows", "apply_rows"),
        ("blob_gc, weekly: scan of references", "rows", blobs, "references"),
        ("blob_gc, weekly: listing", "keys", blobs, "listed_blobs"),
        ("blob_gc, weekly: deleting 1 in 1,000", "keys", blobs // 1000, "deleted_keys"),
        ("counter_repair, weekly", "messages", has.messages, "plan_again_messages"),
    ):
        rates = [costs.get(f"{figure}_per_second") for figure in figures]
        alone = hours(items, *rates)
        total = None if alone is None else f"{alone:,.1f}"
        yield name, f"{items:,} {unit}", total, executors(items, rates, has.night)


def _table(rows: Iterable[Sequence[object]], *titles: str) -> str:
    def cell(value: object) -> str:
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    lines = [f"| {' | '.join(map(cell, row))} |" for row in (titles, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(titles) - 1), *lines[1:]])
