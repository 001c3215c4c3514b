"""What the gates around a republish stop, by the plan's own file, the audit's files and the ledger
of decisions.
"""

from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest

from mailslice.codec.row import instant
from mailslice.duties.republish_lost import duty
from mailslice.duties.republish_lost.duty import DUTY, RepublishPlan
from mailslice.duties.republish_lost.params import Params
from mailslice.maintenance.result import Result
from mailslice.model.mail import EnqueueId, Partition
from mailslice.model.names import EVENT_STORE, QueueTable
from mailslice.model.settings import Settings
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


class Ledger:
    """Stores after an apply: mails that were published, those with rows, those that are marked.

    `asked`: the sizes of reads of decisions, and the partitions of each read of rows.
    """

    def __init__(self, state=PublishState.PUBLISHED, rows=frozenset(), marked=frozenset()):
        self.state, self.rows, self.done, self.asked = state, rows, marked, []
        self.own = SimpleNamespace(republished_mails=SimpleNamespace(by_ids=self.decisions))
        self.settings = Settings()
        self.tables = SimpleNamespace(
            existing=[SimpleNamespace(table=QueueTable.V4, by_ids=self.by_ids)],
            deleted=SimpleNamespace(marked=lambda _queue, ids: self.done & set(ids)),
            browse_starts=SimpleNamespace(get=lambda _: SimpleNamespace(value=self.browse)),
            missing=lambda: [EVENT_STORE],
        )

    browse = instant(0)

    def decisions(self, _queue, ids):
        self.asked.append(len(ids))
        return {one: Republished(one, "r-1#1", "r-1", self.state, "tester", NOW) for one in ids}

    def by_ids(self, _queue, ids_by_partition):
        asked = list(ids_by_partition)
        self.asked.append([partition for partition, _ in asked])
        return [
            SimpleNamespace(enqueue_id=one, partition=partition)
            for partition, ids in asked
            for one in ids
            if one in self.rows
        ]


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
    assert verified(Ledger(state, frozenset(IDS[:1])), IDS[:1]) == columns


@pytest.mark.parametrize(
    ("rows", "marked", "browse", "columns"),
    [
        (IDS[:3], [], 0, set()),
        (IDS[:2], IDS[2:3], 0, set()),
        (IDS[:2], [], 0, {"vanished"}),
        (IDS[:2], [], 7_200_000, set()),
    ],
)
def test_a_published_mail_with_neither_row_nor_mark_fails_unless_it_is_behind_browse_start(
    verified, rows, marked, browse, columns
):
    ledger = Ledger(rows=frozenset(rows), marked=frozenset(marked))
    ledger.browse = instant(browse)
    assert verified(ledger, IDS[:3]) == columns


def test_a_verify_reads_a_thousand_mails_at_a_time_and_a_partition_at_once(verified):
    ledger = Ledger(rows=frozenset(IDS))
    assert verified(ledger, IDS) == set()
    one = [Partition(instant(0), 0)]
    assert ledger.asked == [1000, one, 1000, one, 1, one]
    assert verified(ledger, IDS, applied=len(IDS) + 1) == {"unrecorded"}
