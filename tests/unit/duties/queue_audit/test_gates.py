"""What the gate of an audit stops, and what is published of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.duties.queue_audit import check
from mailslice.duties.queue_audit.metrics import file_of, prometheus_text
from mailslice.duty.audits import read_audit
from mailslice.duty.plans import digest_of
from mailslice.model.errors import PlanRefused
from mailslice.model.verdicts import Verdict
from mailslice.quality import gate

VERDICTS = {verdict.value: 0 for verdict in Verdict} | {"waiting": 2, "lost": 1}
DECIDED = {
    "run": "r-1",
    "queue": "spool",
    "madeAt": "2026-11-21T12:00:00Z",
    "olderThan": "2h",
    "shared": False,
    "census": True,
    "verdicts": VERDICTS,
    "rows": f"3-{1:032x}-{1:032x}",
    "files": ["part-1.parquet"],
}
GOOD = {
    "decided": DECIDED,
    "planDigest": digest_of(DECIDED),
    "verdicts": VERDICTS,
    "mails": 3,
    "goneMeanwhile": 1,
    "census": {"taken": True, "unproved": None},
    "reads": {"wanted": 4, "read": 4, "twice": 0, "candidates": 4, "rows": 9},
}


class Docs:
    duty, queue, run, run_name = "queue_audit", "spool", "r-1", "r-1"


@pytest.fixture(autouse=True)
def _no_docs(monkeypatch):
    monkeypatch.setattr(gate, "_publish", lambda *_: "not rendered")


def findings(found, age=0.0):
    result = gate.judge("check", [check.totals(found, age)], Docs())
    return {finding.column for finding in result.findings if not finding.success}


BAD = [
    ({"reads": {**GOOD["reads"], "read": 3}}, {"places_read"}),
    ({"reads": {**GOOD["reads"], "twice": 1}}, {"places_read_twice"}),
    ({"reads": {**GOOD["reads"], "candidates": 5}}, {"candidates_told"}),
    ({"verdicts": {**VERDICTS, "waiting": 3}}, {"mails"}),
    ({"verdicts": {**VERDICTS, "gone": 0}}, {"unknown_verdicts"}),
    ({"decided": {**DECIDED, "census": False}}, {"lost_without_census"}),
    ({"census": {"taken": True, "unproved": "consumers hold 3"}}, {"lost_unproved"}),
    ({"decided": {**DECIDED, "shared": True}}, {"lost_on_shared"}),
    ({"verdicts": {**VERDICTS, "lost": 0, "lost or ghost": 1}}, {"doubtful_on_own"}),
]


def test_a_good_audit_passes_and_an_old_one_does_not():
    assert findings(GOOD) == set()
    assert findings(GOOD, age=25.0) == {"age_hours"}


@pytest.mark.parametrize(("change", "broken"), BAD)
def test_each_rule_names_itself(change, broken):
    assert findings(GOOD | change) == broken


class Folder:
    run, queue, uri = "r-1", "spool", "there"


def test_an_audit_is_read_as_it_was_decided():
    audit = read_audit(GOOD, Folder())
    assert (audit.run, audit.census, audit.shared, audit.files) == (
        "r-1",
        True,
        False,
        ("part-1.parquet",),
    )
    assert audit.made_at == datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert replace(audit, made_at=audit.made_at + timedelta(1)) != audit
    assert not audit.needless
    assert read_audit(GOOD | {"census": {"taken": False, "needless": True}}, Folder()).needless


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({}, "cannot be read"),
        ({"decided": None}, "cannot be read"),
        ({**GOOD, "census": "taken"}, "cannot be read"),
        ({**GOOD, "decided": {**DECIDED, "census": False}}, "was changed"),
        ({**GOOD, "planDigest": None}, "was changed"),
        (
            {"decided": (other := {**DECIDED, "queue": "other"}), "planDigest": digest_of(other)},
            "not of run r-1 on queue spool",
        ),
    ],
)
def test_an_audit_that_was_changed_is_refused(summary, words):
    with pytest.raises(PlanRefused, match=words):
        read_audit(summary, Folder())


def test_metrics_tell_every_verdict_and_are_a_file_a_queue():
    text = prometheus_text("spool", VERDICTS).decode()
    assert 'mailslice_audit_mails{queue="spool",verdict="lost"} 1.0' in text
    assert 'mailslice_audit_mails{queue="spool",verdict="ghost"} 0.0' in text
    assert (file_of("spool"), file_of("a b.c")) == (
        "metrics/mailslice-audit-spool.prom",
        "metrics/mailslice-audit-a%20b%2Ec.prom",
    )
