"""Every queue at a glance: what RabbitMQ, the ledger and the workers' records say already.

No view is scanned. A queue with few rows is counted on the spot; of a larger one the newest
measurement counts. Each figure has its age, and one that a store did not give is None.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from mailslice.admin.holds import active_holds
from mailslice.maintenance.health import Health, HealthFacts, HealthVerdict, judge
from mailslice.maintenance.report import counts_whole_queue, is_dry, lost_mails
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
"""Those of whose newest reports the overview is made."""
_AT_ONCE = 16
_COUNTED = 10
"""Queues that may be counted on the spot with all that `Most` allows."""
_REPORT_COUNTS_FOR = timedelta(hours=26)
_MEASURED_LATELY = timedelta(hours=1)
_FEW, _MORE = 3, 50
"""Rows: the newest of a duty may be of runs that are at work, or failed, or that were dry."""

T = TypeVar("T")
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Most:
    """What counting a queue on the spot may read: a few ms. Many queues share what ten may."""

    rows: int = 500
    partitions: int = 256

    def each_of(self, queues: int) -> "Most":
        """What each of so many may read."""
        share = min(1.0, _COUNTED / max(1, queues))
        return Most(int(self.rows * share), int(self.partitions * share))


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue. Rates are messages a second; `size` was counted at `size_at`.

    `ready`, `unacknowledged`, `delayed`, `parked`, `dead_letters` and `consumers` are RabbitMQ's,
    up to 10 s old. `reports`: the newest with a result of each duty of DUTIES; alerts in them are
    of the newest run that was not dry, which ended at `alertsAt`. `unanswered`: which store did not
    answer, or refused, and how.
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
    """Live mails at a moment, the oldest of them, and the broker's messages at that moment.

    `rows`: at least so many were read for it, dead ones too. It took so many `seconds`, at the end
    of which `moving` messages a second went in and out of the work queue (None: as now).
    """

    size: int
    at: datetime
    oldest: datetime | None
    in_broker: int | None
    rows: int = 0
    seconds: float = 0.0
    moving: float | None = None


def overview(
    stores: Stores, clock: Clock, queues: Sequence[QueueName] | None = None, most: Most = Most()
) -> list[QueueOverview]:
    """The queues (None: all), the worst first. Raises StoreUnavailable without RabbitMQ."""
    moving = traffic(stores.management)
    chosen = stores.management.mail_queues() if queues is None else queues
    unanswered: dict[str, MailsliceError] = {}
    # Connects, once for all queues.
    reports = _answered(lambda: _newest(stores.existing_runs(), chosen), unanswered) or {}
    workers = _answered(lambda: stores.workers_of(chosen), unanswered)
    held = _answered(lambda: active_holds(stores, clock), unanswered) or {}
    shape = _answered(lambda: view_shape(stores), unanswered) if chosen else None
    share = most.each_of(len(chosen))
    looked = _Looked(stores, clock, moving, reports, workers, held, shape, share, unanswered)
    with ThreadPoolExecutor(_AT_ONCE, "overview") as threads:
        found = list(threads.map(lambda queue: _overview(looked, queue), chosen))
    return sorted(found, key=lambda one: (one.verdict.health.severity, -(one.size or 0), one.queue))


def last_reported(stores: Stores, error: MailsliceError) -> Iterator[QueueOverview]:
    """The queues that the ledger knows, as their newest reports have them: where RabbitMQ does not
    answer (`error` says how), and nothing newer is known. Raises StoreUnavailable, BadSetting.
    """
    runs = stores.existing_runs()
    queues = {newest[0].queue for newest in runs.newest(1)} if runs else set()
    newest = _newest(runs, sorted(one for one in queues if one != NO_QUEUE_NAME))
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
class _Looked:
    """What all queues of one overview share."""

    stores: Stores
    clock: Clock
    moving: Mapping[str, Traffic]
    reports: Mapping[QueueName, Mapping[str, Report]]
    workers: Mapping[QueueName, Sequence[WorkerRecord]] | None
    held: Mapping[QueueName, ActiveHolds]
    shape: Shape | None
    most: Most
    unanswered: dict[str, MailsliceError]


def _overview(looked: _Looked, queue: QueueName) -> QueueOverview:
    stores, clock, moving = looked.stores, looked.clock, looked.moving
    held = looked.held.get(queue, ActiveHolds())
    names, now = RabbitNames(queue), clock()
    work, dead = moving.get(names.work_queue), moving.get(names.dead_letter_queue)
    depth, letters = work.depth if work else None, dead.depth if dead else None
    waiting_for_time, set_aside = delayed(moving, names), parked(moving, names)
    unanswered = looked.unanswered
    reports = looked.reports.get(queue, {})
    records = None if looked.workers is None else looked.workers.get(queue, [])
    died = 0 if dead is None else letters.total if letters else None
    broker = _sum(depth.total if depth else None, waiting_for_time, set_aside, died)
    measured = _measured(reports.get("queue_size"))
    is_recent = measured is not None and now - measured.at <= _MEASURED_LATELY
    rows = measured.rows if measured and is_recent else 0
    is_small = max(broker or 0, rows) <= looked.most.rows
    counted = _answered(lambda: _count(looked, queue, broker), unanswered) if is_small else None
    counted = counted or measured
    rate = counted.moving if counted else None
    silent, in_hand = (
        sum(len(one.in_flight) for one in records or () if one.is_alive is is_alive)
        for is_alive in (False, True)
    )
    facts = HealthFacts(
        queue,
        waiting=counted.size if counted else None,
        counted_ago=now - counted.at if counted else None,
        in_broker=counted.in_broker if counted else None,
        ready=depth.ready if depth else None,
        delayed=waiting_for_time,
        consumers=depth.consumers if depth else None,
        oldest=now - counted.oldest if counted and counted.oldest else None,
        late_after=stores.settings.alert.oldest_mail or timedelta.max,
        lost=_lost(reports, now),
        stuck=_stuck(reports.get("stuck_mails", {}), now),
        # What the broker gave back is ready, or in the hands of live workers.
        silent=min(silent, max(0, depth.unacknowledged - in_hand)) if depth else silent,
        moving=rate if rate is not None else work.moving if work else 0.0,
        counting=counted.seconds if counted else 0.0,
        held=_sentence(held),
        release=held.all[0].release if held.all else None,
        is_held_whole=held.whole is not None,
        unanswered=tuple(unanswered),
    )
    return QueueOverview(
        queue,
        judge(facts),
        size=facts.waiting,
        size_at=counted.at if counted else None,
        oldest=counted.oldest if counted else None,
        ready=facts.ready,
        unacknowledged=depth.unacknowledged if depth else None,
        delayed=waiting_for_time,
        parked=set_aside,
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
    """The newest finished report of the duty, where it has one."""
    return _newest(stores.existing_runs(), [queue], [duty])[queue].get(duty)


def _newest(
    runs: Runs | None, queues: Sequence[QueueName], duties: Iterable[str] = DUTIES
) -> dict[QueueName, dict[str, Report]]:
    newest: dict[QueueName, dict[str, Report]] = {queue: {} for queue in queues}
    for duty, queue, reports in newest_reports(runs, duties, queues):
        for last in reports[:1]:
            none = {**last, "size": None, "verdicts": None}
            news = [one for one in reports if has_result(duty, one)]
            if duty == "queue_audit":
                news = [one for one in news if lost_mails(one) is not None]
            run = next((one for one in reports if not is_dry(one)), {})
            alerts = {name: run.get(name) for name in ("alerts", "pastAlerts")}
            newest[queue][duty] = {**[*news, none][0], **alerts, "alertsAt": run.get("finished")}
    return newest


def newest_reports(
    runs: Runs | None, duties: Iterable[str] | None = None, queues: Sequence[QueueName] = ()
) -> Iterator[tuple[str, QueueName, list[dict[str, Any]]]]:
    """The newest finished reports; more where none but those of dry runs has a result."""
    if runs is None:
        return
    for rows in runs.newest(_FEW, duties, queues):
        duty, queue, reports = rows[0].duty, rows[0].queue, _finished(rows)
        with_result = (one for one in reports if has_result(duty, one))
        if len(rows) == _FEW and all(map(is_dry, with_result)):
            reports = _finished(runs.list(duty, queue, _MORE))
        yield duty, queue, reports


def _finished(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    return [json.loads(row.report) for row in rows if row.finished is not None]


def has_result(duty: str, report: Report) -> bool:
    """Whether its figures are news; else those of the report before count."""
    if duty == "stuck_mails_postal":
        return report.get("lockTimeoutSeconds") is not None
    if duty == "republish_lost":
        return not is_dry(report) and _put_back(report) > 0
    result = {"queue_audit": "verdicts", "queue_size": "size"}.get(duty)
    return result is None or (report.get(result) is not None and counts_whole_queue(report))


def as_json(one: QueueOverview) -> dict[str, object]:
    """As `queue list --json` has it."""
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


def _count(looked: _Looked, queue: QueueName, in_broker: int | None) -> _MailCount | None:
    if looked.shape is None:
        return None
    now, most = looked.clock(), looked.most
    rows = LiveRows(looked.stores.tables, queue, looked.shape)
    glance = rows.glance(now, most.rows, most.partitions)
    return None if glance is None else _MailCount(glance.size, now, glance.oldest, in_broker)


def _measured(report: Report | None) -> _MailCount | None:
    """The newest measurement; what the broker had then is None where it did not say it."""
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


def _lost(reports: Mapping[str, Report], now: datetime) -> int | None:
    """Of the last audit that knows, without those that a republish by it put back."""
    audit, republished = (reports.get(duty, {}) for duty in ("queue_audit", "republish_lost"))
    lost = lost_mails(audit) or 0
    if (republished.get("audit") or {}).get("run") == audit.get("run"):
        lost -= _put_back(republished)
    # An audit without a find proves nothing of mails that were lost since.
    return lost if lost > 0 and _is_recent(audit, now) else None


def _put_back(republish: Report) -> int:
    """Mails of the audit that are lost no more: what an earlier run put back counts, too."""
    counts = {**republish.get("skippedBy", {}), "applied": republish.get("applied", 0)}
    return sum(counts.get(n, 0) for n in ("applied", "already republished", "done or gone"))


def _stuck(report: Report, now: datetime) -> int:
    """Mails that stuck_mails found, and left with their holders."""
    planned, *done = (int(report.get(name) or 0) for name in ("planned", "applied", "skipped"))
    return max(0, planned - sum(done)) if _is_recent(report, now) else 0


def _is_recent(report: Report, now: datetime) -> bool:
    finished = report.get("finished")
    return finished is not None and now - datetime.fromisoformat(finished) <= _REPORT_COUNTS_FOR


def _sentence(held: ActiveHolds) -> str | None:
    if not held.all:
        return None
    more = f"; and {len(held.all) - 1} more: mailslice queue holds" if len(held.all) > 1 else ""
    return f"{held.all[0].sentence}{more}"


def _sum(*counts: int | None) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


def _answered(ask: Callable[[], T], unanswered: dict[str, MailsliceError]) -> T | None:
    """What Cassandra says; None where it does not answer, which `unanswered` says then."""
    if unanswered:
        return None  # each question would take its whole time-out
    try:
        return ask()
    except STORE_ERRORS as error:
        unanswered.setdefault("Cassandra", error)
        return None
