"""The table facts -> health of a Postal's queue, and what reports make of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.maintenance.health import Health
from mailslice.maintenance.postal_health import (
    PostalHealthFacts,
    as_json,
    of_reports,
    postal_verdict_of,
)

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
WELL = {
    "looked_ago": timedelta(minutes=3),
    "mode": "close",
    "queued": 1200,
    "quarantined": 0,
}
REPORT = {
    "status": "done",
    "finished": "2026-11-23T11:57:00Z",
    "mode": "close",
    "queued": 1200,
    "found": 9,
    "byState": {"stuck": 6, "message gone": 2, "content lost": 1},
    "byStage": {"maybe sent": 6},
    "oldestSeconds": 7200.0,
    "lockTimeoutSeconds": 600.0,
    "p99Seconds": 1.5,
    "unreadable": {},
    "closed": 4,
    "retried": 0,
    "completed": 2,
    "lost": 3,
    "doneByState": {"stuck": 6, "message gone": 2, "content lost": 1},
    "quarantined": 0,
}


@pytest.mark.parametrize(
    ("facts", "health", "why", "next_"),
    [
        ({}, Health.OK, "no message is stuck; 1,200 are queued", None),
        (
            {"gone": 2},
            Health.LOST,
            "2 queued messages have no content, or no message any more",
            "mailslice postal stuck",
        ),
        (
            {"stuck": 3, "oldest": timedelta(hours=5), "mode": "shadow"},
            Health.STUCK,
            (
                "3 messages are locked by workers that do not go on, the oldest for 5 h; "
                "mode shadow leaves them there"
            ),
            "mailslice postal stuck",
        ),
        (
            {"quarantined": 7},
            Health.HELD,
            "7 messages are in quarantine and wait for a person",
            "mailslice postal quarantine list",
        ),
        (
            {"unreadable": ("3", "5"), "quarantined": 7},
            Health.UNKNOWN,
            "servers that cannot be read in full: 3, 5",
            "mailslice config check",
        ),
        (
            {"looked_ago": None},
            Health.UNKNOWN,
            "no run has read its queue yet",
            "mailslice duty run stuck_mails_postal",
        ),
        (
            {"looked_ago": timedelta(hours=3)},
            Health.UNKNOWN,
            "nobody has looked for 3 h",
            "mailslice duty run stuck_mails_postal",
        ),
        (
            {"failed": "plan: MariaDB is away"},
            Health.UNKNOWN,
            "plan: MariaDB is away",
            "mailslice config check",
        ),
        # The worst is said: what is known to be stuck, though the last run failed.
        (
            {"stuck": 1, "failed": "plan: MariaDB is away", "quarantined": 1},
            Health.STUCK,
            "1 messages are locked by workers that do not go on",
            "mailslice postal stuck",
        ),
    ],
)
def test_each_fact_has_its_word(
    facts: dict[str, Any], health: Health, why: str, next_: str | None
) -> None:
    verdict = postal_verdict_of(PostalHealthFacts(**{**WELL, **facts}))
    assert (verdict.health, verdict.why, verdict.next) == (health, why, next_)


def test_nothing_known_is_not_well() -> None:
    assert postal_verdict_of(PostalHealthFacts()).health is Health.UNKNOWN


def test_what_a_run_dealt_with_is_not_stuck_any_more() -> None:
    one = of_reports([REPORT], NOW)
    assert (one.facts.stuck, one.facts.gone, one.verdict.health) == (0, 0, Health.OK)
    assert one.facts.looked_ago == timedelta(minutes=3)


@pytest.mark.parametrize(
    ("done", "changed", "left"),
    [
        ({"stuck": 5, "message gone": 2, "content lost": 1}, None, (1, 0)),
        ({"stuck": 6, "message gone": 1}, None, (0, 2)),
        ({"message gone": 2, "content lost": 1}, None, (6, 0)),
        ({}, None, (6, 3)),
        # Their workers went on between plan and apply.
        ({"stuck": 1}, {"stuck": 3, "message gone": 1}, (2, 2)),
        ({}, {"stuck": 6, "message gone": 2, "content lost": 1}, (0, 0)),
    ],
)
def test_what_it_left_is(
    done: dict[str, int], changed: dict[str, int] | None, left: tuple[int, int]
) -> None:
    report = {**REPORT, "doneByState": done}
    if changed is not None:  # reports of earlier versions do not have it
        report["changedByState"] = changed
    facts = of_reports([report], NOW).facts
    assert (facts.stuck, facts.gone) == left


def test_a_run_that_failed_before_it_looked_hides_no_figure() -> None:
    failed = {"status": "failed", "finished": "2026-11-23T11:59:00Z", "message": "plan: away"}
    one = of_reports([failed, {**REPORT, "quarantined": 4}], NOW)
    assert (one.verdict.health, one.verdict.why) == (Health.UNKNOWN, "plan: away")
    shown = as_json(one)
    assert (shown["quarantined"], shown["lookedAt"]) == (4, NOW - timedelta(minutes=3))


def test_a_dry_run_ends_and_begins_no_word_and_no_alert() -> None:
    alerts = [{"alert": "gate"}]
    refused = {"status": "refused", "message": "gate check", "alerts": alerts}
    dry = {**REPORT, "params": {"dry_run": True}, "alerts": []}
    one = of_reports([dry, refused, REPORT], NOW)
    assert (one.facts.failed, one.report["alerts"]) == ("gate check", alerts)
    one = of_reports([{**refused, "params": {"dry_run": True}}, REPORT], NOW)
    assert (one.facts.failed, one.report["alerts"]) == (None, None)


def test_no_report_shows_no_zero() -> None:
    shown = as_json(of_reports([], NOW))
    assert {shown[name] for name in ("found", "stuck", "gone", "quarantined")} == {None}
