"""Phase 1 on real stores: what is closed, what is left alone, and every way in which the world moves while it is decided."""

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.codec import message
from mailslice.duties.stuck_mails.actions import StuckMailActions
from mailslice.maintenance.lock import LockLost
from mailslice.maintenance.runner import run_step
from mailslice.model.clock import system_clock
from mailslice.model.errors import GateFailed, PlanRefused, Refused, StoreUnavailable
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores.blobs.admin import AdminBlobs
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.own.quarantine import Content, State
from tests.services.cassandra.unanswered import Unanswered
from tests.services.duties.stuck_mails.conftest import BODY, HEADER

NOTHING = {"closed": 0, "released": 0, "failed": 0, "completed": 0, "discardedRecords": 0}


def counts(report):
    return {name: report[name] for name in NOTHING}


@pytest.mark.usefixtures("real_gate")
def test_a_stuck_mail_is_closed_with_its_content_and_everything_else_is_left(place):
    stuck, quick, waiting, returned = (
        place.mail(name) for name in ("stuck", "quick", "waiting", "returned")
    )
    worker = place.worker(
        place.held(stuck),
        place.held(quick, 5),
        place.held(waiting, 9999, begun=False, stage="received"),
        place.held(returned, 9999, returned=True),
    )
    report = place.run()
    assert (report["status"], report["inFlight"], report["planned"], report["applied"]) == (
        "done",
        3,
        1,
        1,
    )
    assert counts(report) == {**NOTHING, "closed": 1}
    assert [place.is_marked(item) for item in (stuck, quick, waiting, returned)] == [
        True,
        False,
        False,
        False,
    ]
    (kept,) = place.kept()
    assert (kept.enqueue_id, kept.name, kept.state, kept.action, kept.worker, kept.stage) == (
        stuck.enqueue_id,
        "stuck",
        State.KEPT,
        "closed",
        worker.name,
        "loaded",
    )
    assert message.decode(kept.message) == stuck
    assert place.quarantine.content(kept) == HEADER + BODY
    assert kept.age >= timedelta(seconds=120)
    (decision,) = place.decisions()
    assert (
        decision.enqueue_id,
        decision.verdict,
        decision.action,
        decision.who,
        decision.worker,
    ) == (
        stuck.enqueue_id,
        "stuck",
        "closed",
        "tester",
        worker.name,
    )
    assert "allowed are 1m" in decision.why
    assert [mail["name"] for mail in report["mails"]] == ["stuck"]


def test_a_second_run_finds_nothing(place):
    place.worker(place.held(place.mail()))
    place.run()
    again = place.run()
    assert (again["status"], again["planned"], again["inFlight"], again["alreadyMarked"]) == (
        "nothing to do",
        0,
        1,
        1,
    )
    assert counts(again) == NOTHING
    assert len(place.decisions()) == 1


def test_an_idle_queue_has_zeros(place):
    report = place.run()
    assert (report["status"], report["inFlight"], report["planned"], report["alert"]) == (
        "nothing to do",
        0,
        0,
        None,
    )
    assert counts(report) == NOTHING
    assert (report["lockTimeout"], report["p99Seconds"], report["mode"]) == ("1m", None, "close")


def test_the_default_time_out_is_shown_with_the_p99_it_comes_from(place):
    place.worker(place.held(place.mail(), 650), times=ProcessingTimes({4 * 17: 100}))
    report = place.run(lock_timeout=None)
    assert (
        report["p99Seconds"],
        report["factor"],
        report["atLeast"],
        report["lockTimeoutGiven"],
    ) == (131.072, 10.0, "10m", False)
    assert report["lockTimeoutSeconds"] == 1310.72
    assert report["planned"] == 0


@pytest.mark.parametrize("seen", ["dead before", "dies meanwhile"])
def test_a_dead_workers_record_is_discarded_and_its_mail_left_to_the_broker(place, seen):
    item = place.mail()
    worker = place.worker(place.held(item))
    worker.fall_silent()
    if seen == "dead before":
        time.sleep(worker.record.dead_after.total_seconds() + 0.5)
    report = place.run()
    assert counts(report) == {**NOTHING, "discardedRecords": 1}
    assert (report["status"], report["inFlight"]) == ("done", 0)
    assert not place.is_marked(item)
    assert place.kept() == place.decisions() == []
    assert place.stores.own.worker_records.read(place.queue, worker.name).in_flight == ()
    assert counts(place.run()) == NOTHING


def test_a_stopped_worker_that_speaks_again_before_apply_is_neither_closed_nor_discarded(place):
    item = place.mail()
    worker = place.worker(place.held(item))
    worker.fall_silent()
    request = place.request()
    place.steps(request, "plan", "check")
    worker.say()
    place.steps(request, "apply", "verify")
    assert counts(place.steps(request, "report")) == NOTHING
    assert not place.is_marked(item)
    assert place.stores.own.worker_records.read(place.queue, worker.name).in_flight


def meanwhile(place, change):
    """Plan and check; then the world moves; then the rest. The report."""
    request = place.request()
    place.steps(request, "plan", "check")
    change()
    return place.steps(request, "apply", "verify", "report")


def test_a_mail_that_is_settled_between_plan_and_apply_is_left(place):
    item = place.mail()
    worker = place.worker(place.held(item))
    report = meanwhile(place, lambda: worker.say(in_flight=()))
    assert (report["planned"], report["applied"], report["skippedBy"]) == (
        1,
        0,
        {"settled meanwhile": 1},
    )
    assert (place.kept(), place.is_marked(item)) == ([], False)


def test_a_mail_that_the_broker_took_back_between_plan_and_apply_is_left(place):
    item = place.mail()
    worker = place.worker(place.held(item))
    report = meanwhile(place, lambda: worker.say(in_flight=(place.held(item, returned=True),)))
    assert report["skippedBy"] == {"given back meanwhile": 1}
    assert not place.is_marked(item)


def test_a_mail_whose_worker_dies_between_plan_and_apply_is_left(place):
    """Also when its last record is later than the one that the plan saw: the broker has the mail."""
    item = place.mail()
    worker = place.worker(place.held(item))

    def speaks_and_dies():
        worker.say()
        worker.fall_silent()

    report = meanwhile(place, speaks_and_dies)
    assert (report["closed"], report["skippedBy"]) == (0, {"its holder is silent": 1})
    assert (place.is_marked(item), place.kept(), place.decisions()) == (False, [], [])
    assert place.run()["discardedRecords"] == 1


def test_a_mail_that_another_worker_was_given_between_plan_and_apply_is_left(place):
    item = place.mail()
    place.worker(place.held(item))
    report = meanwhile(place, lambda: place.worker(place.held(item, 1)))
    assert report["applied"] == 0
    assert not place.is_marked(item)


def test_a_mail_that_is_completed_between_plan_and_apply_is_left(place):
    item = place.mail()
    place.worker(place.held(item))
    report = meanwhile(
        place, lambda: place.stores.tables.deleted.mark_many(place.queue, [item.enqueue_id])
    )
    assert report["skippedBy"] == {"marked meanwhile": 1}
    assert place.kept() == []


def test_a_mail_that_is_completed_while_it_is_copied_is_left_to_its_holder(place, monkeypatch):
    """Its blobs are gone with it: what looks like lost content is a mail that was delivered."""
    item = place.mail()
    place.worker(place.held(item))

    def completed(point):
        if point == "quarantine:copied":
            place.stores.tables.deleted.mark_many(place.queue, [item.enqueue_id])

    monkeypatch.setattr("mailslice.model.crash.point", completed)
    report = place.run()
    assert report["skippedBy"] == {"completed meanwhile": 1}
    assert (
        place.kept(),
        place.decisions(),
        list(place.stores.own_blobs.list(f"quarantine/{place.queue}/")),
    ) == ([], [], [])


@pytest.mark.parametrize("answered", [True, False])
def test_a_mail_whose_withdrawal_was_not_answered_is_not_marked(place, monkeypatch, answered):
    """Accepted by a minority: no plain read shows it, and the next conditional write finishes it."""
    item = place.mail()
    place.worker(place.held(item))
    with Unanswered("quarantine") as writes:

        def withdrawn(point):
            if point == "apply:decided":
                (kept,) = place.kept()
                if answered:
                    assert place.quarantine.withdraw(kept)
                    return
                writes.arm()
                with pytest.raises(StoreUnavailable):
                    place.quarantine.withdraw(kept)

        with monkeypatch.context() as patch:
            patch.setattr("mailslice.model.crash.point", withdrawn)
            report = place.run()
    assert report["skippedBy"] == {"withdrawn from quarantine meanwhile": 1}
    assert not place.is_marked(item)
    assert place.run()["closed"] == 1
    assert place.quarantine.content(place.kept()[0]) == HEADER + BODY


def test_a_mail_that_is_withdrawn_at_its_mark_is_kept_anew_and_an_alarm(place, monkeypatch):
    """Whatever could do that: a marked mail without a copy is lost."""
    item = place.mail()
    place.worker(place.held(item))

    def withdrawn(point):
        if point == "apply:marked":
            (kept,) = place.kept()
            assert place.quarantine.withdraw(kept)

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", withdrawn)
        report = place.run()
    (kept,) = place.kept()
    assert (kept.state, kept.content) == (State.KEPT, Content.KEPT)
    assert place.quarantine.content(kept) == HEADER + BODY
    assert (report["status"], report["closed"], report["errorCount"]) == ("failed", 1, 1)
    assert f"{item.enqueue_id} was withdrawn from quarantine" in report["message"]


def test_a_closing_whose_machine_was_suspended_marks_nothing(place, monkeypatch):
    """Its lock is another run's by now."""
    item = place.mail()
    place.worker(place.held(item))
    clock = time.clock_gettime

    def resumed(point):
        if point == "apply:decided":
            patch.setattr(
                time,
                "clock_gettime",
                lambda which: clock(which) + 120 * (which == time.CLOCK_BOOTTIME),
            )

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", resumed)
        with pytest.raises(LockLost):
            place.run()
    assert not place.is_marked(item)


def test_a_mark_that_may_be_on_one_replica_holds_the_withdrawal_up(place, monkeypatch):
    """A copy goes only when every replica says that there is no mark."""
    item = place.mail()
    worker = place.worker(place.held(item))

    def killed(point):
        if point == "apply:renewed":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", killed)
        with pytest.raises(KeyboardInterrupt):
            place.run()
    worker.say(in_flight=())

    def away(*_):
        raise StoreUnavailable("a replica is away")

    with monkeypatch.context() as patch:
        patch.setattr(DeletedMails, "is_marked_on_any_replica", away)
        assert place.run()["status"] == "nothing to do"
    assert [mail.state for mail in place.kept()] == [State.CLOSING]
    assert place.run()["finishedOfEarlierRuns"] == {"was closing": 1}
    assert place.kept() == []


def test_copies_that_may_be_another_deployments_are_told_in_the_report(place, monkeypatch):
    def refused(_):
        raise Refused("2 objects have no row here and are left")

    monkeypatch.setattr(Quarantine, "sweep", refused)
    report = place.run()
    assert report["status"] == "nothing to do"
    assert report["message"].endswith("; 2 objects have no row here and are left")


def test_a_closed_mail_that_its_worker_completes_after_all_is_told_and_not_released_with_the_others(
    place,
):
    item = place.mail()
    worker = place.worker(place.held(item))
    place.run()
    worker.say(in_flight=(), done=(item.enqueue_id,))
    report = place.run()
    assert report["finishedOfEarlierRuns"] == {"completed by its worker after all": 1}
    (kept,) = place.kept()
    assert kept.finished is not None
    assert place.run()["finishedOfEarlierRuns"] == {}


def test_content_that_is_lost_is_said_and_the_others_go_on(place):
    lost, whole = place.mail("lost"), place.mail("whole")
    place.stores.blobs.delete_many([lost.body_blob_id])
    place.worker(place.held(lost), place.held(whole))
    report = place.run()
    assert (report["closed"], report["status"]) == (2, "done")
    assert {mail["name"]: mail["content"] for mail in report["mails"]} == {
        "lost": "lost",
        "whole": "kept",
    }
    assert {mail.name: mail.content for mail in place.kept()} == {
        "lost": Content.LOST,
        "whole": Content.KEPT,
    }


def test_a_record_without_the_message_leads_to_the_row_and_without_either_the_mail_is_left(place):
    by_row, by_none = place.mail("row"), place.mail("none")
    place.worker(place.held(by_row, message=None), place.held(by_none, message=None, place=None))
    report = place.run()
    assert (report["closed"], report["skippedBy"]) == (1, {"its metadata is not known": 1})
    assert [mail.name for mail in place.kept()] == ["row"]
    assert not place.is_marked(by_none)


def test_shadow_mode_writes_down_what_it_would_do_and_changes_nothing(place):
    item = place.mail("stuck")
    worker = place.worker(place.held(item))
    dead = place.worker(place.held(place.mail("of the dead")))
    dead.fall_silent()
    report = place.run(mode="shadow")
    assert (
        report["mode"],
        report["planned"],
        report["applied"],
        report["noted"],
        report["status"],
    ) == ("shadow", 1, 0, 1, "done")
    assert counts(report) == NOTHING
    assert not place.is_marked(item)
    (noted,) = report["mails"]
    assert (noted["enqueueId"], noted["action"], noted["content"], noted["bytes"]) == (
        str(item.enqueue_id),
        "closed",
        "not copied",
        0,
    )
    assert place.kept() == []
    assert place.stores.own.worker_records.read(place.queue, dead.name).in_flight
    (again,) = place.run(mode="shadow")["mails"]
    assert again["decided"] == noted["decided"]
    assert min(mail["ageSeconds"] for mail in (noted, again)) >= 120
    (decision,) = place.decisions()
    assert (decision.action, decision.run) == ("would close", report["run"])
    worker.say(in_flight=())
    assert place.run(mode="shadow")["mails"] == []


@pytest.mark.parametrize("mode", ["shadow", "close"])
def test_what_an_earlier_version_noted_in_shadow_mode_goes(place, mode):
    item = place.mail()
    holder = Holder("w", "loaded", system_clock(), timedelta(minutes=11))
    decided = Decided("would close", "held", "tester", "r")
    kept = place.quarantine.keep(item, holder, decided)
    noted = replace(kept, state=State.NOTED, content=Content.NOT_COPIED, copy_id="", attempt=2)
    place.stores.own.quarantine.add(place.queue, noted)
    place.quarantine.withdraw(kept)
    place.run(mode=mode)
    assert place.kept() == []


def test_what_shadow_mode_said_is_no_bar_to_the_closing(place):
    place.worker(place.held(place.mail()))
    place.run(mode="shadow")
    assert place.run()["closed"] == 1
    assert [mail.action for mail in place.kept()] == ["closed"]


def test_a_dry_run_changes_nothing(place):
    item = place.mail()
    place.worker(place.held(item))
    report = place.run(dry_run=True)
    assert (report["status"], report["planned"], report["inFlight"], report["closed"]) == (
        "dry run",
        1,
        1,
        0,
    )
    assert (place.kept(), place.is_marked(item)) == ([], False)


def test_recover_is_refused_where_workers_write_no_stage_marks(place):
    with pytest.raises(Refused, match="MAILSLICE_QUEUE_STAGE_MARKS"):
        place.run(mode="recover")


def test_more_decisions_than_allowed_are_refused_and_unusually_many_are_told(place):
    items = [place.mail(f"m{number}") for number in range(12)]
    place.worker(*(place.held(item) for item in items))
    with pytest.raises(GateFailed, match="One run decides about 5 mails at most"):
        place.run(most=5)
    assert not any(place.is_marked(item) for item in items)
    report = place.run()
    assert report["closed"] == 12
    assert report["alert"] == report["message"].rpartition("; ")[2]
    assert "12 mails are stuck in one run, 10 are" in report["alert"]


def test_a_plan_that_was_touched_or_not_checked_is_refused(place):
    place.worker(place.held(place.mail()))
    request = place.request()
    place.steps(request, "plan")
    with pytest.raises(PlanRefused, match="check"):
        run_step("apply", request, place.settings)
    place.steps(request, "check")
    (file,) = Path(place.settings.duty.artifacts).rglob(f"{request.run}/plan.json")
    file.write_text(file.read_text().replace('"mode": "close"', '"mode": "shadow"'))
    with pytest.raises(PlanRefused, match="was changed"):
        run_step("apply", request, place.settings)


def test_when_time_is_over_the_rest_is_left_to_the_next_run(place, monkeypatch):
    place.worker(*(place.held(place.mail(f"m{number}")) for number in range(3)))
    real = StuckMailActions.act
    done = []

    def act(self, planned, found):
        done.append(planned)
        return real(self, planned, found)

    monkeypatch.setattr(StuckMailActions, "act", act)
    monkeypatch.setattr(
        "mailslice.maintenance.context.StepContext.out_of_time", lambda _: len(done) >= 2
    )
    report = place.run()
    assert (report["closed"], report["left"]) == (2, 1)
    monkeypatch.undo()
    assert place.run()["closed"] == 1


def test_a_store_that_goes_away_ends_the_run_and_the_next_one_goes_on(place, monkeypatch):
    items = [place.mail(f"m{number}") for number in range(2)]
    place.worker(*(place.held(item) for item in items))

    def away(*_):
        raise StoreUnavailable("S3 at 127.0.0.1:1 answers 503")

    with monkeypatch.context() as patched:
        patched.setattr(AdminBlobs, "get", away)
        with pytest.raises(StoreUnavailable):
            place.run()
    assert not any(place.is_marked(item) for item in items)
    assert place.run()["closed"] == 2


def test_a_scan_reads_no_row_of_the_view(place, monkeypatch):
    """Whatever the size of the queue: the records are all that is read."""
    place.worker(place.held(place.mail()))
    for name in ("rows", "rows_of", "ids_of", "packed_ids_of", "places", "some", "find"):
        monkeypatch.setattr(EnqueuedMails, name, lambda *_, **__: pytest.fail("the view was read"))
    assert place.run()["closed"] == 1


def test_a_closed_mail_is_in_no_view_and_its_release_is(place):
    item = place.mail("again")
    place.worker(place.held(item))
    place.run()
    queue = MailQueue(place.stores, place.queue, system_clock)
    assert list(queue.browse()) == []
    (kept,) = place.kept()
    place.quarantine.release(kept)
    (row,) = queue.browse()
    assert (row.item.mail.name, row.enqueue_id != item.enqueue_id) == ("again", True)
    assert replace(row.item.mail, last_updated_ns=None) == replace(item.mail, last_updated_ns=None)
