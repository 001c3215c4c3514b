"""What the gate before a republish stops, by the plan's own file and by the audit's."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.duties.republish_lost import check
from mailslice.duties.republish_lost.plan_file import FILE, Plan
from mailslice.spark.verdict_files import Judged, JudgedWriter, digest_of_judged
from tests.unit.duties.judging import NOW, broken, context_of, rewritten

MAILS = [Judged(f"id-{number}", "name", "lost", "why", "v4", 0, 0, 0, "") for number in range(3)]
PLAN = Plan("r-1", "spool", NOW, "audit-1", "digest", False, False, digest_of_judged(MAILS))


class Audit(SimpleNamespace):
    digest, census, listed = "digest", True, MAILS

    def proved(self):
        return self

    def mails(self):
        return iter(self.listed)


@pytest.fixture
def context(tmp_path):
    made = context_of(tmp_path, "republish_lost")
    writer = JudgedWriter(made.folder.artifacts, made.folder.file(FILE))
    writer.add(MAILS)
    writer.close()
    return made


def mails(context, plan=PLAN, **audit):
    return broken(check.mails(context, plan, Audit(**audit)))


def test_a_plan_of_what_the_audit_proved_passes(context):
    assert mails(context) == set()
    assert broken(check.totals(context, PLAN, Audit())) == set()


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        (lambda rows: rows[:2], {"rows"}),
        (lambda rows: [rows[0], rows[0], rows[1]], {"enqueue_id"}),
        (lambda rows: [{**row, "verdict": "waiting"} for row in rows], {"verdict"}),
        (lambda rows: [{**row, "verdict": "lost or ghost"} for row in rows], {"verdict"}),
        (lambda rows: [{**rows[0], "verdict": None}, *rows[1:]], {"verdict"}),
        (lambda rows: [{**rows[0], "enqueue_id": "other"}, *rows[1:]], {"of_the_audit"}),
    ],
)
def test_each_rule_fails_by_rows_of_the_plans_file(context, change, columns):
    rewritten(context.folder.artifacts.path(context.folder.file(FILE)), change)
    assert mails(context) == columns


def test_what_james_may_have_delivered_is_listed_where_duplicates_are_accepted(context):
    ghosts = [replace(mail, verdict="lost or ghost") for mail in MAILS]
    path = context.folder.artifacts.path(context.folder.file(FILE))
    rewritten(path, lambda rows: [{**row, "verdict": "lost or ghost"} for row in rows])
    assert mails(context, listed=ghosts) == {"verdict"}
    assert mails(context, replace(PLAN, accept_duplicates=True), listed=ghosts) == set()


def test_a_mail_that_the_audit_says_waits_is_not_published(context):
    waiting = [replace(MAILS[0], verdict="waiting"), *MAILS[1:]]
    assert mails(context, listed=waiting) == {"of_the_audit"}


def test_another_audit_one_without_census_and_an_old_plan_fail(context):
    old = replace(PLAN, made_at=NOW - timedelta(hours=25))
    assert broken(check.totals(context, PLAN, Audit(digest="other"))) == {"other_audit"}
    assert broken(check.totals(context, PLAN, Audit(census=False))) == {"audit_without_census"}
    assert broken(check.totals(context, old, Audit())) == {"age_hours"}
