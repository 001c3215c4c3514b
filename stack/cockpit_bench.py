"""`make bench ARGS=cockpit`: the server's time for each page, and that of `queue list`.

Fifty queues whose view holds a million rows, a tenth of them live, with as many messages waiting.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import get_context

from fastapi.testclient import TestClient

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.bench.queues import BenchQueue
from mailslice.bench.spark_runs import settle
from mailslice.cockpit.app import cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.cockpit.views import TABS
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.overview import overview
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores import Stores, open_stores
from mailslice.stores.own.runs import RunRow
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.view.configuration import view_shape

LONGEST = 0.3
"""Seconds of server time, at the 95th percentile."""
_TIMES = 20
_SLICES = 24
_HOUR = timedelta(hours=1)
_MEASUREMENTS = 24
"""Runs of queue_size in the ledger, of each queue."""
_FIGURES_LATE = 60.0
"""Seconds until RabbitMQ's figures are those of the last message."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is. `rows` are in the view, `waiting` of them live."""

    queues: int = 50
    rows: int = 1_000_000
    waiting: int = 100_000


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one page."""

    name: str
    p50: float
    p95: float

    @property
    def line(self) -> str:
        """For the terminal."""
        missed = "" if self.p95 < LONGEST else f" (missed: not under {LONGEST * 1000:.0f})"
        return f"{self.name}: {self.p50 * 1000:.0f} / {self.p95 * 1000:.0f} ms{missed}"


def bench_cockpit(settings: Settings, show: Callable[[str], None], size: Size = Size()) -> int:
    """Measures against these stores, which are removed afterwards; 1 where a page is too slow."""
    with open_stores(settings) as stores:
        names = [QueueName(f"cockpit-{number:02}") for number in range(size.queues)]
        began = time.monotonic()
        fill(stores, names, size)
        show(
            f"cockpit: {size.queues} queues, {size.rows:,} rows, {size.waiting:,} waiting mails, "
            f"filled in {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f}"
        )
        settle(stores)
        timed = measured(settings, stores, names[0], show)
    show(f"cockpit: server time, p50 / p95, load {os.getloadavg()[0]:.1f}:")
    for one in timed:
        show(f"cockpit: {one.line}")
    return int(any(one.p95 >= LONGEST for one in timed))


def fill(stores: Stores, names: Sequence[QueueName], size: Size) -> None:
    """Rows, marks, messages, and a day of measurements for each queue, by a process a core."""
    live = size.waiting // size.queues
    dead = size.rows // size.queues - live
    for name in names:
        queues.create(stores, name)
    _ = stores.own  # creates its tables
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        for _ in processes.map(partial(_fill, stores.settings, live, dead), names):
            pass
    end = time.monotonic() + _FIGURES_LATE
    while {one.ready for one in overview(stores, system_clock)} != {live}:
        if time.monotonic() > end:
            raise StoreUnavailable(f"RabbitMQ does not say that each queue has {live} messages")
        time.sleep(0.5)


def _fill(settings: Settings, live: int, dead: int, name: QueueName) -> None:
    with open_stores(settings) as stores:
        view = BenchQueue(stores, name, view_shape(stores))
        view.fill(dead, _SLICES, dead=True)
        view.fill(live, 1, dead=False)
        for number in range(_MEASUREMENTS):
            stores.own.runs.save(_measurement(name, live, dead, number), timedelta(days=1))
    with blocking_connection(settings.rabbitmq) as connection:  # only now: it has heartbeats
        channel = connection.channel()
        for _ in range(live):
            channel.basic_publish("", RabbitNames(name).work_queue, b"{}")


def measured(
    settings: Settings, stores: Stores, queue: QueueName, show: Callable[[str], None]
) -> list[Timed]:
    """Each page of that queue, and what `queue list` asks. Shows what is not a page's time, too."""
    with open_stores(settings) as others:
        (row,) = MailQueue(others, queue, system_clock).browse(limit=1)
    pages = {
        "overview": "",
        **{f"queue, {tab}": f"queue?name={queue}&tab={tab}" for tab in TABS},
        "queue, mails of a domain": f"queue?name={queue}&domain=bench.*",
        "queue, mails of nobody": f"queue?name={queue}&domain=nobody.*",
        "mail": f"mail?queue={queue}&id={row.enqueue_id}",
        "trend": f"spark?name={queue}",
        "maintenance": "maintenance",
    }
    facts = Facts(lambda: settings)
    client = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))

    def page(address: str) -> None:
        answer = client.get(f"/{address}")
        if not answer.is_success:
            raise StoreUnavailable(f"/{address} answered {answer.status_code}")

    try:
        began = time.perf_counter()
        page("")
        show(f"cockpit: first overview, with connecting: {time.perf_counter() - began:.2f} s")
        timed = [_timed(name, partial(page, address)) for name, address in pages.items()]
    finally:
        facts.close()
    return [*timed, _timed("queue list", lambda: overview(stores, system_clock))]


def _timed(name: str, ask: Callable[[], object]) -> Timed:
    seconds = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    return Timed(name, seconds[_TIMES // 2], seconds[_TIMES * 95 // 100 - 1])


def _measurement(name: QueueName, live: int, dead: int, number: int) -> RunRow:
    """The row of a run of queue_size, as the ledger has it."""
    at = system_clock() - timedelta(hours=number)
    closed = system_clock() - timedelta(days=1, hours=1)
    starts = {slice_start(closed, _HOUR) - _HOUR * back: dead // _SLICES for back in range(_SLICES)}
    slices = [
        {"start": iso(start), "live": 0, "dead": rows, "survivors": 0}
        for start, rows in sorted(starts.items())
    ]
    slices.append({"start": iso(slice_start(at, _HOUR)), "live": live, "dead": 0, "survivors": 0})
    counts = [live // 10] * 10
    report = {
        "run": f"bench-{name}-{number}",
        "duty": "queue_size",
        "queue": name,
        "status": "done",
        "started": iso(at),
        "finished": iso(at),
        "measuredAt": iso(at),
        "size": live,
        "live": live,
        "dead": dead,
        "oldest": iso(at) if live else None,
        "window": 3600,
        "slices": slices,
        "shape": {
            "columns": [str(5 * 2**power) for power in range(10)],
            "total": counts,
            "domains": [
                {"domain": f"d{each}.bench.example", "total": live, "counts": counts}
                for each in range(50)
            ],
        },
    }
    run, text = str(report["run"]), json.dumps(report)
    return RunRow(run, "queue_size", name, at, "done", text, finished=at)
