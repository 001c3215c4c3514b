"""Alerts: figures of a report against their limits. An unknown figure never fires."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.health import span
from mailslice.maintenance.report import FAILED, REFUSED, counts_whole_queue, lost_mails
from mailslice.model.durations import format_duration
from mailslice.model.settings import AlertSettings

Report = Mapping[str, Any]
Alert = Mapping[str, Any]
_ALWAYS_REPORTED = ("gate", "failed")
_OFF_AT_0 = ("browse_lag", "content_lag", "oldest_mail", "consumers")
_PAST = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure and its limit; times in seconds. `firing`: above the limit; consumers: below it."""

    name: str
    value: float
    limit: float
    firing: bool
    text: str


def readings(report: Report, limits: AlertSettings, now: datetime) -> list[Reading]:
    """Every figure of the report that has a limit, firing or not."""
    return [*_ages(report, limits, now), *_counts(report, limits), *_ends(report)]


def alerts(
    current: Sequence[Reading],
    earlier: Iterable[Alert],
    now: datetime,
    limits: AlertSettings,
    *,
    tells: bool = True,
) -> list[dict[str, Any]]:
    """The alerts of a report: `since` when each fires, when it was last `told` (None: never).

    A run that notifies (`tells`) sets `told` to now, unless `told` is less than `repeat` ago. It
    always notifies of a run that was refused or failed.
    `earlier`: alerts of the previous report of the same duty and queue. One whose figure is unknown
    now, and whose limit is still set, stays as it was.
    """
    before = {alert["name"]: dict(alert) for alert in earlier}
    firing = [one for one in current if one.firing]
    new = [_alert(one, before.get(one.name), now, limits.repeat, tells) for one in firing]
    known = {one.name for one in current}.union(n for n in _OFF_AT_0 if not getattr(limits, n))
    return new + [alert for name, alert in before.items() if name not in known]


def past_alerts(before: Report, current: Iterable[Alert], now: datetime) -> list[dict[str, Any]]:
    """Alerts of the last day that no longer fire. `until`: when the last report with it ended.

    `before`: the previous report of the same duty and queue.
    """
    over = [dict(one, until=before["finished"]) for one in before.get("alerts") or ()]
    past = {one["name"]: one for one in [*(before.get("pastAlerts") or ()), *over]}
    firing = {one["name"] for one in current}
    return [
        one
        for name, one in past.items()
        if name not in firing and now - datetime.fromisoformat(one["until"]) < _PAST
    ]


def new_alerts(report: Report) -> list[Alert]:
    """The alerts of which this report notifies people."""
    return [one for one in report.get("alerts") or () if one["told"] == report.get("finished")]


def _alert(
    reading: Reading, before: Alert | None, now: datetime, repeat: timedelta, tells: bool
) -> dict[str, Any]:
    since, reported_at = (before["since"], before["told"]) if before else (iso(now), None)
    is_recent = reported_at and now - datetime.fromisoformat(reported_at) < repeat
    if tells and (reading.name in _ALWAYS_REPORTED or not is_recent):
        reported_at = iso(now)
    own = {name: getattr(reading, name) for name in ("name", "value", "limit", "text")}
    return {**own, "since": since, "told": reported_at}


def _ages(report: Report, limits: AlertSettings, now: datetime) -> Iterable[Reading]:
    """The lag of both starts, and the age of the oldest mail. A limit of 0 is no limit."""
    starts = (report.get(name) for name in ("browseStart", "contentStart"))
    browse, content = (
        (now - datetime.fromisoformat(at)).total_seconds() if at else None for at in starts
    )
    # In an empty queue no mail waits: its age is known.
    age = 0.0 if report.get("size") == 0 else report.get("oldestAgeSeconds")
    for name, seconds, limit, words in (
        ("browse_lag", browse, limits.browse_lag, "browseStart is {} behind"),
        ("content_lag", content, limits.content_lag, "contentStart is {} behind"),
        ("oldest_mail", age, limits.oldest_mail, "the oldest mail waits for {}"),
    ):
        if seconds is not None and limit:
            value, limit_s = float(seconds), limit.total_seconds()
            lag = span(timedelta(seconds=value))
            text = f"{words.format(lag)}, more than {format_duration(limit)}"
            yield Reading(name, round(value, 3), limit_s, value > limit_s, text)


def _counts(report: Report, limits: AlertSettings) -> Iterable[Reading]:
    def more(name: str, value: int | None, subject: str) -> Reading:
        limit, count = getattr(limits, name), int(value or 0)
        text = f"{count:,} {subject}, more than {limit:,}"
        return Reading(name, count, limit, count > limit, text)

    verdicts = report.get("verdicts") if counts_whole_queue(report) else None
    letters, consumers = report.get("deadLetters"), report.get("consumers")
    if isinstance(letters, int):
        yield more("dead_letters", letters, "messages are in the dead letter queue")
    if isinstance(consumers, int) and limits.consumers:
        text = f"{consumers} consumers take mail from the queue, fewer than {limits.consumers}"
        yield Reading("consumers", consumers, limits.consumers, consumers < limits.consumers, text)
    if isinstance(verdicts, Mapping):
        if (lost := lost_mails(report, limits.lost)) is not None:
            yield more("lost", lost, "mails are in no queue: lost, or done without a mark")
        bare, params = int(verdicts.get("bare") or 0), report.get("params") or {}
        if bare > limits.bare or params.get("older_than") is None:
            yield more("bare", bare, "mails have lost their content")
    if report.get("inFlight") is not None:
        # Only stuck_mails has the field. It counts planned mails: mode shadow applies none.
        yield more("zombies", report.get("planned"), "mails were in flight far too long")
    elif "lockTimeoutSeconds" in report:  # of stuck_mails_postal, if it has read the queue
        yield more("zombies", report.get("found"), "messages of Postal are stuck or gone")
        lost_words = "messages of Postal had lost their content or their row"
        yield more("lost", report.get("lost"), lost_words)
        servers = report.get("unreadable") or {}
        names = f"servers of Postal that cannot be read in full: {', '.join(servers)}"
        yield Reading("unreadable", len(servers), 0, bool(servers), names if servers else "")


def _ends(report: Report) -> Iterable[Reading]:
    """A run that a gate or guard stopped, or that failed: its own message says why."""
    message = str(report.get("message") or "it said nothing")
    for name, status in (("gate", REFUSED), ("failed", FAILED)):
        firing = report.get("status") == status
        yield Reading(name, int(firing), 0, firing, message if firing else "")
