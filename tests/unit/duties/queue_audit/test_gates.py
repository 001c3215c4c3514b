"""What the gate of an audit stops, and what is published of it."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from mailslice.duties.queue_audit import duty
from mailslice.duties.queue_audit.duty import DUTY, file_of
from mailslice.duties.queue_audit.params import Params
from mailslice.engine.frames import InProcess
from mailslice.maintenance.audits import AuditPlan, AuditReads
from mailslice.maintenance.metrics import exposition, verdict_samples
from mailslice.maintenance.plan import digest_of, read_plan
from mailslice.maintenance.result import Summaries
from mailslice.maintenance.runner import partial_report, step_of
from mailslice.model.errors import GateFailed, PlanRefused
from mailslice.model.verdicts import MailVerdict, Verdict
from tests.unit.duties.judging import NOW, broken, rewritten, run_of

VERDICTS = {verdict.value: 0 for verdict in Verdict} | {"waiting": 2, "lost": 1}
HERE = SimpleNamespace(session=InProcess)
PARTLY = Params(slices_from=datetime(2026, 1, 1, tzinfo=UTC))
READS = AuditReads(requested=4, read=4, twice=0, candidates=4, judged=4)
MAILS = [
    MailVerdict(f"id-{number}", "name", verdict, "why", "v4", 0, 0, 0, "")
    for number, verdict in enumerate(["waiting", "waiting", "lost"])
]


@pytest.fixture
def run(tmp_path):
    return run_of(tmp_path, "queue_audit", Params(census=True), engine=HERE)


def plan_of(run, **change):
    parts = {
        "made_at": NOW - timedelta(hours=1),
        "older_than": timedelta(hours=2),
        "shared": False,
        "census": True,
        "unproved": False,
        "verdicts": VERDICTS,
        "verdict_files": (run.write_rows("verdicts", MAILS, MailVerdict),),
        "reads": READS,
    }
    return AuditPlan(run="r-1", queue="spool", **{**parts, **change})


def findings(run, *, rows=None, **change):
    plan = plan_of(run, **change)
    if rows is not None:
        rewritten(run.folder.artifacts.path(run.folder.file("plan/verdicts.parquet")), rows)
    return broken(*DUTY.check(run, plan))


def planned(run, plan, **more):
    """The run's folder, once the plan step has ended."""
    summary = {"decided": plan.as_json(), "planDigest": plan.digest, "planned": plan.planned}
    run.folder.write_json("plan.json", {**summary, "message": "3 mails", **more})
    return plan


def step(run, name):
    summary = step_of(DUTY, name)(run)
    run.folder.write_json({"apply": "applied.json"}.get(name, f"{name}.json"), summary)
    return summary


def lost_or_ghost(rows):
    return [{**row, "verdict": "lost or ghost"} for row in rows]


def test_a_good_audit_passes_and_an_old_one_does_not(run):
    assert findings(run) == set()
    planned(run, plan_of(run, made_at=NOW - timedelta(hours=25)))
    with pytest.raises(GateFailed, match="not older than 24 hours"):
        step(run, "check")


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"read": 3}, "places_read"),
        ({"twice": 1}, "places_read_twice"),
        ({"candidates": 5}, "judged"),
    ],
)
def test_a_partition_that_was_not_read_or_twice_and_a_mail_that_nobody_judged(run, change, column):
    assert findings(run, reads=READS.model_copy(update=change)) == {column}


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
def test_each_rule_over_the_mails_fails_by_the_files_own_rows(run, change, columns):
    assert findings(run, **change) == columns


def test_what_james_may_have_delivered_is_lost_or_ghost_on_a_queue_that_it_shares(run):
    assert findings(run, shared=True, rows=lost_or_ghost) == set()


def test_an_audit_is_read_as_it_was_decided(run):
    plan = planned(run, plan_of(run))
    audit = read_plan(run.need("plan"), AuditPlan, "r-1", "spool")
    assert (audit, audit.planned, audit.needless) == (plan, 3, False)
    assert list(audit.mails(run.folder.artifacts)) == MAILS
    none = READS.model_copy(update={"candidates": 0})
    assert plan_of(run, reads=none, verdict_files=()).needless


@pytest.mark.parametrize("change", [lambda rows: rows[:2], lambda rows: [*rows[:2], rows[0]]])
def test_files_that_were_changed_are_neither_read_nor_published(run, change):
    plan = planned(run, plan_of(run))
    step(run, "check")
    rewritten(run.folder.artifacts.path(run.folder.file("plan/verdicts.parquet")), change)
    with pytest.raises(PlanRefused, match="files of audit r-1 were changed"):
        next(plan.mails(run.folder.artifacts))
    with pytest.raises(PlanRefused, match="files of audit r-1 were changed"):
        step(run, "apply")
    assert run.folder.artifacts.read(file_of("spool")) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: {}, "cannot be read"),
        (lambda good: {"decided": {**good["decided"], "more": 1}}, "cannot be read"),
        (lambda good: {**good, "decided": {**good["decided"], "census": False}}, "was changed"),
        (lambda good: {**good, "planDigest": None}, "was changed"),
        (
            lambda good: {
                "decided": (other := {**good["decided"], "queue": "other"}),
                "planDigest": digest_of(other),
            },
            "not of run r-1 on queue spool",
        ),
    ],
)
def test_an_audit_that_was_changed_is_refused(run, change, words):
    plan = plan_of(run)
    good = {"decided": plan.as_json(), "planDigest": plan.digest}
    with pytest.raises(PlanRefused, match=words):
        read_plan(change(good), AuditPlan, "r-1", "spool")


def test_what_is_published_is_what_was_judged(run):
    planned(run, plan_of(run), verdicts=VERDICTS)
    step(run, "check")
    assert step(run, "apply")["applied"] == 3
    location = run.folder.artifacts
    assert location.read(file_of("spool")) == exposition(verdict_samples("spool", VERDICTS))
    step(run, "verify")
    assert DUTY.outcome(run, Summaries.load(run.folder, ())) == ("done", "3 mails")


def test_an_audit_of_some_slices_publishes_no_metrics(tmp_path):
    run = run_of(tmp_path, "queue_audit", PARTLY, engine=HERE)
    planned(run, plan_of(run))
    step(run, "check")
    assert step(run, "apply")["applied"] == 3
    assert run.folder.artifacts.read(file_of("spool")) is None
    step(run, "verify")


def test_files_with_fewer_mails_of_a_verdict_than_were_judged_so_fail(run):
    more = plan_of(run, verdicts=VERDICTS | {"ghost": 1})
    assert broken(duty.published(run, more)) == {"in_files, judged"}


def test_a_report_counts_every_verdict_once_the_run_has_a_plan(run):
    assert partial_report(DUTY, run.folder)["verdicts"] is None
    planned(run, plan_of(run), verdicts=VERDICTS, census={"taken": True})
    report = partial_report(DUTY, run.folder)
    assert (report["verdicts"], report["planned"], report["applied"]) == (VERDICTS, 3, 0)
    status, words = DUTY.outcome(run, Summaries.load(run.folder, ()))
    assert (status, words) == ("failed", "apply did not end: the verdicts were not published")


def test_metrics_tell_every_verdict_and_are_a_file_a_queue():
    text = exposition(verdict_samples("spool", VERDICTS)).decode()
    assert 'mailslice_audit_mails{queue="spool",verdict="lost"} 1.0' in text
    assert 'mailslice_audit_mails{queue="spool",verdict="ghost"} 0.0' in text
    assert (file_of("spool"), file_of("a b.c")) == (
        "metrics/mailslice-audit-spool.prom",
        "metrics/mailslice-audit-a%20b%2Ec.prom",
    )
