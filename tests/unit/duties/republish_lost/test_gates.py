"""What the gates around a republish stop, by the plan's own file, the audit's files and the ledger
of decisions.
"""

from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest

from mailslice.duties.republish_lost import duty
from mailslice.duties.republish_lost.duty import DUTY, RepublishPlan
from mailslice.duties.republish_lost.params import Params
from mailslice.maintenance.result import Result
from mailslice.model.mail import EnqueueId
from mailslice.model.names import QueueTable
from mailslice.model.verdicts import MailVerdict
from mailslice.stores.cassandra.own import PublishState, Republished
from tests.unit.duties.judging import NOW, broken, run_of

MAILS = [
    MailVerdict(f"id-{number}", "name", "lost", "why", "v4", 0, 0, 0, "") for number in range(3)
]


class Audit(SimpleNamespace):
    digest, census, listed = "digest", True, MAILS

    def mails(self, _location):
        return iter(self.listed)


def plan_of(run, mails, *, accept_duplicates=False):
    return RepublishPlan(
        run="r-1",
        queue="spool",
        made_at=NOW,
        audit="audit-1",
        audit_digest="digest",
        accept_duplicates=accept_duplicates,
        repeat_unknown=False,
        mails=run.write_rows("mails", mails, MailVerdict),
    )


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """The columns that fail for these mails, as they are read back from the plan's file."""

    def one(mails=MAILS, *, accept_duplicates=False, **audit):
        monkeypatch.setattr(duty, "audit_of", lambda *_: Audit(**audit))
        run = run_of(tmp_path, "republish_lost", Params())
        plan = plan_of(run, mails, accept_duplicates=accept_duplicates)
        return broken(*DUTY.check(run, plan))

    return one


def test_a_plan_of_what_the_audit_proved_passes(judge):
    assert judge() == set()
    assert judge([]) == set()


@pytest.mark.parametrize(
    ("mails", "columns"),
    [
        ([MAILS[0], MAILS[0], MAILS[1]], {"enqueue_id"}),
        ([replace(mail, verdict="waiting") for mail in MAILS], {"verdict"}),
        ([replace(mail, verdict="lost or ghost") for mail in MAILS], {"verdict"}),
        ([replace(MAILS[0], enqueue_id="other"), *MAILS[1:]], {"of_the_audit"}),
    ],
)
def test_each_rule_fails_by_rows_of_the_plans_file(judge, mails, columns):
    assert judge(mails) == columns


def test_what_james_may_have_delivered_is_listed_where_duplicates_are_accepted(judge):
    ghosts = [replace(mail, verdict="lost or ghost") for mail in MAILS]
    assert judge(ghosts, listed=ghosts) == {"verdict"}
    assert judge(ghosts, listed=ghosts, accept_duplicates=True) == set()


def test_a_mail_that_the_audit_says_waits_is_not_published(judge):
    assert judge(listed=[replace(MAILS[0], verdict="waiting"), *MAILS[1:]]) == {"of_the_audit"}


def test_another_audit_and_one_without_census_fail(judge):
    assert judge(digest="other") == {"other_audit"}
    assert judge(census=False) == {"audit_without_census"}


@pytest.mark.parametrize(
    ("state", "columns"), [(PublishState.PUBLISHED, set()), (PublishState.CLAIMED, {"unrecorded"})]
)
def test_a_publish_that_is_not_in_the_ledger_of_decisions_fails(tmp_path, state, columns):
    lost = EnqueueId(UUID(int=1))
    decision = Republished(lost, "r-1#1", "r-1", state, "tester", NOW)
    row = SimpleNamespace(enqueue_id=lost)
    view = SimpleNamespace(table=QueueTable.V4, by_ids=lambda *_: [row])
    stores = SimpleNamespace(
        own=SimpleNamespace(republished_mails=SimpleNamespace(by_ids=lambda *_: {lost: decision})),
        tables=SimpleNamespace(existing=[view]),
    )
    run = run_of(tmp_path, "republish_lost", Params(), stores=stores)
    mail = replace(MAILS[0], enqueue_id=str(lost), table=QueueTable.V4.value)
    assert broken(*DUTY.verify(run, plan_of(run, [mail]), Result(applied=1))) == columns
