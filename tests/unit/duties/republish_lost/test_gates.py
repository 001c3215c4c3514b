"""What the gates around a republish stop, by the plan's own file, the audit's files and the ledger
of decisions.
"""

from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest

from mailslice.duties.republish_lost.duty import DUTY, RepublishPlan
from mailslice.duties.republish_lost.params import Params
from mailslice.maintenance import audits
from mailslice.maintenance.result import Result
from mailslice.model.mail import EnqueueId
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
def failing_frames(tmp_path, monkeypatch):
    """The columns that fail for these mails, as they are read back from the plan's file."""

    def one(mails=MAILS, *, accept_duplicates=False, **audit):
        monkeypatch.setattr(audits, "audit_of", lambda *_: Audit(**audit))
        run = run_of(tmp_path, "republish_lost", Params())
        plan = plan_of(run, mails, accept_duplicates=accept_duplicates)
        return broken(*DUTY.check(run, plan))

    return one


def test_a_plan_of_what_the_audit_proved_passes(failing_frames):
    assert failing_frames() == set()
    assert failing_frames([]) == set()


@pytest.mark.parametrize(
    ("mails", "columns"),
    [
        ([MAILS[0], MAILS[0], MAILS[1]], {"enqueue_id"}),
        ([replace(mail, verdict="waiting") for mail in MAILS], {"verdict"}),
        ([replace(mail, verdict="lost or ghost") for mail in MAILS], {"verdict"}),
        ([replace(MAILS[0], enqueue_id="other"), *MAILS[1:]], {"of_the_audit"}),
    ],
)
def test_each_rule_fails_by_rows_of_the_plans_file(failing_frames, mails, columns):
    assert failing_frames(mails) == columns


def test_what_james_may_have_delivered_is_listed_where_duplicates_are_accepted(failing_frames):
    ghosts = [replace(mail, verdict="lost or ghost") for mail in MAILS]
    assert failing_frames(ghosts, listed=ghosts) == {"verdict"}
    assert failing_frames(ghosts, listed=ghosts, accept_duplicates=True) == set()


def test_a_mail_that_the_audit_says_waits_is_not_published(failing_frames):
    assert failing_frames(listed=[replace(MAILS[0], verdict="waiting"), *MAILS[1:]]) == {
        "of_the_audit"
    }


def test_another_audit_and_one_without_census_fail(failing_frames):
    assert failing_frames(digest="other") == {"other_audit"}
    assert failing_frames(census=False) == {"audit_without_census"}


class Ledger:
    """Stores after an apply: what the ledger of decisions says. `asked`: the sizes of its reads."""

    def __init__(self, state=PublishState.PUBLISHED):
        self.state, self.asked = state, []
        self.own = SimpleNamespace(republished_mails=SimpleNamespace(by_ids=self.decisions))

    def decisions(self, _queue, ids):
        self.asked.append(len(ids))
        return {one: Republished(one, "r-1#1", "r-1", self.state, "tester", NOW) for one in ids}


@pytest.fixture
def verified(tmp_path):
    """The columns that fail for these published mails."""

    def one(stores, ids, applied=None):
        run = run_of(tmp_path, "republish_lost", Params(), stores=stores)
        mails = [replace(MAILS[0], enqueue_id=str(each)) for each in ids]
        result = Result(applied=len(ids) if applied is None else applied)
        return broken(*DUTY.verify(run, plan_of(run, mails), result))

    return one


IDS = [EnqueueId(UUID(int=number)) for number in range(1, 2002)]


@pytest.mark.parametrize(
    ("state", "columns"), [(PublishState.PUBLISHED, set()), (PublishState.CLAIMED, {"unrecorded"})]
)
def test_a_publish_that_is_not_in_the_ledger_of_decisions_fails(verified, state, columns):
    """Rows and marks say nothing: a worker delivers the mail, and a cleanup takes both."""
    assert verified(Ledger(state), IDS[:1]) == columns


def test_a_verify_reads_a_thousand_mails_at_a_time(verified):
    ledger = Ledger()
    assert verified(ledger, IDS) == set()
    assert ledger.asked == [1000, 1000, 1]
    assert verified(ledger, IDS, applied=len(IDS) + 1) == {"unrecorded"}
