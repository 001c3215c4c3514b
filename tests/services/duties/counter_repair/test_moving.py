"""What happens in mailboxes between the two reads, and to a run that is not alone (I9).

One plan for many mailboxes: each is moved in its own way.
"""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from mailslice.duties.counter_repair import corrections, decide
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.lock import Lock, LockLost
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadSetting, GateFailed, StoreUnavailable
from mailslice.stores.cassandra.mailboxes import Counters, MailboxTables
from mailslice.stores.cassandra.own import CounterClaim
from tests.acceptance.proxy import Proxy
from tests.services.duties.world import raising


def drifted(james, count=1):
    """Mailboxes of five messages that show two too many."""
    return [james.mailbox(messages=5, seen=2, add=(2, 1)) for _ in range(count)]


def planned(james, mailboxes, **params):
    request = james.request(mailboxes=[str(each) for each in mailboxes], **params)
    james.steps(request, "plan", "check")
    return request


def outcomes(james, request):
    folder = RunFolder(artifacts(james.settings), request.duty, request.queue, request.run)
    return {
        mailbox: tuple(outcome)
        for mailbox, outcome in folder.read_json("applied.json")["outcomes"].items()
    }


@pytest.fixture(scope="module")
def moved(shared_james):
    """Mailboxes by what happened between the reads."""
    james = shared_james
    names = (
        "nothing",
        "append",
        "half an append",
        "copy of an old message",
        "expunge",
        "flag",
        "counter",
        "corrected",
        "deleted",
        "replaced",
        "back",
        "gone half",
    )
    boxes = dict(zip(names, drifted(james, len(names)), strict=True))
    old = {name: james.message(mailbox, 6, seen=True) for name, mailbox in boxes.items()}
    for mailbox in boxes.values():
        james.add(mailbox, 1, 0)
    request = planned(james, boxes.values())
    james.message(boxes["append"], 7)
    james.add(boxes["append"], 1, 1)
    james.message(boxes["half an append"], 7)
    james.message(boxes["copy of an old message"], 7, message=old["nothing"], modseq=50)
    james.add(boxes["copy of an old message"], 1, 1)
    james.remove(boxes["expunge"], 6, old["expunge"])
    james.add(boxes["expunge"], -1, 0)
    james.message(boxes["flag"], 6, message=old["flag"], seen=True, modseq=51, flags={"$Junk"})
    james.add(boxes["counter"], 1, 0)
    james.add(boxes["corrected"], -2, -1)
    james.execute("DELETE FROM {ks}.mailbox WHERE id = %s", boxes["deleted"])
    james.remove(boxes["replaced"], 6, old["replaced"])
    james.message(boxes["replaced"], 6, seen=True, modseq=6)
    james.message(boxes["back"], 6, message=old["back"], seen=True, modseq=60)
    james.message(boxes["back"], 6, message=old["back"], seen=True, modseq=6)
    james.remove(boxes["gone half"], 6, old["gone half"], tables=("messageidtable",))
    before = {name: james.counters(mailbox) for name, mailbox in boxes.items()}
    james.steps(request, "apply", "verify")
    report = james.steps(request, "report")
    after = {name: james.counters(mailbox) for name, mailbox in boxes.items()}
    by_id = outcomes(james, request)
    return SimpleNamespace(
        boxes=boxes,
        before=before,
        after=after,
        report=report,
        outcomes={name: by_id[str(each)] for name, each in boxes.items()},
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("append", decide.MOVED),
        ("half an append", decide.MOVED),
        ("copy of an old message", decide.MOVED),
        ("expunge", decide.MOVED),
        ("flag", decide.NEWER),
        ("counter", decide.MOVED),
        ("corrected", decide.RIGHT_NOW),
        ("deleted", decide.NO_MAILBOX),
        ("replaced", decide.NEWER),
        ("gone half", decide.MOVED),
    ],
)
def test_a_mailbox_that_moved_is_skipped_and_said(moved, name, why):
    assert moved.outcomes[name] == ("skipped", why)
    assert moved.after[name] == moved.before[name]


@pytest.mark.parametrize("name", ["nothing", "back"])
def test_one_that_stood_still_is_corrected(moved, name):
    assert moved.outcomes[name] == ("applied", "")
    assert moved.after[name] == (6, 3)


def test_the_report_counts_what_was_skipped_by_reason(moved):
    assert (
        moved.report["status"],
        moved.report["wrong"],
        moved.report["applied"],
        moved.report["skipped"],
    ) == ("done", 12, 2, 10)
    assert moved.report["skippedBy"] == {
        decide.MOVED: 6,
        decide.NEWER: 2,
        decide.RIGHT_NOW: 1,
        decide.NO_MAILBOX: 1,
    }


def test_the_second_read_waits_for_settle_and_only_for_drifted_mailboxes(james):
    slept = []
    first = planned(james, drifted(james), settle="7m")
    nothing = planned(james, [james.mailbox(messages=1)], settle="7m")
    james = james.using(sleep=slept.append)
    james.steps(first, "apply")
    assert len(slept) == 1
    assert 410 < slept[0] <= 420
    assert james.steps(nothing, "apply")["planned"] == 0
    assert len(slept) == 1


def test_one_claim_and_one_update_a_mailbox_and_the_same_run_again_adds_nothing(james, monkeypatch):
    mailboxes = drifted(james, 3)
    updates = []
    add = MailboxTables.add
    monkeypatch.setattr(
        MailboxTables, "add", lambda self, *given: (updates.append(given), add(self, *given))[1]
    )
    request = planned(james, mailboxes)
    first = james.steps(request, "apply")
    again = james.steps(request, "apply", "verify", "report")
    assert sorted(updates) == sorted((mailbox, -2, -1) for mailbox in mailboxes)
    assert (first["applied"], again["applied"], again["skipped"], again["failed"]) == (3, 3, 0, 0)
    assert [james.counters(mailbox) for mailbox in mailboxes] == [(5, 3)] * 3
    claims = [james.stores.own.counter_claims.list(mailbox) for mailbox in mailboxes]
    assert [
        (claim.run, claim.stored_count, claim.add_count, claim.outcome) for (claim,) in claims
    ] == [(request.run, 7, -2, "applied")] * 3


@pytest.mark.parametrize("done", [False, True])
def test_a_time_out_is_unknown_and_never_tried_again_by_its_run(james, monkeypatch, done):
    add = MailboxTables.add
    updates = []

    def times_out(self, *given):
        updates.append(given)
        if done:
            add(self, *given)
        raise StoreUnavailable("no answer")

    (mailbox,) = drifted(james)
    with monkeypatch.context() as patch:
        patch.setattr(MailboxTables, "add", times_out)
        request = planned(james, [mailbox])
        applied = james.steps(request, "apply")
        assert (applied["applied"], applied["failed"], applied["unknown"]) == (0, 1, 1)
        report = james.steps(request, "verify", "report")
        assert (report["status"], report["failedMailboxes"], report["unknown"]) == ("failed", 1, 1)
        again = james.steps(request, "apply")
    assert len(updates) == 1
    assert james.counters(mailbox) == ((5, 3) if done else (7, 4))
    # What all replicas store proves that it was done; nothing proves that it was not.
    assert (again["applied"], again["unknown"]) == ((1, 0) if done else (0, 1))


class Deaf(Proxy):
    """Before a Cassandra that hears everything; what it answers does not come back while `deaf`."""

    deaf = False

    def _pass(self, source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                if not (self.deaf and sink in self._open[::2]):
                    sink.sendall(data)


def test_an_update_whose_answer_never_comes_is_done_once_and_said_to_be_unknown(james, monkeypatch):
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    cassandra = james.settings.cassandra
    proxy = Deaf((cassandra.contact_points[0], cassandra.port))
    there = cassandra.model_copy(update={"port": proxy.port, "timeout": timedelta(seconds=3)})
    beyond = replace(james, settings=james.settings.model_copy(update={"cassandra": there}))
    add = MailboxTables.add

    def unanswered(self, *given):
        proxy.deaf = True
        try:
            add(self, *given)
        finally:
            proxy.deaf = False

    monkeypatch.setattr(MailboxTables, "add", unanswered)
    applied = beyond.steps(request, "apply")
    proxy.cut()
    assert (applied["applied"], applied["unknown"]) == (0, 1)
    assert "does not answer" in applied["failures"][str(mailbox)]
    assert james.counters(mailbox) == (5, 3)
    assert james.steps(request, "apply")["applied"] == 1
    assert james.counters(mailbox) == (5, 3)


@pytest.mark.parametrize("done", [False, True])
def test_the_next_run_waits_until_nothing_of_an_unknown_update_can_come(james, monkeypatch, done):
    (mailbox,) = drifted(james)
    add = (-2, -1) if done else (0, 0)
    request = planned(james, [mailbox])
    claim = CounterClaim(
        "r-before", system_clock() - decide.SENT_FOR + timedelta(seconds=20), 7, 4, -2, -1
    )
    james.stores.own.counter_claims.claim(mailbox, claim, timedelta(hours=1))
    applied = james.steps(request, "apply")
    assert (applied["applied"], applied["skippedBy"]) == (0, {decide.EARLIER_OPEN: 1})
    james.add(mailbox, *add)
    monkeypatch.setattr(decide, "SENT_FOR", timedelta(0))
    with monkeypatch.context() as patch:
        patch.setattr(
            MailboxTables,
            "counters_of_all_replicas",
            raising(StoreUnavailable("one is down")),
        )
        assert james.steps(request, "apply")["skippedBy"] == {decide.EARLIER_OPEN: 1}
    report = james.run(mailboxes=[str(mailbox)])
    assert (report["wrong"], report["applied"]) == ((0, 0) if done else (1, 1))
    assert james.counters(mailbox) == (5, 3)
    if not done:
        assert [claim.outcome for claim in james.stores.own.counter_claims.list(mailbox)] == [
            decide.OVER,
            decide.APPLIED,
        ]


def test_a_counter_that_moves_between_claim_and_update_is_left_alone(james, monkeypatch):
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    claims = type(james.stores.own.counter_claims)
    claim = claims.claim

    def then_it_moves(self, *given):
        taken = claim(self, *given)
        james.add(mailbox, 1, 1)
        return taken

    monkeypatch.setattr(claims, "claim", then_it_moves)
    applied = james.steps(request, "apply")
    assert applied["skippedBy"] == {decide.MOVED: 1}
    assert james.counters(mailbox) == (8, 5)
    assert james.steps(request, "apply")["skippedBy"] == {decide.NOT_SENT: 1}


def test_a_store_that_is_away_fails_its_mailboxes_and_leaves_the_rest_after_some(
    james, monkeypatch
):
    mailboxes = drifted(james, 4)
    request = planned(james, mailboxes)
    with monkeypatch.context() as patch:
        away = raising(StoreUnavailable("Cassandra at x does not answer"))
        patch.setattr(corrections, "reread_mailbox", away)
        applied = one_at_a_time(james, max_failures=2).steps(request, "apply")
    assert (applied["failed"], applied["unknown"], applied["left"], applied["applied"]) == (
        2,
        0,
        2,
        0,
    )
    assert james.steps(request, "apply")["applied"] == 4
    assert [james.counters(mailbox) for mailbox in mailboxes] == [(5, 3)] * 4


def one_at_a_time(james, **limits):
    return james.using(work=partial(corrections.CounterWork, threads=1, **limits))


def test_a_lock_that_is_lost_in_the_middle_leaves_what_was_done_in_the_report(james, monkeypatch):
    mailboxes = drifted(james, 3)
    request = planned(james, mailboxes)
    james = one_at_a_time(james)
    checks = []

    def check(_):
        """Asked twice a mailbox: the second one is claimed, and not updated."""
        checks.append(1)
        if len(checks) > 3:
            raise LockLost("the lock could not be kept")

    with monkeypatch.context() as patch:
        patch.setattr(Lock, "check", check)
        with pytest.raises(LockLost):
            james.steps(request, "apply")
    report = james.steps(request, "report")
    assert (
        report["status"],
        report["planned"],
        report["applied"],
        report["left"],
        report["failed"],
    ) == ("failed", 3, 1, 2, 0)
    assert sorted(james.counters(mailbox) for mailbox in mailboxes) == [(5, 3), (7, 4), (7, 4)]


def test_a_lock_that_is_lost_during_the_last_read_lets_no_update_through(james, monkeypatch):
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    tables, reads = type(james.stores.mailboxes), []
    read = tables.counters_of_all_replicas

    def slowly(self, *given):
        reads.append(given)
        return read(self, *given)

    def check(_):
        if len(reads) > 1:
            raise LockLost("the lock could not be kept")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "counters_of_all_replicas", slowly)
        patch.setattr(Lock, "check", check)
        with pytest.raises(LockLost):
            james.steps(request, "apply")
    assert (len(reads), james.counters(mailbox)) == (2, (7, 4))


def test_what_cassandra_does_not_take_fails_its_mailbox_alone(james, monkeypatch):
    mailboxes = drifted(james, 3)
    request = planned(james, mailboxes)
    refused, reread = mailboxes[1], corrections.reread_mailbox

    def reread_mailbox(stores, mailbox, *given, **how):
        if mailbox == refused:
            raise BadSetting("Cassandra at x: InvalidRequest")
        return reread(stores, mailbox, *given, **how)

    monkeypatch.setattr(corrections, "reread_mailbox", reread_mailbox)
    applied = james.steps(request, "apply")
    assert (applied["applied"], applied["failed"], applied["failures"]) == (
        2,
        1,
        {str(refused): "Cassandra at x: InvalidRequest"},
    )


def test_flags_of_a_deleted_message_do_not_stop_the_second_read(james):
    mailbox = james.mailbox(messages=2, add=(1, 1))
    james.late_flags(mailbox, 9)
    report = james.run(mailboxes=[str(mailbox)], repair_projection=True)
    assert (
        report["applied"],
        report["failedMailboxes"],
        report["inconsistencies"]["withoutMessageId"],
    ) == (1, 0, 1)
    assert james.counters(mailbox) == (2, 2)


def test_a_plan_that_is_made_again_forgets_all_of_the_first_try(james):
    request = planned(james, drifted(james))
    james.steps(request, "apply", "verify")
    folder = RunFolder(artifacts(james.settings), request.duty, request.queue, request.run)
    assert {
        folder.read_json(name) is None for name in ("after.json", "progress.json", "verify.json")
    } == {False}
    james.steps(request, "plan")
    assert {
        folder.read_json(name) is None for name in ("after.json", "progress.json", "verify.json")
    } == {True}


def test_what_the_time_limit_leaves_the_next_run_does(james):
    mailboxes = drifted(james, 2)
    request = planned(james, mailboxes, time_limit="1ms")
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["left"]) == ("done", 0, 2)
    assert james.run(mailboxes=[str(each) for each in mailboxes])["applied"] == 2


def test_a_message_in_the_truth_alone_counts_in_both_reads(james):
    mailbox = james.mailbox(messages=3)
    james.message(mailbox, 8, tables=("imapuidtable",))
    report = james.run(mailboxes=[str(mailbox)])
    assert (report["applied"], report["inconsistencies"]["onlyInImapUidTable"]) == (1, 1)
    assert james.counters(mailbox) == (4, 4)


def test_a_message_that_is_twice_in_a_mailbox_counts_twice(james):
    mailbox = james.mailbox(messages=1, add=(1, 0))
    james.message(mailbox, 7, message=next(iter(james.projection(mailbox).values()))[0], seen=True)
    report = james.run(mailboxes=[str(mailbox)])
    assert (report["wrong"], report["inconsistencies"]["onlyInImapUidTable"]) == (0, 0)


@pytest.mark.parametrize("looks", [0, 1], ids=["before the claim", "after the claim"])
def test_a_mailbox_of_which_a_replica_is_away_is_left_for_it_may_bring_what_james_added(
    james, monkeypatch, looks
):
    """Two replicas agree that one is missing; the third, which James wrote to, has it."""
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    everywhere, asked = MailboxTables.counters_of_all_replicas, []

    def away(self, which):
        asked.append(which)
        if len(asked) > looks:
            raise StoreUnavailable("a replica does not answer")
        return everywhere(self, which)

    with monkeypatch.context() as patch:
        patch.setattr(MailboxTables, "counters_of_all_replicas", away)
        james.steps(request, "apply", "verify")
    assert outcomes(james, request) == {str(mailbox): ("skipped", "a replica is away")}
    assert james.counters(mailbox) == (7, 4)
    report = james.steps(request, "report")
    assert (report["status"], report["skippedBy"]) == ("done", {"a replica is away": 1})
    assert james.run(mailboxes=[str(mailbox)])["applied"] == 1
    assert james.counters(mailbox) == (5, 3)


def test_what_a_replica_has_that_the_quorum_lacks_is_met_by_the_last_look(james, monkeypatch):
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    more = Counters(5, 3)
    monkeypatch.setattr(MailboxTables, "counters_of_all_replicas", lambda *_: more)
    james.steps(request, "apply")
    assert outcomes(james, request) == {str(mailbox): ("skipped", decide.MOVED)}
    assert james.counters(mailbox) == (7, 4)


def test_a_counter_that_is_wrong_after_all_fails_verify(james):
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    james.steps(request, "apply")
    james.add(mailbox, 0, 1)
    with pytest.raises(GateFailed, match="has the unseen of its messages"):
        james.steps(request, "verify")
    james.add(mailbox, 1, -1)
    with pytest.raises(GateFailed, match="has the count of its messages"):
        james.steps(request, "verify")
    james.add(mailbox, -1, 0)
    james.steps(request, "verify")


@pytest.mark.parametrize("said", ["applied", "unknown"])
def test_verify_believes_the_counters_and_not_what_apply_says_of_them(james, monkeypatch, said):
    """Done, it says, and added nothing; it does not know, and the update is there twice."""
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    add = MailboxTables.add

    def other(self, *update):
        if said == "unknown":
            add(self, *update)
            add(self, *update)
            raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(MailboxTables, "add", other)
        assert james.steps(request, "apply")[said] == 1
    with pytest.raises(GateFailed, match="has the count of its messages"):
        james.steps(request, "verify")


def test_an_update_that_the_store_knows_of_is_read_back_though_apply_says_that_it_was_left(james):
    (mailbox,) = drifted(james)
    request = planned(james, [mailbox])
    james.steps(request, "apply")
    james.add(mailbox, 1, 0)
    folder = RunFolder(artifacts(james.settings), request.duty, request.queue, request.run)
    applied = folder.read_json("applied.json")
    lie = {**applied, "applied": 0, "left": 1, "outcomes": {str(mailbox): ["left", ""]}}
    folder.write_json("applied.json", lie)
    with pytest.raises(GateFailed, match="has the count of its messages"):
        james.steps(request, "verify")
