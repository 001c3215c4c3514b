"""kill -9 around the claim and the update, and at the borders of steps.

No difference is ever applied twice, and what is not known is said (I7, I9).
"""

from mailslice.duties.counter_repair import decide
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.model.errors import StoreUnavailable
from mailslice.stores.cassandra.mailboxes import MailboxTables


def one_drifted(james, **params):
    mailbox = james.mailbox(messages=5, seen=2, add=(2, 1))
    request = james.request(mailboxes=[str(mailbox)], **params)
    james.steps(request, "plan", "check")
    return mailbox, request


def test_killed_before_the_claim_the_same_run_goes_on(james):
    mailbox, request = one_drifted(james)
    for point in ("apply:locked", "apply:before-claim"):
        james.kill("apply", request, point)
        james.let_the_locks_run_out()
        assert james.counters(mailbox) == (7, 4)
        assert james.stores.own.counter_claims.list(mailbox) == []
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["unknown"]) == ("done", 1, 0)
    assert james.counters(mailbox) == (5, 3)


def test_killed_between_claim_and_update_its_run_sends_none_and_the_next_corrects(james, long_ago):
    mailbox, request = one_drifted(james)
    james.kill("apply", request, "apply:after-claim")
    james.let_the_locks_run_out()
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["unknown"], report["failedMailboxes"]) == (
        "failed",
        0,
        1,
        1,
    )
    assert report["failures"] == {str(mailbox): decide.UNKNOWN_UPDATE}
    assert james.counters(mailbox) == (7, 4)
    assert james.run(mailboxes=[str(mailbox)])["applied"] == 1
    assert james.counters(mailbox) == (5, 3)


def test_killed_after_the_update_it_is_not_sent_again_by_any_run(james, long_ago):
    mailbox, request = one_drifted(james)
    james.kill("apply", request, "apply:after-update")
    james.let_the_locks_run_out()
    assert james.counters(mailbox) == (5, 3)
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["unknown"]) == ("done", 1, 0)
    assert james.counters(mailbox) == (5, 3)
    assert james.run(mailboxes=[str(mailbox)])["wrong"] == 0


def test_killed_after_the_update_in_a_mailbox_that_moved_on_it_stays_unknown(james):
    mailbox, request = one_drifted(james)
    james.kill("apply", request, "apply:after-update")
    james.let_the_locks_run_out()
    james.message(mailbox, 9)
    james.add(mailbox, 1, 1)
    applied = james.steps(request, "apply")
    assert (applied["applied"], applied["unknown"]) == (0, 1)
    assert james.counters(mailbox) == (6, 4)


def test_james_changes_of_as_much_are_not_taken_for_the_update(james, long_ago):
    """Killed before it was sent; then James appended what the counters lacked."""
    mailbox = james.mailbox(messages=5, seen=2, add=(-1, -1))
    request = james.request(mailboxes=[str(mailbox)])
    james.steps(request, "plan", "check")
    james.kill("apply", request, "apply:after-claim")
    james.let_the_locks_run_out()
    james.message(mailbox, 9)
    james.add(mailbox, 1, 1)
    applied = james.steps(request, "apply")
    assert (applied["applied"], applied["unknown"]) == (0, 1)


def test_an_update_of_which_a_replica_that_is_away_may_know_stays_unknown(james, monkeypatch):
    _, request = one_drifted(james)
    james.kill("apply", request, "apply:after-update")
    james.let_the_locks_run_out()

    def away(*_):
        raise StoreUnavailable("a replica does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(MailboxTables, "counters_of_all_replicas", away)
        applied = james.steps(request, "apply")
    assert (applied["applied"], applied["unknown"]) == (0, 1)
    assert james.steps(request, "apply", "verify", "report")["applied"] == 1


def test_killed_after_the_counters_or_in_the_projection_the_rest_is_done_once(james):
    mailbox = james.mailbox(messages=5, seen=2)
    james.message(mailbox, 8, tables=("imapuidtable",))
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True)
    james.steps(request, "plan", "check")
    for point in ("apply:after-counters", "apply:projection-read"):
        james.kill("apply", request, point)
        james.let_the_locks_run_out()
        assert james.counters(mailbox) == (6, 4)
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["projection"]["written"]) == ("done", 1, 1)
    assert james.counters(mailbox) == (6, 4)
    assert set(james.projection(mailbox)) == {1, 2, 3, 4, 5, 8}
    again = james.run(mailboxes=[str(mailbox)], repair_projection=True)
    assert (again["status"], again["wrong"], sum(again["inconsistencies"].values())) == (
        "nothing to do",
        0,
        0,
    )


def test_a_run_that_is_cleared_and_planned_again_leaves_out_what_it_has_corrected(james):
    mailbox, request = one_drifted(james)
    assert james.steps(request, "apply", "verify", "report")["applied"] == 1
    james.add(mailbox, 1, 0)
    report = james.steps(request, "plan", "check", "apply", "verify", "report")
    assert (report["status"], report["applied"]) == ("done", 0)
    assert report["skippedBy"] == {decide.EARLIER_PLAN: 1}
    assert james.counters(mailbox) == (6, 3)
    assert james.run(mailboxes=[str(mailbox)])["applied"] == 1


def test_a_plan_that_was_killed_changed_nothing_and_is_made_anew_by_the_same_run(james):
    mailbox = james.mailbox(messages=5, seen=2, add=(2, 1))
    request = james.request(mailboxes=[str(mailbox)])
    james.kill("plan", request, "plan:after-scan")
    assert (james.counters(mailbox), james.stores.own.counter_claims.list(mailbox)) == ((7, 4), [])
    report = james.steps(request, "plan", "check", "apply", "verify", "report")
    assert (report["status"], report["wrong"], report["applied"]) == ("done", 1, 1)
    assert james.counters(mailbox) == (5, 3)
    parts = [
        name
        for name in RunFolder(
            artifacts(james.settings), "counter_repair", "-", request.run
        ).artifacts.files("runs")
        if request.run in name
    ]
    assert sum("/plan/drifts" in name for name in parts) == 1, (
        "the files of the plan that was killed are still there"
    )
