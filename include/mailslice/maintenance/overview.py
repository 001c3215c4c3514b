"""An overview of all queues from RabbitMQ, the ledger and the workers' records.

No large view is scanned. A queue with few rows is counted at once; for a larger one the newest
measurement counts. Each figure has its age. A figure that a store did not give is None.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from mailslice.admin.holds import active_holds
from mailslice.maintenance.health import Health, HealthFacts, HealthVerdict, verdict_of
from mailslice.maintenance.report import counts_whole_queue, is_dry, loss_proof, lost_mails
from mailslice.model.clock import Clock
from mailslice.model.errors import STORE_ERRORS, MailsliceError
from mailslice.model.holds import ActiveHolds, Hold
from mailslice.model.mail import QueueName
from mailslice.model.names import NO_QUEUE_NAME, RabbitNames
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import WorkerRecord
from mailslice.stores.own.runs import RunRow, Runs
from mailslice.stores.rabbitmq.traffic import Traffic, delayed, parked, traffic
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.live_rows import LiveRows

DUTIES = ("queue_size", "queue_cleanup", "queue_audit", "republish_lost", "stuck_mails")
"""The overview uses the newest reports of these duties."""
_AT_ONCE = 16
_FULL_QUOTAS = 10
"""Up to this many queues, each has the whole `Quota`. More queues share ten quotas."""
_STUCK_COUNTS_FOR = timedelta(hours=26)
_MEASURED_LATELY = timedelta(hours=1)
_ROWS_READ, _MORE_ROWS_READ = 3, 50
"""Ledger rows that are read of a duty; more if the newest have no result, or only dry runs do."""

T = TypeVar("T")
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Quota:
    """What an immediate count of a queue may read, in a few ms. Many queues share that of ten."""

    rows: int = 500
    partitions: int = 256

    def per_queue(self, queues: int) -> "Quota":
        """What each of `queues` queues may read."""
        share = min(1.0, _FULL_QUOTAS / max(1, queues))
        return Quota(int(self.rows * share), int(self.partitions * share))


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue. Rates are messages a second; `size` was counted at `size_at`.

    `ready`, `unacknowledged`, `delayed`, `parked`, `dead_letters` and `consumers` are RabbitMQ's,
    up to 10 s old. `reports`: duty of DUTIES -> its newest report with a result. The alerts in it
    are of the newest run that was not dry, which ended at `alertsAt`. `unanswered`: store -> the
    error of one that did not answer, or refused.
    """

    queue: QueueName
    verdict: HealthVerdict
    size: int | None
    size_at: datetime | None
    oldest: datetime | None
    ready: int | None = None
    unacknowledged: int | None = None
    delayed: int | None = None
    parked: int | None = None
    dead_letters: int | None = None
    consumers: int | None = None
    enqueue_rate: float | None = None
    deliver_rate: float | None = None
    workers: int | None = None
    reports: Mapping[str, Report] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()
    unanswered: Mapping[str, MailsliceError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _MailCount:
    """The live mails of a queue at a time, the oldest of them, and the broker's messages then.

    `rows`: a lower bound of the rows read for it, dead ones included. `seconds`: how long it took.
    `moving`: messages a second in and out of the work queue at its end (None: as now).
    """

    size: int
    at: datetime
    oldest: datetime | None
    in_broker: int | None
    rows: int = 0
    seconds: float = 0.0
    moving: float | None = None


def overview(
    stores: Stores, clock: Clock, queues: Sequence[QueueName] | None = None, quota: Quota = Quota()
) -> list[QueueOverview]:
    """The queues (None: all), the worst first. Raises StoreUnavailable without RabbitMQ."""
    moving = traffic(stores.management)
    chosen = stores.management.mail_queues() if queues is None else queues
    unanswered: dict[str, MailsliceError] = {}
    # Connects, once for all queues.
    reports = _ask_or_none(lambda: _newest(stores.existing_runs(), chosen), unanswered) or {}
    workers = _ask_or_none(lambda: stores.workers_of(chosen), unanswered)
    held = _ask_or_none(lambda: active_holds(stores, clock), unanswered) or {}
    shape = _ask_or_none(lambda: view_shape(stores), unanswered) if chosen else None
    share = quota.per_queue(len(chosen))
    inputs = _Inputs(stores, clock, moving, reports, workers, held, shape, share, unanswered)
    with ThreadPoolExecutor(_AT_ONCE, "overview") as threads:
        overviews = list(threads.map(lambda queue: _overview(inputs, queue), chosen))
    return sorted(overviews, key=lambda it: (it.verdict.health.severity, -(it.size or 0), it.queue))


def last_reported(stores: Stores, error: MailsliceError) -> Iterator[QueueOverview]:
    """The queues of the ledger with the figures of their newest reports, for when RabbitMQ does not
    answer: `error` is its error. Raises StoreUnavailable, BadSetting.
    """
    runs = stores.existing_runs()
    queues = {newest[0].queue for newest in runs.newest(1)} if runs else set()
    newest = _newest(runs, sorted(queue for queue in queues if queue != NO_QUEUE_NAME))
    why = HealthVerdict(Health.UNKNOWN, str(error), "mailslice config check")
    for queue, reports in newest.items():
        counted = _measured(reports.get("queue_size"))
        yield QueueOverview(
            queue,
            why,
            size=counted.size if counted else None,
            size_at=counted.at if counted else None,
            oldest=counted.oldest if counted else None,
            reports=reports,
            unanswered={"RabbitMQ": error},
        )


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs that all queues of one overview share."""

    stores: Stores
    clock: Clock
    moving: Mapping[str, Traffic]
    reports: Mapping[QueueName, Mapping[str, Report]]
    workers: Mapping[QueueName, Sequence[WorkerRecord]] | None
    held: Mapping[QueueName, ActiveHolds]
    shape: Shape | None
    quota: Quota
    unanswered: dict[str, MailsliceError]


def _overview(inputs: _Inputs, queue: QueueName) -> QueueOverview:
    stores, now, moving = inputs.stores, inputs.clock(), inputs.moving
    names, held = RabbitNames(queue), inputs.held.get(queue, ActiveHolds())
    work, dead = moving.get(names.work_queue), moving.get(names.dead_letter_queue)
    depth, letters = work.depth if work else None, dead.depth if dead else None
    delayed_count, parked_count = delayed(moving, names), parked(moving, names)
    unanswered, reports = inputs.unanswered, inputs.reports.get(queue, {})
    records = None if inputs.workers is None else inputs.workers.get(queue, [])
    dead_letters = 0 if dead is None else letters.total if letters else None
    broker = _sum(depth.total if depth else None, delayed_count, parked_count, dead_letters)
    measured = _measured(reports.get("queue_size"))
    rows = measured.rows if measured and now - measured.at <= _MEASURED_LATELY else 0
    counted = measured
    if max(broker or 0, rows) <= inputs.quota.rows:
        counted = _ask_or_none(lambda: _count(inputs, queue, broker), unanswered) or measured
    rate = counted.moving if counted else None
    silent, in_flight = (
        sum(len(record.in_flight) for record in records or () if record.is_alive is is_alive)
        for is_alive in (False, True)
    )
    facts = HealthFacts(
        queue,
        waiting=counted.size if counted else None,
        counted_ago=now - counted.at if counted else None,
        in_broker=counted.in_broker if counted else None,
        ready=depth.ready if depth else None,
        delayed=delayed_count,
        consumers=depth.consumers if depth else None,
        oldest=now - counted.oldest if counted and counted.oldest else None,
        late_after=stores.settings.alert.oldest_mail or timedelta.max,
        lost=_count_lost(inputs, reports, counted),
        lost_ago=_age(reports.get("queue_audit", {}), now),
        stuck=_count_stuck(reports.get("stuck_mails", {}), now),
        # Mails that the broker requeued are ready, or live workers have them.
        silent=min(silent, max(0, depth.unacknowledged - in_flight)) if depth else silent,
        moving=rate if rate is not None else work.moving if work else 0.0,
        counting=counted.seconds if counted else 0.0,
        held=_hold_sentence(held),
        release=held.all[0].release if held.all else None,
        is_held_whole=held.whole is not None,
        unanswered=dict(unanswered),
    )
    return QueueOverview(
        queue,
        verdict_of(facts),
        size=facts.waiting,
        size_at=counted.at if counted else None,
        oldest=counted.oldest if counted else None,
        ready=facts.ready,
        unacknowledged=depth.unacknowledged if depth else None,
        delayed=delayed_count,
        parked=parked_count,
        dead_letters=letters.total if letters else None,
        consumers=facts.consumers,
        enqueue_rate=work.published if work else None,
        deliver_rate=work.delivered if work else None,
        workers=None if records is None else sum(record.is_alive for record in records),
        reports=reports,
        holds=held.all,
        unanswered=dict(unanswered),
    )


def newest_report(stores: Stores, queue: QueueName, duty: str) -> Report | None:
    """The newest finished report of the duty; None where it has none."""
    return _newest(stores.existing_runs(), [queue], [duty])[queue].get(duty)


def _newest(
    runs: Runs | None, queues: Sequence[QueueName], duties: Iterable[str] = DUTIES
) -> dict[QueueName, dict[str, Report]]:
    newest: dict[QueueName, dict[str, Report]] = {queue: {} for queue in queues}
    for duty, queue, reports in newest_reports(runs, duties, queues):
        for last in reports[:1]:
            results = [report for report in reports if has_result(duty, report)]
            if duty == "queue_audit":
                results = [dict(loss_proof(reports))]
            run = next((report for report in reports if not is_dry(report)), {})
            alerts = {name: run.get(name) for name in ("alerts", "pastAlerts")}
            chosen = next(filter(None, results), {**last, "size": None, "verdicts": None})
            newest[queue][duty] = {**chosen, **alerts, "alertsAt": run.get("finished")}
    return newest


def newest_reports(
    runs: Runs | None, duties: Iterable[str] | None = None, queues: Sequence[QueueName] = ()
) -> Iterator[tuple[str, QueueName, list[dict[str, Any]]]]:
    """Duty, queue and newest finished reports. Reads more if none but dry runs has a result."""
    if runs is None:
        return
    for rows in runs.newest(_ROWS_READ, duties, queues):
        duty, queue, reports = rows[0].duty, rows[0].queue, _finished_reports(rows)
        with_result = (report for report in reports if has_result(duty, report))
        if len(rows) == _ROWS_READ and all(map(is_dry, with_result)):
            reports = _finished_reports(runs.list(duty, queue, _MORE_ROWS_READ))
        yield duty, queue, reports


def _finished_reports(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    return [json.loads(row.report) for row in rows if row.finished is not None]


def has_result(duty: str, report: Report) -> bool:
    """Whether the report has figures of its own; else those of an earlier report count."""
    if duty in {"stuck_mails", "stuck_mails_postal"}:
        return report.get("lockTimeoutSeconds") is not None
    if duty == "republish_lost":
        return not is_dry(report) and _count_republished(report) > 0
    result = {"queue_audit": "verdicts", "queue_size": "size"}.get(duty)
    return result is None or (report.get(result) is not None and counts_whole_queue(report))


def as_json(one: QueueOverview) -> dict[str, object]:
    """The JSON of `queue list --json`."""
    return {
        "queue": one.queue,
        "health": one.verdict.health.value,
        "size": one.size,
        "sizeAt": one.size_at,
        "oldest": one.oldest,
        "ready": one.ready,
        "unacknowledged": one.unacknowledged,
        "delayed": one.delayed,
        "parked": one.parked,
        "deadLetters": one.dead_letters,
        "consumers": one.consumers,
        "workers": one.workers,
        "why": one.verdict.why,
        "next": one.verdict.next,
    }


def _count(inputs: _Inputs, queue: QueueName, in_broker: int | None) -> _MailCount | None:
    if inputs.shape is None:
        return None
    now, quota = inputs.clock(), inputs.quota
    rows = LiveRows(inputs.stores.tables, queue, inputs.shape)
    summary = rows.small_summary(now, quota.rows, quota.partitions)
    return None if summary is None else _MailCount(summary.size, now, summary.oldest, in_broker)


def _measured(report: Report | None) -> _MailCount | None:
    """The count in a report of queue_size; `in_broker` is None where a figure is missing."""
    if report is None or report.get("size") is None:
        return None
    names = ("ready", "unacknowledged", "delayed", "parked", "deadLetters")
    oldest = report.get("oldest")
    return _MailCount(
        report["size"],
        datetime.fromisoformat(report["measuredAt"]),
        datetime.fromisoformat(oldest) if oldest else None,
        _sum(*(report.get(name) for name in names)),
        report["size"] + (report.get("dead") or 0),
        (report.get("seconds") or {}).get("plan") or 0.0,
        report.get("moving"),
    )


def _count_lost(
    inputs: _Inputs, reports: Mapping[str, Report], counted: _MailCount | None
) -> int | None:
    """Lost mails of the last audit with a result, without those that were put back or deleted."""
    audit, republished = (reports.get(duty, {}) for duty in ("queue_audit", "republish_lost"))
    is_same = (republished.get("audit") or {}).get("run") == audit.get("run")
    lost = (lost_mails(audit) or 0) - (_count_republished(republished) if is_same else 0)
    now, retention = inputs.clock(), inputs.stores.settings.duty.retention
    live = counted.size if counted and now - counted.at < _age(audit, now) else lost
    # An audit that found none proves nothing; after the retention nobody knows what was put back.
    return lost if (lost := min(lost, live)) > 0 and _age(audit, now) < retention else None


def _count_republished(republish: Report) -> int:
    """Mails of the audit that are no longer lost, also those that an earlier run put back."""
    counts = {**republish.get("skippedBy", {}), "applied": republish.get("applied", 0)}
    return sum(counts.get(n, 0) for n in ("applied", "already republished", "done or gone"))


def _count_stuck(report: Report, now: datetime) -> int:
    """Mails that stuck_mails found and left with their workers."""
    planned, *done = (int(report.get(name) or 0) for name in ("planned", "applied", "skipped"))
    return max(0, planned - sum(done)) if _age(report, now) <= _STUCK_COUNTS_FOR else 0


def _age(report: Report, now: datetime) -> timedelta:
    finished = report.get("finished")
    return now - datetime.fromisoformat(finished) if finished else timedelta.max


def _hold_sentence(holds: ActiveHolds) -> str | None:
    if not holds.all:
        return None
    more = f"; and {len(holds.all) - 1} more: mailslice queue holds" if len(holds.all) > 1 else ""
    return f"{holds.all[0].sentence}{more}"


def _sum(*counts: int | None) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


def _ask_or_none(ask: Callable[[], T], unanswered: dict[str, MailsliceError]) -> T | None:
    """The answer of Cassandra; None where it has none, with the error in `unanswered`."""
    if unanswered:
        return None  # each question would take its whole time-out
    try:
        return ask()
    except STORE_ERRORS as error:
        unanswered.setdefault("Cassandra", error)
        return None
