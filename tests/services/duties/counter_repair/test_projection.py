"""`repair_projection`: rows of messageIdTable are rewritten from the truth, those that the plan lists, each looked at again."""

from types import SimpleNamespace

import pytest

from mailslice.duties.counter_repair import projection


@pytest.fixture(scope="module")
def repaired(shared_james, module_without_spark):
    """One mailbox with a row of every kind; some are moved between plan and apply."""
    james = shared_james
    mailbox = james.mailbox(messages=3, seen=1)
    kept = james.projection(mailbox)
    ids = {}
    for uid, name in ((11, "only truth"), (12, "only truth, came by itself"), (13, "deleted later")):
        ids[name] = james.message(mailbox, uid, flags={"$Forwarded"}, modseq=40 + uid, tables=("imapuidtable",))
    # James deletes with its own clock's time: a tombstone that is newer than the truth.
    james.message(mailbox, 13, message=ids["deleted later"], tables=("messageidtable",))
    james.remove(mailbox, 13, ids["deleted later"], tables=("messageidtable",))
    for uid, name in ((21, "only projected"), (22, "only projected, was right after all"), (23, "uid of another message")):
        ids[name] = james.message(mailbox, uid, tables=("messageidtable",))
    ids["the other message"] = james.message(mailbox, 23, tables=("imapuidtable",))
    for uid, name in ((31, "flags"), (32, "flags, changed again")):
        ids[name] = james.message(mailbox, uid, seen=True, modseq=9)
        james.message(mailbox, uid, message=ids[name], modseq=8, flags={"old"}, tables=("messageidtable",))
    ids["first of a uid"] = james.message(mailbox, 41)
    ids["second of a uid"] = james.message(mailbox, 41, tables=("imapuidtable",))
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True)
    plan = james.steps(request, "plan")
    james.steps(request, "check")
    ids["not planned"] = james.message(mailbox, 51, tables=("messageidtable",))
    james.message(mailbox, 12, message=ids["only truth, came by itself"], flags={"$Forwarded"}, modseq=52, tables=("messageidtable",))
    james.message(mailbox, 22, message=ids["only projected, was right after all"], tables=("imapuidtable",))
    james.message(mailbox, 32, message=ids["flags, changed again"], seen=True, modseq=70, flags={"new"}, tables=("imapuidtable",))
    james.steps(request, "apply", "verify")
    report = james.steps(request, "report")
    return SimpleNamespace(plan=plan, report=report, ids=ids, rows=james.projection(mailbox), kept=kept, james=james, mailbox=mailbox)


def test_the_plan_lists_every_row(repaired):
    kinds = {name: count for name, count in repaired.plan["inconsistencies"].items() if count}
    assert kinds == {"onlyInImapUidTable": 5, "onlyInMessageIdTable": 3, "flagsDiffer": 2}
    assert repaired.plan["projectionPlanned"] == 10


def test_rows_are_what_the_truth_says_now(repaired):
    ids = repaired.ids
    assert repaired.rows == {
        **repaired.kept,
        11: (ids["only truth"], False, 51, {"$Forwarded"}),
        12: (ids["only truth, came by itself"], False, 52, {"$Forwarded"}),
        22: (ids["only projected, was right after all"], False, 22, set()),
        23: (ids["the other message"], False, 23, set()),
        31: (ids["flags"], True, 9, set()),
        32: (ids["flags, changed again"], True, 70, {"new"}),
        41: (ids["first of a uid"], False, 41, set()),
        51: (ids["not planned"], False, 51, set()),
    }


def test_the_report_says_what_was_done_and_why_the_rest_was_not(repaired):
    done = repaired.report["projection"]
    assert {name: done[name] for name in ("planned", "written", "deleted", "failed", "left", "skipped")} == {
        "planned": 10,
        "written": 4,
        "deleted": 1,
        "failed": 0,
        "left": 0,
        "skipped": 5,
    }
    assert done["skippedBy"] == {projection.RIGHT_NOW: 3, projection.SHARED_UID: 1, projection.DELETED_LATER: 1}


def test_a_write_of_james_after_ours_wins(repaired):
    james, mailbox, ids = repaired.james, repaired.mailbox, repaired.ids
    written = james.execute("SELECT WRITETIME(modseq) FROM {ks}.messageidtable WHERE mailboxid = %s AND uid = 11", mailbox)[0][0]
    truth = james.execute("SELECT WRITETIME(modseq) FROM {ks}.imapuidtable WHERE messageid = %s AND mailboxid = %s AND uid = 11", ids["only truth"], mailbox)
    assert written == truth[0][0] + 1


def test_a_mailbox_that_is_gone_by_then_is_left_alone(james):
    mailbox = james.mailbox(messages=1)
    james.message(mailbox, 8, tables=("imapuidtable",))
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True)
    james.steps(request, "plan", "check")
    james.execute("DELETE FROM {ks}.mailbox WHERE id = %s", mailbox)
    applied = james.steps(request, "apply")
    assert applied["projection"]["skippedBy"] == {projection.GONE: 1}
    assert set(james.projection(mailbox)) == {1}


def test_without_it_nothing_of_the_projection_is_written(james):
    mailbox = james.mailbox(messages=1)
    james.message(mailbox, 8, tables=("imapuidtable",))
    report = james.repair(mailboxes=[str(mailbox)])
    assert report["projection"] is None
    assert set(james.projection(mailbox)) == {1}
