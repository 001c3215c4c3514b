"""What each page shows, as plain values for its template. Nothing here loads a mail's content."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mailslice.actions.request import MailTexts
from mailslice.cockpit.data_docs import docs_path
from mailslice.cockpit.facts import Facts, Snapshot, TrendPoint
from mailslice.cockpit.fields import fields
from mailslice.cockpit.waiting import HoldingWorker, WaitingMail, why_it_waits
from mailslice.codec.row import epoch_ms, instant
from mailslice.maintenance.artifacts import artifacts, iso, plain
from mailslice.maintenance.health import Health
from mailslice.maintenance.overview import QueueOverview
from mailslice.maintenance.overview import as_json as overview_json
from mailslice.maintenance.postal_health import as_json as postal_json
from mailslice.maintenance.registry import DutyEntry, load, names
from mailslice.model.errors import BadInput, TryAgain
from mailslice.model.mail import BlobId, EnqueueId, QueueName, ViewRow, parse_enqueue_id

if TYPE_CHECKING:
    from mailslice.admin.filters import MailFilter
    from mailslice.stores import Stores
    from mailslice.view.live_rows import Position

TABS = {
    "mails": "Mails",
    "domains": "Domains",
    "slices": "Slices",
    "stuck": "Set aside",
    "workers": "Workers",
    "history": "History",
}
PAGE = 100
"""Mails of one page."""
_SECONDS = 0.1
"""How long one page may look for mails that match; it then says that it did not see all."""
PRESENT, LOST = "present", "content lost"
NEWEST = 20
"""Runs of one list."""


@dataclass(frozen=True, slots=True)
class MailsFilter:
    """What the form of the mails' list says."""

    sender: str | None = None
    recipient: str | None = None
    domain: str | None = None
    mail: str | None = None
    older_than: str | None = None
    slice: str | None = None
    """Start of the slice whose mails alone are shown."""

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return self != MailsFilter()

    def parsed(self) -> MailFilter:
        """All but the slice. Raises BadInput naming the field."""
        texts = {"name" if n == "mail" else n: v for n, v in asdict(self).items() if n != "slice"}
        return MailTexts(**texts).parsed()

    @property
    def slice_start(self) -> datetime | None:
        """Raises BadInput for what is no time with its zone."""
        if self.slice is None:
            return None
        with suppress(ValueError):
            start = datetime.fromisoformat(self.slice)
            if start.tzinfo is not None:
                return start
        raise BadInput(f"slice {self.slice!r}: allowed is a time as 2026-11-23T11:00:00+00:00")


@dataclass(frozen=True, slots=True)
class MailsPage:
    """Envelopes. `cut`: why these may not be all; `after`: from where the next page goes on.

    `measured`: slices that had no live mail by a measurement of that time were not read.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    cut: str | None = None
    after: str | None = None
    measured: datetime | None = None


def mails(
    facts: Facts, one: QueueOverview, wanted: MailsFilter, after: str | None = None
) -> MailsPage:
    """The oldest that match, behind the mail or position `after`. Stops after a page, and where it
    would read too much or for too long.
    """
    from mailslice.admin.mail_queue import MailQueue
    from mailslice.view.live_rows import PageReading

    mail_filter, now, end = wanted.parsed(), facts.now, time.monotonic() + _SECONDS
    reading, position = PageReading(), _position(after) if after else None
    of_slice = wanted.slice_start
    with facts.stores() as stores:
        queue = MailQueue(stores, one.queue, lambda: now)
        measured, is_skipped = _without_mails(one, queue.shape.largest_window, now)
        if of_slice is not None:
            measured, is_skipped = None, lambda start: start != of_slice
        found: list[ViewRow] = []
        cut, latest = None, mail_filter.latest(now)
        for row in queue.page(reading, PAGE + 1, latest, position, is_skipped):
            if len(found) == PAGE:
                cut = "more follow"
                break
            start = row.partition.slice_start
            position = start, row.enqueued_time or start, row.enqueue_id
            if mail_filter.matches(row, now):
                found.append(row)
            elif time.monotonic() > end:
                cut = _so_far(position)
                break
        else:
            if reading.position is not None:
                position, cut = reading.position, _so_far(reading.position)
        if reading.is_cut:
            cut = f"{cut}; of a slice with more than {reading.ids:,} rows some are left out"
        following = _cursor(position) if isinstance(position, tuple) else None
        lines = _lines(stores, one.queue, found)
        return MailsPage(lines, cut, following if cut else None, measured)


def _so_far(position: Position) -> str:
    """How far a page came that did not come to its end."""
    return f"it looked as far as mails of {position[1]:%Y-%m-%d %H:%M} UTC, and more follow"


def _without_mails(
    one: QueueOverview, window: timedelta, now: datetime
) -> tuple[datetime | None, Callable[[datetime], bool]]:
    """The time of the newest measurement, and whether the slice of a start had no live mail then,
    and no row can have come since.
    """
    from mailslice.view.live_rows import settled_before

    report = one.reports.get("queue_size", {})
    if (at := _moment(report.get("measuredAt"))) is None:
        return None, lambda _: False
    oldest, settled = _moment(report.get("oldest")), settled_before(min(at, now), window)
    live = {_moment(row["start"]): row["live"] for row in report.get("slices", ())}
    # Slices older than these are summed up in the report; a mail's slice began within the window.
    first = min((start for start in live if start), default=settled)
    oldest = settled if oldest is None else oldest - window

    def is_skipped(start: datetime) -> bool:
        return start <= settled and (start < oldest or (start >= first and not live.get(start)))

    return at, is_skipped


def _cursor(position: Position) -> str:
    start, enqueued, id_ = position
    return f"{epoch_ms(start)}.{epoch_ms(enqueued)}.{id_}"


def _position(text: str) -> Position | EnqueueId:
    """Raises BadInput for what `_cursor` did not make, and is no id."""
    start, _, rest = text.partition(".")
    enqueued, _, id_ = rest.partition(".")
    if not id_:
        return parse_enqueue_id(text)
    if not (start.isdecimal() and enqueued.isdecimal() and len(start) < 15 > len(enqueued)):
        raise BadInput(f"after={text!r} is no position of a page")
    return instant(int(start)), instant(int(enqueued)), parse_enqueue_id(id_)


def mail(facts: Facts, one: QueueOverview, id_: str) -> dict[str, Any] | None:
    """One live mail with `why` it waits, and `content`: present, lost, or why nobody knows; None
    where it is not live.
    """
    from mailslice.admin.mail_queue import MailQueue

    queue = one.queue
    with facts.stores() as stores:
        rows = MailQueue(stores, queue, lambda: facts.now).find(enqueue_id=parse_enqueue_id(id_))
        if not rows:
            return None
        item, (line,) = rows[0].item, _lines(stores, queue, rows)
        blobs = (item.header_blob_id, item.body_blob_id)
        attributes = item.mail.attributes.items()
        return {
            **line,
            "why": why_it_waits(_waiting(stores, one, rows[0], line, facts.now)),
            "content": _content(stores, blobs),
            "blobs": blobs,
            "slice": rows[0].partition.slice_start,
            "bucket": rows[0].partition.bucket,
            "error": item.mail.error_message,
            "remoteHost": item.mail.remote_host,
            "remoteAddr": item.mail.remote_addr,
            "attributes": {name: value.decode("utf-8", "replace") for name, value in attributes},
        }


def _content(stores: Stores, blobs: Iterable[BlobId]) -> str:
    try:
        return PRESENT if all(map(stores.blobs.exists, blobs)) else LOST
    except TryAgain as error:
        return f"nobody knows whether its content is there: {error}"


def _waiting(
    stores: Stores, one: QueueOverview, row: ViewRow, line: Mapping[str, Any], now: datetime
) -> WaitingMail:
    holder = next(
        (
            HoldingWorker(record.worker, record.age(mail), mail.stage, mail.attempt, record.silence)
            if not record.is_alive
            else HoldingWorker(record.worker, record.age(mail), mail.stage, mail.attempt)
            for record in stores.worker_records(one.queue)
            for mail in record.in_flight
            if mail.enqueue_id == row.enqueue_id and not mail.returned
        ),
        None,
    )
    return WaitingMail(
        now=now,
        due=line["due"],
        attempts=line["attempts"],
        answer=line["answer"],
        holder=holder,
        consumers=one.consumers,
        dead_letters=one.dead_letters,
        is_lost=one.verdict.health is Health.LOST,
    )


def _lines(stores: Stores, queue: QueueName, rows: Sequence[ViewRow]) -> list[dict[str, Any]]:
    """Envelopes, attempts that failed, and when delayed mails are due. Creates no table."""
    from mailslice.stores.cassandra.own import DelayedMails, DelayState

    delayed = DelayedMails.existing(stores.cassandra, stores.settings)
    states = delayed.states(queue, [row.enqueue_id for row in rows]) if delayed and rows else {}
    never = DelayState(None, 0, "")
    return [
        {
            "id": row.enqueue_id,
            "name": row.item.mail.name,
            "sender": row.item.mail.sender,
            "recipients": row.item.mail.recipients,
            "state": row.item.mail.state,
            "enqueued": row.enqueued_time,
            "due": state.due,
            "attempts": state.failures,
            "answer": state.answer,
        }
        for row in rows
        for state in (states.get(row.enqueue_id, never),)
    ]


def content(facts: Facts, queue: QueueName, id_: str) -> Iterator[bytes] | None:
    """The bytes of a live mail in pieces; None where it is not live."""
    from mailslice.admin.mail_queue import MailQueue

    with facts.stores() as stores:
        mail_queue = MailQueue(stores, queue, lambda: facts.now)
        rows = mail_queue.find(enqueue_id=parse_enqueue_id(id_))
        return mail_queue.pieces(rows[0]) if rows else None


def domains(one: QueueOverview) -> dict[str, Any]:
    """Domains by age, of the newest measurement."""
    report = one.reports.get("queue_size", {})
    shape = report.get("shape")
    counts = [count for row in (shape or {}).get("domains", ()) for count in row["counts"]]
    return {
        "shape": shape,
        "measured_at": _moment(report.get("measuredAt")),
        "live": report.get("live"),
        "most": max(counts, default=0),
    }


def slices(one: QueueOverview) -> dict[str, Any]:
    """Slices on a time axis, of the newest measurement."""
    report = one.reports.get("queue_size", {})
    rows = [{**row, "start": _moment(row["start"])} for row in report.get("slices", ())]
    chart = {
        "x": [round(row["start"].timestamp()) for row in rows],
        "live": [row["live"] for row in rows],
        "dead": [row["dead"] for row in rows],
        "window": report.get("window"),
    }
    measured = _moment(report.get("measuredAt"))
    return {"slices": rows[::-1][: NEWEST * 5], "chart": chart, "measured_at": measured}


def workers(stores: Stores, queue: QueueName) -> dict[str, Any]:
    """Workers of the last day, those with the most mails first, and what they hold."""
    found = []
    for record in stores.worker_records(queue):
        held = [
            {
                "id": mail.enqueue_id,
                "name": mail.name,
                "stage": mail.stage or "waits for a handler",
                "held": record.age(mail),
                "attempt": mail.attempt,
            }
            for mail in sorted(record.in_flight, key=record.age, reverse=True)
        ]
        found.append(
            {
                "worker": record.worker,
                "host": record.host,
                "pid": record.pid,
                "alive": record.is_alive,
                "silence": record.silence,
                "mails": held,
                "longest": held[0]["held"] if held else None,
                "completed": record.completed,
                "settled": record.settled,
            }
        )
    return {"workers": sorted(found, key=lambda one: (-len(one["mails"]), one["worker"]))}


def stuck(stores: Stores, queue: QueueName) -> dict[str, Any]:
    """Mails in quarantine, the oldest first. Creates no table."""
    from mailslice.admin.quarantine import Quarantine
    from mailslice.model.clock import system_clock
    from mailslice.stores.cassandra.own import QuarantineTable

    if QuarantineTable.existing(stores.cassandra, stores.settings) is None:
        return {"stuck": []}
    waiting = Quarantine(stores, queue, system_clock).waiting()
    return {"stuck": sorted(waiting, key=lambda mail: (mail.since, mail.enqueue_id))}


def history(stores: Stores, queue: QueueName) -> dict[str, Any]:
    """The newest runs of all duties on this queue."""
    runs = stores.existing_runs()
    rows = [row for of in runs.newest(NEWEST, names(), [queue]) for row in of] if runs else []
    newest = sorted(rows, key=lambda row: row.started, reverse=True)[:NEWEST]
    return {"runs": [run_line(json.loads(row.report)) for row in newest]}


def all_runs(stores: Stores) -> list[dict[str, Any]]:
    """The newest run of every duty and queue, newest first."""
    runs = stores.existing_runs()
    rows = [row for newest in runs.newest(1) for row in newest] if runs else []
    rows.sort(key=lambda row: row.started, reverse=True)
    return [run_line(json.loads(row.report)) for row in rows]


def runs_of(stores: Stores, duty: str, dag_run: str) -> list[dict[str, Any]]:
    """The reports of one Airflow run, one a queue."""
    runs = stores.existing_runs()
    rows = runs.list(duty, None, NEWEST * 10) if runs else []
    return [run_line(json.loads(row.report)) for row in rows if row.dag_run == dag_run]


def run_line(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report as lists of runs show it. `lasted` is a timedelta, `docs` a path below docs/."""
    started, finished = _moment(report.get("started")), _moment(report.get("finished"))
    return {
        **{
            name: report.get(name)
            for name in ("run", "dagRun", "duty", "queue", "status", "message", "applied", "who")
        },
        "reason": report.get("reason"),
        "started": started,
        "lasted": finished - started if started and finished else None,
        "docs": docs_path(report.get("dataDocs")),
    }


def alerts(queues: Iterable[QueueOverview], since: datetime) -> list[dict[str, Any]]:
    """What the newest reports of all queues say, since yesterday, the newest first."""
    found = [
        {"queue": one.queue, "text": alert["text"], "since": _moment(alert["since"])}
        for one in queues
        for report in one.reports.values()
        if (_moment(report.get("finished")) or since) >= since
        for alert in report.get("alerts") or ()
    ]
    return sorted(found, key=lambda alert: alert["since"], reverse=True)


def spark(points: Sequence[TrendPoint]) -> dict[str, Any]:
    """The points of a line in a box of 96 by 20."""
    if len(points) < 2:
        return {"line": ""}
    first, last = points[0].at, points[-1].at
    span = max((last - first).total_seconds(), 1.0)
    most = max(1, *(point.size for point in points))
    line = " ".join(
        f"{(point.at - first).total_seconds() / span * 96:.1f},{20 - point.size / most * 19:.1f}"
        for point in points
    )
    return {"line": line, "first": points[0].size, "last": points[-1].size, "most": most}


def form(entry: DutyEntry) -> dict[str, Any]:
    """The params of a duty, as the form asks for them."""
    return {"duty": entry.name, "summary": entry.summary, "fields": fields(entry)}


def duties(
    dag_of: Callable[[str], str], schedules: Mapping[str, Any], runs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every duty with its schedule and its newest run."""
    found = []
    for name in names():
        schedule = schedules.get(dag_of(name))
        found.append(
            {
                "name": name,
                "dag": dag_of(name),
                "summary": load(name).summary,
                "schedule": None if schedule is None else schedule.summary or "by hand",
                "paused": schedule is not None and schedule.paused,
                "next": schedule and schedule.next,
                "last": next((run for run in runs if run["duty"] == name), None),
            }
        )
    return found


def count(facts: Facts, queue: QueueName, most: int) -> int | None:
    """The exact size; None where more than `most` rows would have to be read."""
    from mailslice.admin.mail_queue import MailQueue

    with facts.stores() as stores:
        glance = MailQueue(stores, queue, lambda: facts.now).live_summary(most)
    return None if glance is None else glance.size


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """The overview, for scripts."""
    queues = [overview_json(one) for one in snapshot.queues]
    postal = snapshot.postal and postal_json(snapshot.postal)
    found = {"at": snapshot.at, "problem": snapshot.problem, "queues": queues, "postal": postal}
    return dict(json.loads(json.dumps(found, default=plain)))


def record_content_access(facts: Facts, who: str, queue: QueueName, id_: str) -> None:
    """Keep who looked at the content of which mail, before it is shown."""
    now = facts.now
    about = {"time": iso(now), "who": who, "action": "mail content", "queue": queue, "mail": id_}
    name = f"decisions/{now:%Y-%m-%d}/{now:%H%M%S}-{secrets.token_hex(4)}.json"
    artifacts(facts.settings).write(name, json.dumps(about).encode() + b"\n")


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def since_yesterday(now: datetime) -> datetime:
    """A day ago."""
    return now - timedelta(days=1)
