"""`worker top`: figures of the management API, of workers' records, and of a view if cheap."""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import accumulate
from typing import Any, TypeVar

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.queues import require
from mailslice.cli.output import Output, cell
from mailslice.maintenance.overview import QueueOverview, overview
from mailslice.model.clock import system_clock
from mailslice.model.durations import format_duration
from mailslice.model.errors import StoreUnavailable, TryAgain
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import WorkerRecord
from mailslice.stores.rabbitmq.traffic import Traffic, delayed, parked, traffic
from mailslice.view.live_rows import LiveSummary

MAX_ROWS = 10_000
"""Most rows, with dead ones, that one read of a view may cost (0.1 s). Else `size` is null."""
_INTERVAL = 10.0
_LARGE_VIEW_INTERVAL = 60.0
"""Seconds between two reads of a small view, and of one that was too large."""
_COLUMNS = (
    ("queue", "queue"),
    ("health", "health"),
    ("size", "size"),
    ("oldest", "oldestSeconds"),
    ("ready", "ready"),
    ("unacked", "unacknowledged"),
    ("delayed", "delayed"),
    ("parked", "parked"),
    ("dead", "deadLetters"),
    ("in/s", "enqueueRate"),
    ("out/s", "deliverRate"),
    ("done/s", "completeRate"),
    ("again/s", "redeliverRate"),
    ("workers", "workers"),
    ("handling", "inHandlers"),
    ("longest", "longestSeconds"),
    ("p99", "p99Seconds"),
    ("failed", "notCompleted"),
    ("hops", "delayHops"),
)
_LONGEST_NAME = 24
"""Characters of a queue's name in a line of the table."""

T = TypeVar("T")


class Top:
    """Reads the same stores again and again. No `queues`: all that exist, at each read."""

    def __init__(self, stores: Stores, queues: Sequence[QueueName]) -> None:
        self._stores = stores
        self._requested = queues
        self._known: dict[Hashable, tuple[float, Any]] = {}
        self.away: TryAgain | None = None
        """The error when Cassandra did not answer at the last read: its figures are null then."""

    def rows(self) -> list[dict[str, Any]]:
        """One object a queue, by name. Raises StoreUnavailable without RabbitMQ, UnknownQueue."""
        self.away = None
        moving = traffic(self._stores.management)
        known = self._stores.management.mail_queues()
        for missing in (queue for queue in self._requested if queue not in known):
            require(self._stores, missing)
        queues = tuple(self._requested or known)
        alarms = self._cached("alarms", self._stores.management.alarms)
        # The health is judged by the same rules as in `queue list`.
        overviews = self._cached(
            ("overview", queues),
            lambda: {one.queue: one for one in overview(self._stores, system_clock, queues)},
        )
        workers = self._ask_cassandra(lambda: self._stores.workers_of(queues))
        return [self._row(overviews[queue], moving, alarms, workers) for queue in queues]

    def _row(
        self,
        one: QueueOverview,
        moving: Mapping[str, Traffic],
        alarms: Sequence[str],
        workers: Mapping[QueueName, Sequence[WorkerRecord]] | None,
    ) -> dict[str, Any]:
        queue = one.queue
        records = None if workers is None else workers.get(queue, ())
        names = RabbitNames(queue)
        work, dead = moving.get(names.work_queue), moving.get(names.dead_letter_queue)
        depth, dead_depth = work.depth if work else None, dead.depth if dead else None
        view = MailQueue(self._stores, queue, system_clock)
        summary: LiveSummary | None = self._ask_cassandra(
            lambda: self._cached(("size", queue), lambda: view.live_summary(MAX_ROWS))
        )
        oldest = summary.oldest if summary is not None else work.oldest if work else None
        return {
            "queue": queue,
            "size": summary.size if summary is not None else None,
            "oldestSeconds": None
            if oldest is None
            else max(0.0, round((system_clock() - oldest).total_seconds(), 1)),
            "ready": depth.ready if depth else None,
            "unacknowledged": depth.unacknowledged if depth else None,
            "delayed": delayed(moving, names),
            "parked": parked(moving, names),
            "deadLetters": dead_depth.total if dead_depth else None,
            "consumers": depth.consumers if depth else None,
            "enqueueRate": work.published if work else None,
            "deliverRate": work.delivered if work else None,
            "completeRate": work.acknowledged if work else None,
            "redeliverRate": work.redelivered if work else None,
            "deadLetterRate": dead.published if dead else None,
            **worker_figures(records),
            "problems": [
                *alarms,
                *(f"held: {hold.sentence}" for hold in one.holds),
                *(() if any(not hold.domain for hold in one.holds) else _unconsumed(depth)),
                *_silent(records),
                *_undoing(records),
                *([str(self.away)] if self.away else []),
            ],
            "health": one.verdict.health.value,
            "why": one.verdict.why,
            "next": one.verdict.next,
        }

    def _cached(self, key: Hashable, ask: Callable[[], Any]) -> Any:
        """The answer, kept for 10 or 60 s: for questions that cost more than rates and depths."""
        due, answer = self._known.get(key, (0.0, None))
        if time.monotonic() >= due:
            answer = ask()
            interval = _LARGE_VIEW_INTERVAL if answer is None else _INTERVAL
            self._known[key] = time.monotonic() + interval, answer
        return answer

    def _ask_cassandra(self, question: Callable[[], T]) -> T | None:
        """Cassandra's answer, or None; once it is away it is not asked again in this round."""
        if self.away is None:
            try:
                return question()
            except TryAgain as error:
                self.away = error
        return None


def worker_figures(records: Sequence[WorkerRecord] | None) -> dict[str, Any]:
    """Figures of the live workers: their number, mails in handlers and fetched, times.

    `completed` and `notCompleted` (retried, rejected, bounced) count since their start; `delayHops`
    copies put into a delay level; `undoing` failed enqueues being revoked, `leftBehind` given up.
    """
    if records is None:
        return dict.fromkeys(worker_figures(()))
    alive = [record for record in records if record.is_alive]
    fetched = [(record, mail) for record in alive for mail in record.in_flight]
    begun = [record.age(mail).total_seconds() for record, mail in fetched if mail.begun]
    times = ProcessingTimes()
    for record in alive:
        times.merge(record.times or ProcessingTimes())
    p99 = times.quantile(0.99)
    completed = sum(record.completed for record in alive)
    return {
        "workers": len(alive),
        "inHandlers": len(begun),
        "fetched": len(fetched) - len(begun),
        "longestSeconds": round(max(begun), 1) if begun else None,
        "p99Seconds": None if p99 is None else round(p99, 3),
        "completed": completed,
        "notCompleted": sum(record.settled for record in alive) - completed,
        "delayHops": sum(record.hops for record in alive),
        "undoing": sum(record.undoing for record in alive),
        "leftBehind": sum(record.left_behind for record in alive),
    }


def _unconsumed(depth: Any) -> Iterator[str]:
    if depth is not None and depth.ready and not depth.consumers:
        yield f"nobody consumes {depth.ready} ready messages"


def _silent(records: Sequence[WorkerRecord] | None) -> Iterator[str]:
    for record in records or ():
        if not record.is_alive and record.in_flight:
            silence = format_duration(timedelta(seconds=round(record.silence.total_seconds())))
            in_flight = len(record.in_flight)
            yield f"worker {record.worker} is silent for {silence}; it held {in_flight} mails"


def _undoing(records: Sequence[WorkerRecord] | None) -> Iterator[str]:
    for record in records or ():
        worker = f"worker {record.worker}"
        if record.is_alive and record.undoing:
            waiting = f"{record.undoing} failed enqueues back: their marks wait for a store"
            yield f"{worker} takes {waiting}"
        if record.is_alive and record.left_behind:
            yield f"{worker} gave up taking {record.left_behind} failed enqueues back"


def print_once(out: Output, top: Top) -> None:
    """One object a queue. Raises afterwards when Cassandra did not answer: its figures are null."""
    rows = top.rows()
    if out.as_json:
        out.rows(rows)
    elif rows:
        out.rows([{title: _figure(key, row[key]) for title, key in _COLUMNS} for row in rows])
        for row in rows:
            for problem in row["problems"]:
                out.note(f"{row['queue']}: {cell(problem)}")
    else:
        out.note("there is no mail queue; create one: mailslice queue create QUEUE")
    if top.away is not None:
        raise top.away


def watch(top: Top, interval: float) -> None:
    """A table that fills the terminal, anew every `interval` seconds, until Ctrl-C."""
    rows: list[dict[str, Any]] = []
    with suppress(KeyboardInterrupt), Live("looking", screen=True, auto_refresh=False) as live:
        while True:
            trouble = ""
            try:
                rows = top.rows()
            except StoreUnavailable as error:
                trouble = str(error)
            live.update(table(rows, trouble, live.console.width), refresh=True)
            time.sleep(interval)


def table(rows: Sequence[Mapping[str, Any]], trouble: str, width: int) -> RenderableType:
    """The columns that fit into `width` without cutting a figure; below them the problems."""
    shown = Table(box=SIMPLE, pad_edge=False)
    columns = [[title, *(_figure(key, row[key]) for row in rows)] for title, key in _COLUMNS]
    ends = accumulate(min(max(map(len, one)), _LONGEST_NAME) + len("   ") for one in columns)
    fitting = columns[: sum(end <= width for end in ends)]
    for title, *_ in fitting:
        numeric: Any = {"justify": "right", "no_wrap": True} if title != "queue" else {}
        shown.add_column(title, overflow="fold", **numeric)
    for line in zip(*(figures for _, *figures in fitting), strict=True):
        shown.add_row(*map(Text, line))
    lines = [f"{row['queue']}: {problem}" for row in rows for problem in row["problems"]]
    lines += [trouble] if trouble else []
    if more := len(columns) - len(fitting):
        lines.append(f"{more} more columns need a wider terminal; --json has all")
    return Group(shown, *(Text(cell(line), style="bold red") for line in lines))


def _figure(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key.endswith("Seconds"):
        return f"{value:.3f}s" if value < 1 else format_duration(timedelta(seconds=round(value)))
    return cell(value)
