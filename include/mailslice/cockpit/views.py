"""What each page shows, as plain values for its template. Nothing here loads a mail's content."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.quarantine import in_quarantine
from mailslice.cockpit.data_docs import docs_path
from mailslice.cockpit.facts import Facts, Snapshot, TrendPoint
from mailslice.cockpit.mails import moment_of
from mailslice.cockpit.wait_reasons import why_it_waits
from mailslice.maintenance.artifacts import FILES, RunFolder, artifacts, json_value
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.liveness import Stuck
from mailslice.maintenance.mail_trace import NO, RABBITMQ, Trace, TracedMail, events_of
from mailslice.maintenance.overview import QueueOverview, newest_report
from mailslice.maintenance.overview import as_json as overview_json
from mailslice.maintenance.params import form_shapes
from mailslice.maintenance.postal_health import as_json as postal_json
from mailslice.maintenance.registry import DutyEntry, load, names
from mailslice.maintenance.run_request import run_of_dag
from mailslice.model.clock import system_clock
from mailslice.model.errors import STORE_ERRORS, ContentMissing, PlanRefused
from mailslice.model.mail import EnqueueId, QueueName, parse_enqueue_id
from mailslice.model.slices import slice_start
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DelayState

TABS = {
    "mails": "Mails",
    "domains": "Domains",
    "slices": "Slices",
    "stuck": "Set aside",
    "workers": "Workers",
    "history": "History",
}
PRESENT, LOST = "present", "content lost"
READ_ONLY = {"queue_size", "queue_audit"}
"""Duties that change nothing: they need no approval."""
NEWEST = 20
"""Runs of one list."""
AT_ONCE = 8
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
COUNTS = ("live", "dead", "survivors")
"""Counts of a slice that the chart draws."""
_REPORT_FIELDS = "run dagRun duty queue status message applied bytes who reason".split()


def mail(facts: Facts, one: QueueOverview, id_: str) -> dict[str, Any] | None:
    """One live mail: `why` it waits, and its `content`: present, lost, or why that is unknown. None
    for a mail that is not live.
    """
    queue = one.queue
    with facts.stores() as stores:
        rows = MailQueue(stores, queue, lambda: facts.now).find(enqueue_id=parse_enqueue_id(id_))
        if not rows:
            return None
        row, states = rows[0], stores.delay_states(queue, [rows[0].enqueue_id])
        state = states.get(row.enqueue_id, DelayState())
        holder = _holder(stores, queue, row.enqueue_id)
        attributes = row.item.mail.attributes.items()
        blobs = (row.item.header_blob_id, row.item.body_blob_id)
        try:
            content_state = PRESENT if all(map(stores.blobs.exists, blobs)) else LOST
        except STORE_ERRORS as error:
            facts.close(stores)
            content_state = f"it is unknown whether its content is there: {error}"
        return {
            "row": row,
            "envelope": row.item.mail,
            "due": state.due,
            "why": why_it_waits(facts.now, state, one, holder, row.item.mail.recipients),
            "content": content_state,
            "attributes": {name: value.decode("utf-8", "replace") for name, value in attributes},
        }


def _holder(stores: Stores, queue: QueueName, id_: EnqueueId) -> Stuck | None:
    """The first worker whose record has the mail, alive or not."""
    pairs = ((record, one) for record in stores.worker_records(queue) for one in record.in_flight)
    matching = (pair for pair in pairs if pair[1].enqueue_id == id_ and not pair[1].returned)
    return next((Stuck(*pair) for pair in matching), None)


def trace(facts: Facts, queue: QueueName, id_: str) -> list[dict[str, object]]:
    """What stores and logs keep of a mail, the oldest first. Does not ask RabbitMQ: it would have
    to deliver messages to show them.
    """
    target = TracedMail(ids={parse_enqueue_id(id_)})
    with facts.stores() as stores:
        entries = Trace(stores, target, [queue], without={RABBITMQ}).run(
            events_of(target, facts.settings.log.files)
        )
    return [entry | {"time": _moment(entry["time"])} for entry in entries if entry["answer"] != NO]


def _moment(time: object) -> datetime | None:
    """A store's time, or that of a log's line, which anybody may have written: None if wrong."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(str(time)).astimezone(UTC)
    return None


def content(facts: Facts, queue: QueueName, id_: str) -> Iterator[bytes] | None:
    """The bytes of a live mail in pieces; None where it is not live. Raises ContentMissing."""
    with facts.stores() as stores:
        rows = MailQueue(stores, queue, lambda: facts.now).find(enqueue_id=parse_enqueue_id(id_))
        if not rows:
            return None
        item = rows[0].item
        if not all(map(stores.blobs.exists, (item.header_blob_id, item.body_blob_id))):
            raise ContentMissing(f"{LOST}: a blob of {id_} is missing")

    def pieces() -> Iterator[bytes]:
        with facts.stores() as stores:  # until the last byte: nobody closes them meanwhile
            yield from MailQueue(stores, queue, lambda: facts.now).pieces(rows[0])

    return pieces()


def domains(one: QueueOverview) -> dict[str, Any]:
    """Domains by age, from the newest measurement."""
    report = one.reports.get("queue_size", {})
    shape = report.get("shape")
    counts = [count for row in (shape or {}).get("domains", ()) for count in row["counts"]]
    return {
        "shape": shape,
        "measured_at": moment_of(report.get("measuredAt")),
        "live": report.get("live"),
        "maximum": max(counts, default=0),
    }


def cleanups(stores: Stores, queue: QueueName) -> Sequence[Mapping[str, Any]]:
    """The newest reports of queue_cleanup, the newest first. One partition is read."""
    return Ledger(stores, stores.settings).list("queue_cleanup", queue, NEWEST)


def slices(one: QueueOverview, cleanups: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Slices on a time axis: those of the newest measurement, and those that cleanups passed."""
    report = one.reports.get("queue_size", {})
    cleaned, before = _cleaned(cleanups, timedelta(seconds=report.get("window") or 0))
    none = dict.fromkeys((*COUNTS, "cleaned"))
    rows = {start: {**none, "start": start, "cleaned": run} for start, run in cleaned.items()}
    for row in report.get("slices", ()):
        start = datetime.fromisoformat(row["start"])
        rows[start] = {**none, **row, "start": start, "cleaned": cleaned.get(start)}
    in_order = [row for _, row in sorted(rows.items())]
    chart = {
        "x": [round(start.timestamp()) for start in sorted(rows)],
        **{name: [row[name] for row in in_order] for name in COUNTS},
        "cleaned": [row["cleaned"] and round(row["cleaned"].timestamp()) for row in in_order],
        "window": report.get("window"),
    }
    return {
        "slices": in_order[::-1][: NEWEST * 5],
        "chart": chart,
        "measured_at": moment_of(report.get("measuredAt")),
        "cleaned_before": before,
    }


def _cleaned(
    reports: Iterable[Mapping[str, Any]], window: timedelta
) -> tuple[dict[datetime, datetime], datetime | None]:
    """The newest slices that contentStart passed, as no row was left: slice -> end of the run that
    moved it. And the newest contentStart.

    A report names no slice that was emptied after contentStart.
    """
    cleaned: dict[datetime, datetime] = {}
    before = None
    for report in reports:
        first, end = (
            moment_of((report.get(name) or {}).get("contentStart")) for name in ("before", "after")
        )
        finished = moment_of(report.get("finished"))
        before = before or end
        if first is None or end is None or finished is None or not window:
            continue
        while end > first and len(cleaned) < NEWEST * 5:
            end = slice_start(end - min(window, end - first), window)
            cleaned[end] = finished
    return cleaned, before


def workers(stores: Stores, queue: QueueName) -> dict[str, Any]:
    """Records of the last day, that with most mails first, each with its mails, oldest first."""
    with_mails = [
        (record, sorted(record.in_flight, key=record.age, reverse=True))
        for record in stores.worker_records(queue)
    ]
    return {"workers": sorted(with_mails, key=lambda one: (-len(one[1]), one[0].worker))}


def stuck(stores: Stores, queue: QueueName) -> dict[str, Any]:
    """The oldest mails in quarantine, `more`: how many others, `letters`: the newest report of
    dead_letters. Creates no table.
    """
    letters = newest_report(stores, queue, "dead_letters")
    mails, limit = in_quarantine(stores, queue, system_clock), NEWEST * 50
    return {"stuck": mails[:limit], "more": len(mails[limit:]), "letters": letters}


def history(stores: Stores, queue: QueueName) -> dict[str, Any]:
    """The newest runs of all duties on this queue."""
    runs = stores.existing_runs()
    rows = [row for group in runs.newest(NEWEST, names(), [queue]) for row in group] if runs else []
    newest = sorted(rows, key=lambda row: row.started, reverse=True)[:NEWEST]
    return {"runs": [run_line(json.loads(row.report)) for row in newest]}


def all_runs(stores: Stores) -> list[dict[str, Any]]:
    """The newest run of every duty and queue, newest first."""
    runs = stores.existing_runs()
    rows = [row for newest in runs.newest(1) for row in newest] if runs else []
    rows.sort(key=lambda row: row.started, reverse=True)
    return [run_line(json.loads(row.report)) for row in rows]


def runs_of(stores: Stores, duty: str, dag_run: str | None = None) -> list[dict[str, Any]]:
    """The reports of one Airflow run, one a queue; without `dag_run` the newest of each queue.

    Reports that are not among the newest rows come from the folders of the run, found by name: the
    ledger finds a row by its start, which is unknown here.
    """
    runs = stores.existing_runs()
    if runs is None:
        return []
    queues = runs.queues(duty)
    newest = runs.newest(max(1, NEWEST * 10 // max(1, len(queues))), [duty], queues)
    rows = [row for group in newest for row in group if dag_run in {None, row.dag_run}]
    lines = [run_line(json.loads(row.report)) for row in rows]
    if dag_run is not None:
        others = set(queues) - {row.queue for row in rows}
        lines += map(run_line, _reports_in_folders(stores, duty, sorted(others), dag_run))
    return sorted(lines, key=lambda line: line["started"] or _LONG_AGO, reverse=True)


def _reports_in_folders(
    stores: Stores, duty: str, queues: Iterable[QueueName], dag_run: str
) -> Iterator[Mapping[str, Any]]:
    """The reports of the queues on which that run has ended."""
    location = artifacts(stores.settings)

    def read(queue: QueueName) -> Mapping[str, Any] | None:
        folder = RunFolder(location, duty, queue, run_of_dag(duty, queue, dag_run))
        with suppress(PlanRefused):  # a file that is damaged is none
            return folder.read_json(FILES["report"])
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from (report for report in pool.map(read, queues) if report is not None)


def run_line(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report as lists of runs show it. `lasted` is a timedelta, `docs` a path below docs/."""
    started, finished = moment_of(report.get("started")), moment_of(report.get("finished"))
    return {
        **{name: report.get(name) for name in _REPORT_FIELDS},
        "started": started,
        "lasted": finished - started if started and finished else None,
        "docs": docs_path(report.get("dataDocs")),
    }


def alerts(queues: Iterable[QueueOverview], since: datetime) -> list[dict[str, Any]]:
    """Alerts of the reports since `since`, the newest first. One with `until` is over."""
    all_alerts = [
        {"queue": one.queue, "text": alert["text"]}
        | {name: moment_of(alert.get(name)) for name in ("since", "until")}
        for one in queues
        for report in one.reports.values()
        if (moment_of(report.get("alertsAt", report.get("finished"))) or since) >= since
        for alert in [*(report.get("alerts") or ()), *(report.get("pastAlerts") or ())]
    ]
    recent = [alert for alert in all_alerts if alert["until"] is None or alert["until"] >= since]
    return sorted(recent, key=lambda alert: (alert["until"] is None, alert["since"]), reverse=True)


def spark(points: Sequence[TrendPoint] | None) -> dict[str, Any]:
    """The points of a line in a box of 96 by 20. `known`: whether the stores gave `points`."""
    if points is None or len(points) < 2:
        return {"line": "", "known": points is not None}
    first, last = points[0].at, points[-1].at
    span = max((last - first).total_seconds(), 1.0)
    maximum = max(1, *(point.size for point in points))
    line = " ".join(
        f"{(point.at - first).total_seconds() / span * 96:.1f},{20 - point.size / maximum * 19:.1f}"
        for point in points
    )
    return {"line": line, "first": points[0].size, "last": points[-1].size, "maximum": maximum}


def form(entry: DutyEntry) -> dict[str, Any]:
    """What the form of a duty asks. A run by hand begins as a dry run."""
    approve = entry.name not in READ_ONLY
    fields = form_shapes(entry.params, queues=entry.needs_queue, approve=approve)
    return {"duty": entry.name, "summary": entry.summary, "fields": fields}


def duties(
    dag_of: Callable[[str], str], schedules: Mapping[str, Any], runs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every duty with its schedule and its newest run."""
    return [
        {
            "name": name,
            "dag": dag_of(name),
            "summary": load(name).summary,
            "schedule": None if schedule is None else schedule.summary or "by hand",
            "paused": schedule is not None and schedule.paused,
            "next": schedule and schedule.next,
            "last": next((run for run in runs if run["duty"] == name), None),
        }
        for name in names()
        for schedule in [schedules.get(dag_of(name))]
    ]


def count(facts: Facts, queue: QueueName, limit: int) -> int | None:
    """The exact size; None where more than `limit` rows would have to be read."""
    with facts.stores() as stores:
        summary = MailQueue(stores, queue, lambda: facts.now).live_summary(limit)
    return None if summary is None else summary.size


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """The overview, for scripts."""
    queues = [overview_json(one) for one in snapshot.queues]
    postal = snapshot.postal and postal_json(snapshot.postal)
    fields = {"at": snapshot.at, "problem": snapshot.problem, "queues": queues, "postal": postal}
    return dict(json.loads(json.dumps(fields, default=json_value)))
