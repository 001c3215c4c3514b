"""The health of a Postal's queue: reports of its last runs -> word, why, next command.

The reports do not tell whether Postal's workers run, nor how long mail without a lock waits: the
words NO WORKERS and LATE do not occur.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mailslice.maintenance.health import Health, HealthVerdict, span, unanswered
from mailslice.maintenance.overview import newest_reports
from mailslice.maintenance.report import FAILED, REFUSED, is_dry
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.clock import Clock
from mailslice.model.errors import STORE_ERRORS, MailsliceError
from mailslice.stores import Stores

DUTY = "stuck_mails_postal"
_RUN_COMMAND = f"mailslice duty run {DUTY}"
_GONE_STATES = ("content lost", "message gone")
_OF_THE_REPORT = "found byStage oldestSeconds lockTimeoutSeconds p99Seconds run dagRun".split()


@dataclass(frozen=True, slots=True)
class PostalHealthFacts:
    """Facts from the reports of the last runs. None is unknown, never zero.

    `looked_ago`: time since the end of the last run that read the queue. `stuck`, `gone`: messages
    that this run found and left. `failed`: why the newest run failed or was refused.
    """

    looked_ago: timedelta | None = None
    mode: str | None = None
    queued: int | None = None
    stuck: int = 0
    gone: int = 0
    oldest: timedelta = timedelta()
    quarantined: int | None = None
    unreadable: tuple[str, ...] = ()
    failed: str | None = None
    stale_after: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class PostalOverview:
    """The verdict and the report behind it. `report` is empty where nothing is known."""

    verdict: HealthVerdict
    facts: PostalHealthFacts
    looked_at: datetime | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    unanswered: MailsliceError | None = None
    """Why the ledger could not be read."""


def postal_verdict_of(facts: PostalHealthFacts) -> HealthVerdict:
    """The worst verdict that holds for the queue."""
    return min(_verdicts(facts), key=lambda verdict: verdict.health.severity)


def postal_overview(stores: Stores, clock: Clock) -> PostalOverview:
    """The overview from the ledger. Postal itself is not asked."""
    try:
        newest = [*newest_reports(stores.existing_runs(), [DUTY], [NO_QUEUE])]
    except STORE_ERRORS as error:
        facts = PostalHealthFacts(failed=unanswered("the ledger", error))
        return PostalOverview(postal_verdict_of(facts), facts, unanswered=error)
    return of_reports([report for *_, reports in newest for report in reports], clock())


def of_reports(reports: Sequence[Mapping[str, Any]], now: datetime) -> PostalOverview:
    """The overview from finished reports, the newest first."""
    seen = next((report for report in reports if report.get("lockTimeoutSeconds") is not None), {})
    run, failed = next((report for report in reports if not is_dry(report)), {}), None
    if run.get("status") in {FAILED, REFUSED}:
        failed = str(run.get("message") or "the last run failed")
    looked_at = datetime.fromisoformat(seen["finished"]) if seen else None
    left = Counter[str](seen.get("byState"))
    left -= Counter(seen.get("doneByState")) + Counter(seen.get("changedByState"))
    facts = PostalHealthFacts(
        looked_ago=None if looked_at is None else now - looked_at,
        mode=seen.get("mode"),
        queued=seen.get("queued"),
        stuck=left["stuck"],
        gone=sum(left[name] for name in _GONE_STATES),
        oldest=timedelta(seconds=seen.get("oldestSeconds") or 0),
        quarantined=seen.get("quarantined"),
        unreadable=tuple(seen.get("unreadable") or ()),
        failed=failed,
    )
    shown = {**seen, "alerts": run.get("alerts")} if seen else seen
    return PostalOverview(postal_verdict_of(facts), facts, looked_at, shown)


def as_json(one: PostalOverview) -> dict[str, object]:
    """The JSON of `postal health --json` and of the page's data."""
    facts, seen = one.facts, one.report
    return {
        "health": one.verdict.health.value,
        "why": one.verdict.why,
        "next": one.verdict.next,
        "lookedAt": one.looked_at,
        "mode": facts.mode,
        "queued": facts.queued,
        "stuck": facts.stuck if seen else None,
        "gone": facts.gone if seen else None,
        "quarantined": facts.quarantined,
        **{name: seen.get(name) for name in _OF_THE_REPORT},
    }


def _verdicts(facts: PostalHealthFacts) -> Iterator[HealthVerdict]:
    if facts.gone:
        why = f"{facts.gone:,} queued messages have no content, or no message any more"
        yield HealthVerdict(Health.LOST, f"{why}{_mode(facts)}", "mailslice postal stuck")
    if facts.stuck:
        why = f"{facts.stuck:,} messages are locked by workers that do not go on"
        oldest = f", the oldest for {span(facts.oldest)}" if facts.oldest else ""
        yield HealthVerdict(Health.STUCK, f"{why}{oldest}{_mode(facts)}", "mailslice postal stuck")
    if facts.failed is not None:
        yield HealthVerdict(Health.UNKNOWN, facts.failed, "mailslice config check")
    elif facts.looked_ago is None:
        yield HealthVerdict(Health.UNKNOWN, "no run has read its queue yet", _RUN_COMMAND)
    elif facts.looked_ago > facts.stale_after:
        why = f"nobody has looked for {span(facts.looked_ago)}"
        yield HealthVerdict(Health.UNKNOWN, why, _RUN_COMMAND)
    elif facts.unreadable:
        why = f"servers that cannot be read in full: {', '.join(facts.unreadable)}"
        yield HealthVerdict(Health.UNKNOWN, why, "mailslice config check")
    if facts.quarantined:
        why = f"{facts.quarantined:,} messages are in quarantine and wait for a person"
        yield HealthVerdict(Health.HELD, why, "mailslice postal quarantine list")
    queued = "" if facts.queued is None else f"; {facts.queued:,} are queued"
    yield HealthVerdict(Health.OK, f"no message is stuck{queued}")


def _mode(facts: PostalHealthFacts) -> str:
    return "; mode shadow leaves them there" if facts.mode == "shadow" else ""
