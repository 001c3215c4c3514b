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
from mailslice.spark.verdict_files import Judged, JudgedWriter, digest_of_judged
from tests.unit.duties.judging import broken, context_of, rewritten

VERDICTS = {verdict.value: 0 for verdict in Verdict} | {"waiting": 2, "lost": 1}
READS = {"wanted": 4, "read": 4, "twice": 0, "candidates": 4, "rows": 9, "judged": 4}
MAILS = [
    Judged(f"id-{number}", "name", verdict, "why", "v4", 0, 0, 0, "")
    for number, verdict in enumerate(["waiting", "waiting", "lost"])
]
DECIDED = {
    "run": "r-1",
    "queue": "spool",
    "madeAt": "2026-11-22T11:00:00Z",
    "olderThan": "2h",
    "shared": False,
    "census": True,
    "verdicts": VERDICTS,
    "rows": str(digest_of_judged(MAILS)),
    "files": ["part-1.parquet"],
    "reads": READS,
    "unproved": False,
}
GOOD = {
    "decided": DECIDED,
    "planDigest": digest_of(DECIDED),
    "verdicts": VERDICTS,
    "mails": 3,
    "goneMeanwhile": 1,
    "census": {"taken": True, "unproved": None},
    "reads": READS,
}


@pytest.fixture
def context(tmp_path):
    made = context_of(tmp_path, "queue_audit")
    writer = JudgedWriter(made.folder.artifacts, made.folder.file("plan/part-1.parquet"))
    writer.add(MAILS)
    writer.close()
    return made


def findings(context, *, unproved=False, rows=None, **change):
    if rows is not None:
        path = context.folder.artifacts.path(context.folder.file("plan/part-1.parquet"))
        rewritten(path, rows)
    decided = DECIDED | change
    audit = read_audit({"decided": decided, "planDigest": digest_of(decided)}, context.folder)
    return broken(check.mails(context, audit, unproved=unproved))


def lost_or_ghost(rows):
    return [{**row, "verdict": "lost or ghost"} for row in rows]


def test_a_good_audit_passes_and_an_old_one_does_not(context):
    assert findings(context) == set()
    assert broken(check.totals(READS, 0.0)) == set()
    assert broken(check.totals(READS, 25.0)) == {"age_hours"}


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"read": 3}, "places_read"),
        ({"twice": 1}, "places_read_twice"),
        ({"candidates": 5}, "judged"),
    ],
)
def test_a_partition_that_was_not_read_or_twice_and_a_mail_that_nobody_judged(change, column):
    assert broken(check.totals(READS | change, 0.0)) == {column}


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        ({"census": False}, {"verdict"}),
        ({"unproved": True}, {"verdict"}),
        ({"shared": True}, {"verdict"}),
        ({"rows": lost_or_ghost}, {"verdict"}),
        ({"rows": lambda rows: [{**row, "verdict": "gone"} for row in rows]}, {"verdict"}),
        ({"rows": lambda rows: [{**row, "verdict": None} for row in rows]}, {"verdict"}),
        ({"rows": lambda rows: rows[:2]}, {"rows"}),
        (
            {"rows": lambda rows: [rows[0], rows[0], rows[2]]},
            {"table, slice_ms, bucket, enqueue_id"},
        ),
    ],
)
def test_each_rule_over_the_mails_fails_by_the_files_own_rows(context, change, columns):
    assert findings(context, **change) == columns


def test_what_james_may_have_delivered_is_lost_or_ghost_on_a_queue_that_it_shares(context):
    assert findings(context, shared=True, rows=lost_or_ghost) == set()


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
    assert audit.made_at == datetime(2026, 11, 22, 11, tzinfo=UTC)
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
