"""`repair_projection`.

Rows of messageIdTable are rewritten from the truth, those that the plan lists, each looked at
again.
"""

import time
from functools import partial
from types import SimpleNamespace

import pytest

from mailslice.duties.counter_repair import projection
from mailslice.model.errors import BadSetting
from mailslice.stores.cassandra.mailboxes import MailboxTables
from tests.services.duties.counter_repair.in_process import plain_differences, plain_survey


@pytest.fixture(scope="module")
def repaired(shared_james):
    """One mailbox with a row of every kind; some are moved between plan and apply."""
    james = shared_james
    mailbox = james.mailbox(messages=3, seen=1)
    kept = james.projection(mailbox)
    ids = {}
    for uid, name in (
        (11, "only truth"),
        (12, "only truth, came by itself"),
        (13, "deleted alone"),
        (14, "deleted alone, late flags"),
        (16, "deleted by James"),
        (17, "deleted since"),
    ):
        ids[name] = james.message(
            mailbox, uid, flags={"$Forwarded"}, modseq=40 + uid, tables=("imapuidtable",)
        )
    # A deletion of the projection alone: a tombstone that is newer than the truth.
    james.message(mailbox, 13, message=ids["deleted alone"], tables=("messageidtable",))
    james.remove(mailbox, 13, ids["deleted alone"], tables=("messageidtable",))
    # The same, and flags that came late.
    james.remove(mailbox, 14, ids["deleted alone, late flags"], tables=("messageidtable",))
    james.late_flags(mailbox, 14)
    james.late_flags(mailbox, 15)
    for uid, name in (
        (21, "only projected"),
        (22, "only projected, was right after all"),
        (23, "uid of another message"),
    ):
        ids[name] = james.message(mailbox, uid, tables=("messageidtable",))
    ids["the other message"] = james.message(mailbox, 23, tables=("imapuidtable",))
    for uid, name in ((31, "flags"), (32, "flags, changed again"), (33, "a flag alone")):
        ids[name] = james.message(mailbox, uid, seen=True, modseq=9)
        james.message(
            mailbox, uid, message=ids[name], modseq=8, flags={"old"}, tables=("messageidtable",)
        )
    james.execute(
        "UPDATE {ks}.messageidtable SET flagflagged = true WHERE mailboxid = %s AND uid = 33",
        mailbox,
    )
    james.execute(
        "UPDATE {ks}.messageidtable SET flagdraft = true WHERE mailboxid = %s AND uid = 21", mailbox
    )
    ids["first of a uid"] = james.message(mailbox, 41)
    ids["second of a uid"] = james.message(mailbox, 41, tables=("imapuidtable",))
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True)
    plan = james.steps(request, "plan")
    james.steps(request, "check")
    planned_us = int(time.time() * 1e6)
    ids["not planned"] = james.message(mailbox, 51, tables=("messageidtable",))
    james.remove(mailbox, 16, ids["deleted by James"])
    james.remove(mailbox, 17, ids["deleted since"], tables=("messageidtable",))
    james.message(
        mailbox,
        12,
        message=ids["only truth, came by itself"],
        flags={"$Forwarded"},
        modseq=52,
        tables=("messageidtable",),
    )
    james.message(
        mailbox, 22, message=ids["only projected, was right after all"], tables=("imapuidtable",)
    )
    james.message(
        mailbox,
        32,
        message=ids["flags, changed again"],
        seen=True,
        modseq=70,
        flags={"new"},
        tables=("imapuidtable",),
    )
    james.steps(request, "apply", "verify")
    report = james.steps(request, "report")
    rows = james.projection(mailbox)
    again = james.run(mailboxes=[str(mailbox)], repair_projection=True)
    return SimpleNamespace(
        plan=plan,
        report=report,
        again=again,
        ids=ids,
        rows=rows,
        kept=kept,
        james=james,
        mailbox=mailbox,
        planned_us=planned_us,
    )


def test_the_plan_lists_every_row(repaired):
    kinds = {name: count for name, count in repaired.plan["inconsistencies"].items() if count}
    assert kinds == {
        "onlyInImapUidTable": 8,
        "onlyInMessageIdTable": 3,
        "flagsDiffer": 3,
        "withoutMessageId": 2,
    }
    assert repaired.plan["projectionPlanned"] == 14


def test_rows_are_what_the_truth_says_now(repaired):
    ids = repaired.ids
    assert repaired.rows == {
        **repaired.kept,
        11: (ids["only truth"], False, 51, {"$Forwarded"}),
        12: (ids["only truth, came by itself"], False, 52, {"$Forwarded"}),
        13: (ids["deleted alone"], False, 53, {"$Forwarded"}),
        14: (ids["deleted alone, late flags"], False, 54, {"$Forwarded"}),
        15: (None, False, 99, set()),
        22: (ids["only projected, was right after all"], False, 22, set()),
        23: (ids["the other message"], False, 23, set()),
        31: (ids["flags"], True, 9, set()),
        32: (ids["flags, changed again"], True, 70, {"new"}),
        33: (ids["a flag alone"], True, 9, set()),
        41: (ids["first of a uid"], False, 41, set()),
        51: (ids["not planned"], False, 51, set()),
    }


def test_the_report_says_what_was_done_and_why_the_rest_was_not(repaired):
    done = repaired.report["projection"]
    assert {
        name: done[name] for name in ("planned", "written", "deleted", "failed", "left", "skipped")
    } == {
        "planned": 14,
        "written": 7,
        "deleted": 1,
        "failed": 0,
        "left": 0,
        "skipped": 6,
    }
    assert done["skippedBy"] == {
        projection.RIGHT_NOW: 4,
        projection.SHARED_UID: 1,
        projection.DELETED_LATER: 1,
    }


def test_the_next_run_finds_what_was_not_planned_what_nobody_can_decide_and_what_was_deleted_since(
    repaired,
):
    """The row that was deleted after the first plan began is older than the second one."""
    kinds = {name: count for name, count in repaired.again["inconsistencies"].items() if count}
    assert kinds == {"onlyInImapUidTable": 2, "onlyInMessageIdTable": 1, "withoutMessageId": 1}
    assert (repaired.again["projection"]["written"], repaired.again["projection"]["skippedBy"]) == (
        1,
        {projection.SHARED_UID: 1},
    )


def test_a_write_of_james_after_ours_wins(repaired):
    james, mailbox, ids = repaired.james, repaired.mailbox, repaired.ids
    written = james.execute(
        "SELECT WRITETIME(modseq) FROM {ks}.messageidtable WHERE mailboxid = %s AND uid = 11",
        mailbox,
    )[0][0]
    truth = james.execute(
        "SELECT WRITETIME(modseq) FROM {ks}.imapuidtable WHERE messageid = %s AND mailboxid ="
        " %s AND uid = 11",
        ids["only truth"],
        mailbox,
    )
    assert truth[0][0] < written < repaired.planned_us


def test_a_mailbox_that_is_gone_by_then_is_left_alone(james):
    mailbox = james.mailbox(messages=1)
    james.message(mailbox, 8, tables=("imapuidtable",))
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True)
    james.steps(request, "plan", "check")
    james.execute("DELETE FROM {ks}.mailbox WHERE id = %s", mailbox)
    applied = james.steps(request, "apply")
    assert applied["projection"]["skippedBy"] == {projection.NO_MAILBOX: 1}
    assert set(james.projection(mailbox)) == {1}


def test_without_it_nothing_of_the_projection_is_written(james):
    mailbox = james.mailbox(messages=1)
    james.message(mailbox, 8, tables=("imapuidtable",))
    report = james.run(mailboxes=[str(mailbox)])
    assert report["projection"] is None
    assert set(james.projection(mailbox)) == {1}


def only_truth(james, uid=8):
    """A mailbox with one message whose projection was deleted alone, and the message."""
    mailbox = james.mailbox(messages=1)
    message = james.message(mailbox, uid)
    james.remove(mailbox, uid, message, tables=("messageidtable",))
    james.add(mailbox, 1, 1)
    return mailbox, message


def test_a_projection_that_was_deleted_alone_is_written_and_the_next_run_finds_nothing(james):
    mailbox, message = only_truth(james)
    report = james.run(mailboxes=[str(mailbox)], repair_projection=True)
    assert (report["projection"]["written"], report["projection"]["skipped"]) == (1, 0)
    assert james.projection(mailbox)[8] == (message, False, 8, set())
    again = james.run(mailboxes=[str(mailbox)], repair_projection=True)
    assert (again["status"], sum(again["inconsistencies"].values())) == ("nothing to do", 0)


def test_what_james_deletes_after_the_row_was_written_stays_deleted(james):
    mailbox, message = only_truth(james)
    james.run(mailboxes=[str(mailbox)], repair_projection=True)
    james.remove(mailbox, 8, message)
    assert set(james.projection(mailbox)) == {1}


def test_what_differs_is_told_of_the_very_truth_that_was_counted(james):
    mailbox, message = only_truth(james)

    def later(*args):
        james.remove(mailbox, 8, message, tables=("imapuidtable",))
        return plain_differences(*args)

    james = james.using(survey=partial(plain_survey, compare=later))
    plan = james.steps(james.request(mailboxes=[str(mailbox)], repair_projection=True), "plan")
    assert (plan["wrong"], plan["inconsistencies"]["onlyInImapUidTable"]) == (0, 1)


def test_it_waits_for_settle_after_the_plan_although_no_counter_drifted(james):
    slept = []
    james = james.using(sleep=lambda seconds: slept.append(seconds) if seconds else None)
    mailbox, _ = only_truth(james)
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True, settle="7m")
    james.steps(request, "plan", "check", "apply")
    assert len(slept) == 1
    assert 400 < slept[0] <= 420
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True, settle="7m")
    done = james.steps(request, "plan", "check", "apply")["projection"]
    assert (len(slept), done["planned"]) == (1, 0)  # nothing is left to write


def test_a_row_that_cassandra_does_not_take_is_said_and_the_rest_goes_on(james, monkeypatch):
    mailbox, _ = only_truth(james)
    other = james.message(mailbox, 9, tables=("imapuidtable",))
    james.add(mailbox, 1, 1)
    truth = MailboxTables.truth

    def refused(self, message, *world):
        if message != other:
            raise BadSetting("Cassandra at x: InvalidRequest")
        return truth(self, message, *world)

    monkeypatch.setattr(MailboxTables, "truth", refused)
    done = james.run(mailboxes=[str(mailbox)], repair_projection=True)["projection"]
    assert (done["planned"], done["written"], done["failed"], done["skippedBy"]) == (2, 1, 1, {})


def test_cells_of_a_collection_that_are_newer_than_the_row_are_said_and_not_called_written(james):
    """They tell no time: what is written is older than them."""
    mailbox = james.mailbox(messages=1)
    ahead = int(time.time() * 1e6) + 3_600_000_000
    james.execute(
        f"UPDATE {{ks}}.messageidtable USING TIMESTAMP {ahead} SET userflags = userflags + "
        f"{{'late'}} WHERE mailboxid = %s AND uid = 1",
        mailbox,
    )
    done = james.run(mailboxes=[str(mailbox)], repair_projection=True)["projection"]
    assert (done["planned"], done["written"], done["skippedBy"]) == (1, 0, {projection.NEWER: 1})
    message = james.message(mailbox, 7, tables=("messageidtable",))
    james.execute(
        f"UPDATE {{ks}}.messageidtable USING TIMESTAMP {ahead} SET userflags = userflags + "
        f"{{'late'}} WHERE mailboxid = %s AND uid = 7",
        mailbox,
    )
    done = james.run(mailboxes=[str(mailbox)], repair_projection=True)["projection"]
    assert (done["planned"], done["deleted"], done["skippedBy"]) == (2, 0, {projection.NEWER: 2})
    assert message not in {row[0] for row in james.projection(mailbox).values()}
