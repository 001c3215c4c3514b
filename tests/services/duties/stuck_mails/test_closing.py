"""Phase 1 on real stores.

What is closed, what is left alone, and every way in which the world moves while it is decided.
"""

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
from mailslice.model.errors import (
    BadSetting,
    ClockSkew,
    GateFailed,
    PlanRefused,
    Refused,
    StoreUnavailable,
    UnknownQueue,
)
from mailslice.model.mail import QueueName
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.own.quarantine import Content, State
from tests.services.cassandra.unanswered import Unanswered
from tests.services.duties.stuck_mails.conftest import BODY, HEADER
from tests.services.duties.world import ahead

NOTHING = {"closed": 0, "released": 0, "failed": 0, "completed": 0, "discardedRecords": 0}


def counts(report):
    return {name: report[name] for name in NOTHING}


@pytest.mark.usefixtures("real_gate")
def test_a_stuck_mail_is_closed_with_its_content_and_everything_else_is_left(world):
    stuck, quick, waiting, returned = (
        world.mail(name) for name in ("stuck", "quick", "waiting", "returned")
    )
    worker = world.worker(
        world.held(stuck),
        world.held(quick, 5),
        world.held(waiting, 9999, begun=False, stage="received"),
        world.held(returned, 9999, returned=True),
    )
    report = world.run()
    assert (report["status"], report["inFlight"], report["planned"], report["applied"]) == (
        "done",
        3,
        1,
        1,
    )
    assert counts(report) == {**NOTHING, "closed": 1}
    assert [world.is_marked(item) for item in (stuck, quick, waiting, returned)] == [
        True,
        False,
        False,
        False,
    ]
    (kept,) = world.kept()
    assert (kept.enqueue_id, kept.name, kept.state, kept.action, kept.worker, kept.stage) == (
        stuck.enqueue_id,
        "stuck",
        State.KEPT,
        "closed",
        worker.name,
        "loaded",
    )
    assert message.decode(kept.message) == stuck
    assert world.quarantine.content(kept) == HEADER + BODY
    assert kept.age >= timedelta(seconds=120)
    (decision,) = world.decisions()
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


def test_the_oldest_mail_in_flight_is_none_that_the_broker_took_back(world):
    quick, returned = world.held(world.mail(), 5), world.held(world.mail(), 9999, returned=True)
    world.worker(quick, returned)
    report = world.run()
    assert report["inFlight"] == 1
    assert 5 <= report["oldestSeconds"] < 9999


def test_a_second_run_finds_nothing(world):
    world.worker(world.held(world.mail()))
    world.run()
    again = world.run()
    assert (again["status"], again["planned"], again["inFlight"], again["alreadyMarked"]) == (
        "nothing to do",
        0,
        1,
        1,
    )
    assert counts(again) == NOTHING
    assert len(world.decisions()) == 1


def test_a_queue_that_rabbitmq_does_not_have_is_named(world):
    """A name in Airflow's form: nothing to do is not what whoever wrote it must read."""
    with pytest.raises(UnknownQueue, match="RabbitMQ has no mail queue 'nobody'"):
        replace(world, queue=QueueName("nobody")).run()


def test_an_idle_queue_has_zeros(world):
    report = world.run()
    assert (report["status"], report["inFlight"], report["planned"], report["alert"]) == (
        "nothing to do",
        0,
        0,
        None,
    )
    assert counts(report) == NOTHING
    assert (report["lockTimeout"], report["p99Seconds"], report["mode"]) == ("1m", None, "close")


def test_the_default_time_out_is_shown_with_the_p99_it_comes_from(world):
    world.worker(world.held(world.mail(), 650), times=ProcessingTimes({4 * 17: 100}))
    report = world.run(lock_timeout=None)
    assert (
        report["p99Seconds"],
        report["factor"],
        report["atLeast"],
        report["lockTimeoutGiven"],
    ) == (131.072, 10.0, "10m", False)
    assert report["lockTimeoutSeconds"] == 1310.72
    assert report["planned"] == 0


@pytest.mark.parametrize("seen", ["dead before", "dies meanwhile"])
def test_a_dead_workers_record_is_discarded_and_its_mail_left_to_the_broker(world, seen):
    item = world.mail()
    worker = world.worker(world.held(item))
    worker.fall_silent()
    if seen == "dead before":
        time.sleep(worker.record.dead_after.total_seconds() + 0.5)
    report = world.run()
    assert counts(report) == {**NOTHING, "discardedRecords": 1}
    assert (report["status"], report["inFlight"]) == ("done", 0)
    assert not world.is_marked(item)
    assert world.kept() == world.decisions() == []
    assert world.stores.own.worker_records.get(world.queue, worker.name).in_flight == ()
    assert counts(world.run()) == NOTHING


def test_a_stopped_worker_that_speaks_again_before_apply_is_neither_closed_nor_discarded(world):
    item = world.mail()
    worker = world.worker(world.held(item))
    worker.fall_silent()
    request = world.request()
    world.steps(request, "plan", "check")
    worker.say()
    world.steps(request, "apply", "verify")
    assert counts(world.steps(request, "report")) == NOTHING
    assert not world.is_marked(item)
    assert world.stores.own.worker_records.get(world.queue, worker.name).in_flight


def meanwhile(world, change):
    """Plan and check; then the world moves; then the rest. The report."""
    request = world.request()
    world.steps(request, "plan", "check")
    change()
    return world.steps(request, "apply", "verify", "report")


def test_a_clock_that_is_off_writes_no_time(world):
    """Workers, and the verify of another machine, hold them against their own."""
    item = world.mail()
    world.worker(world.held(item))
    request = world.request()
    world.steps(request, "plan", "check")
    with pytest.raises(ClockSkew, match=r"2[34]\d\.\d+ s behind this machine's .* grace 15m"):
        world.steps(request, "apply", clock=ahead(timedelta(minutes=4)))
    assert (world.kept(), world.decisions(), world.is_marked(item)) == ([], [], False)
    assert world.steps(request, "apply", clock=ahead(timedelta(minutes=3)))["closed"] == 1


def test_a_mail_that_is_settled_between_plan_and_apply_is_left(world):
    item = world.mail()
    worker = world.worker(world.held(item))
    report = meanwhile(world, lambda: worker.say(in_flight=()))
    assert (report["planned"], report["applied"], report["skippedBy"]) == (
        1,
        0,
        {"settled meanwhile": 1},
    )
    assert (world.kept(), world.is_marked(item)) == ([], False)


def test_a_mail_that_the_broker_took_back_between_plan_and_apply_is_left(world):
    item = world.mail()
    worker = world.worker(world.held(item))
    report = meanwhile(world, lambda: worker.say(in_flight=(world.held(item, returned=True),)))
    assert report["skippedBy"] == {"given back meanwhile": 1}
    assert not world.is_marked(item)


def test_a_mail_whose_worker_dies_between_plan_and_apply_is_left(world):
    """Also when its last record is later than the one that the plan saw.

    The broker has the mail.
    """
    item = world.mail()
    worker = world.worker(world.held(item))

    def speaks_and_dies():
        worker.say()
        worker.fall_silent()

    report = meanwhile(world, speaks_and_dies)
    assert (report["closed"], report["skippedBy"]) == (0, {"its holder is silent": 1})
    assert (world.is_marked(item), world.kept(), world.decisions()) == (False, [], [])
    assert world.run()["discardedRecords"] == 1


def test_a_mail_whose_worker_dies_while_apply_deals_with_others_is_left(world, monkeypatch):
    """The broker has given it to another, who delivers it."""
    first, second = world.mail("first"), world.mail("second")
    worker, act = world.worker(world.held(first, 200), world.held(second)), StuckMailActions.act

    def slow(self, *mail):
        entry = act(self, *mail)
        worker.fall_silent()
        time.sleep(worker.record.dead_after.total_seconds() + 0.5)
        return entry

    monkeypatch.setattr(StuckMailActions, "act", slow)
    report = world.run()
    assert (report["closed"], report["skippedBy"]) == (1, {"its holder is silent": 1})
    assert (world.is_marked(first), world.is_marked(second)) == (True, False)


@pytest.mark.parametrize("dies", [True, False])
def test_a_mail_whose_worker_dies_while_its_content_is_copied_is_left(world, monkeypatch, dies):
    """A great mail's copy takes minutes."""
    item = world.mail()
    worker = world.worker(world.held(item))

    def slow(point):
        if point == "quarantine:copied":
            if dies:
                worker.fall_silent()
            time.sleep(worker.record.dead_after.total_seconds() + 0.5)

    monkeypatch.setattr("mailslice.model.crash.point", slow)
    report = world.run()
    assert (report["closed"], report["skippedBy"]) == (
        (0, {"its holder is silent": 1}) if dies else (1, {})
    )
    assert (world.is_marked(item), len(world.kept())) == (not dies, not dies)


def test_a_mail_that_another_worker_was_given_between_plan_and_apply_is_left(world):
    item = world.mail()
    world.worker(world.held(item))
    report = meanwhile(world, lambda: world.worker(world.held(item, 1)))
    assert report["applied"] == 0
    assert not world.is_marked(item)


def test_a_mail_that_is_completed_between_plan_and_apply_is_left(world):
    item = world.mail()
    world.worker(world.held(item))
    report = meanwhile(
        world, lambda: world.stores.tables.deleted.mark_many(world.queue, [item.enqueue_id])
    )
    assert report["skippedBy"] == {"marked meanwhile": 1}
    assert world.kept() == []


def test_a_mail_that_is_completed_while_it_is_copied_is_left_to_its_holder(world, monkeypatch):
    """Its blobs are gone with it: what looks like lost content is a mail that was delivered."""
    item = world.mail()
    world.worker(world.held(item))

    def completed(point):
        if point == "quarantine:copied":
            world.stores.tables.deleted.mark_many(world.queue, [item.enqueue_id])

    monkeypatch.setattr("mailslice.model.crash.point", completed)
    report = world.run()
    assert report["skippedBy"] == {"completed meanwhile": 1}
    assert (
        world.kept(),
        world.decisions(),
        list(world.stores.own_blobs.list(f"quarantine/{world.queue}/")),
    ) == ([], [], [])


@pytest.mark.parametrize("answered", [True, False])
def test_a_mail_whose_withdrawal_was_not_answered_is_not_marked(world, monkeypatch, answered):
    """Accepted by a minority.

    No plain read shows it, and the next conditional write finishes it.
    """
    item = world.mail()
    world.worker(world.held(item))
    with Unanswered("quarantine") as writes:

        def withdrawn(point):
            if point == "apply:decided":
                (kept,) = world.kept()
                if answered:
                    assert world.quarantine.withdraw(kept)
                    return
                writes.arm()
                with pytest.raises(StoreUnavailable):
                    world.quarantine.withdraw(kept)

        with monkeypatch.context() as patch:
            patch.setattr("mailslice.model.crash.point", withdrawn)
            report = world.run()
    assert report["skippedBy"] == {"withdrawn from quarantine meanwhile": 1}
    assert not world.is_marked(item)
    assert world.run()["closed"] == 1
    assert world.quarantine.content(world.kept()[0]) == HEADER + BODY


def test_a_mail_that_is_withdrawn_at_its_mark_is_kept_anew_and_an_alarm(world, monkeypatch):
    """Whatever could do that: a marked mail without a copy is lost."""
    item = world.mail()
    world.worker(world.held(item))

    def withdrawn(point):
        if point == "apply:marked":
            (kept,) = world.kept()
            assert world.quarantine.withdraw(kept)

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", withdrawn)
        report = world.run()
    (kept,) = world.kept()
    assert (kept.state, kept.content) == (State.KEPT, Content.KEPT)
    assert world.quarantine.content(kept) == HEADER + BODY
    assert (report["status"], report["closed"], report["errorCount"]) == ("failed", 1, 1)
    assert f"{item.enqueue_id} was withdrawn from quarantine" in report["message"]


def test_an_alarm_of_a_try_that_a_store_ended_is_in_the_report_of_the_next_one(world, monkeypatch):
    first, second = world.mail("first"), world.mail("second")
    world.worker(world.held(first, 200), world.held(second))
    request = world.request()
    world.steps(request, "plan", "check")

    def withdrawn_and_away(point):
        if point == "apply:marked":
            (kept,) = world.kept()
            assert world.quarantine.withdraw(kept)
        if point == "quarantine:noted" and any(mail.name == "second" for mail in world.kept()):
            raise StoreUnavailable("S3 at 127.0.0.1:1 answers 503")

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", withdrawn_and_away)
        with pytest.raises(StoreUnavailable):
            world.steps(request, "apply")
    report = world.steps(request, "apply", "verify", "report")
    assert (report["closed"], report["status"], report["errorCount"]) == (2, "failed", 1)
    assert f"{first.enqueue_id} was withdrawn from quarantine" in report["message"]


def test_a_closing_whose_machine_was_suspended_marks_nothing(world, monkeypatch):
    """Its lock is another run's by now."""
    item = world.mail()
    world.worker(world.held(item))
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
            world.run()
    assert not world.is_marked(item)


def test_a_mark_that_may_be_on_one_replica_holds_the_withdrawal_up(world, monkeypatch):
    """A copy goes only when every replica says that there is no mark."""
    item = world.mail()
    worker = world.worker(world.held(item))

    def killed(point):
        if point == "apply:renewed":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", killed)
        with pytest.raises(KeyboardInterrupt):
            world.run()
    worker.say(in_flight=())

    def away(*_):
        raise StoreUnavailable("a replica is away")

    with monkeypatch.context() as patch:
        patch.setattr(DeletedMails, "is_marked_on_any_replica", away)
        assert world.run()["status"] == "nothing to do"
    assert [mail.state for mail in world.kept()] == [State.CLOSING]
    assert world.run()["finishedOfEarlierRuns"] == {"was closing": 1}
    assert world.kept() == []


@pytest.mark.parametrize("mark", ["on one replica", "seen late"])
def test_a_mark_of_an_earlier_run_keeps_the_copy_when_the_holder_lets_go(world, monkeypatch, mark):
    """A time-out left the mark on a minority of the replicas."""
    item = world.mail()
    worker = world.worker(world.held(item))

    def killed(point):
        if point == "apply:renewed":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", killed)
        with pytest.raises(KeyboardInterrupt):
            world.run()

    def lets_go(point):
        if point != "apply:kept":
            return
        if mark == "seen late":
            world.mark(item)
            return
        worker.say(in_flight=())
        worker.fall_silent()
        time.sleep(worker.record.dead_after.total_seconds() + 0.5)

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", lets_go)
        patch.setattr(DeletedMails, "is_marked_on_any_replica", lambda *_: True)
        assert world.run()["closed"] == 0
    (kept,) = world.kept()
    assert (kept.state, world.quarantine.content(kept)) == (State.KEPT, HEADER + BODY)


def test_copies_that_s3_lets_nobody_delete_are_named_in_the_report(world, monkeypatch):
    def refused(_):
        raise BadSetting("s3:DeleteObject is refused")

    monkeypatch.setattr(Quarantine, "sweep", refused)
    report = world.run()
    assert report["status"] == "nothing to do"
    assert report["message"].endswith("; s3:DeleteObject is refused")


def test_a_closed_mail_that_its_worker_completes_after_all_is_told_and_not_released_with_the_others(
    world,
):
    item = world.mail()
    worker = world.worker(world.held(item))
    world.run()
    worker.say(in_flight=(), done=(item.enqueue_id,))
    report = world.run()
    assert report["finishedOfEarlierRuns"] == {"completed by its worker after all": 1}
    (kept,) = world.kept()
    assert kept.finished is not None
    assert world.run()["finishedOfEarlierRuns"] == {}


def test_content_that_is_lost_is_said_and_the_others_go_on(world):
    lost, whole = world.mail("lost"), world.mail("whole")
    world.stores.blobs.delete_many([lost.body_blob_id])
    world.worker(world.held(lost), world.held(whole))
    report = world.run()
    assert (report["closed"], report["status"]) == (2, "done")
    assert {mail["name"]: mail["content"] for mail in report["mails"]} == {
        "lost": "lost",
        "whole": "kept",
    }
    assert {mail.name: mail.content for mail in world.kept()} == {
        "lost": Content.LOST,
        "whole": Content.KEPT,
    }


def test_a_record_without_the_message_leads_to_the_row_and_without_either_the_mail_is_left(world):
    by_row, by_none = world.mail("row"), world.mail("none")
    world.worker(
        world.held(by_row, message=None), world.held(by_none, message=None, partition=None)
    )
    report = world.run()
    assert (report["closed"], report["skippedBy"]) == (1, {"its metadata is not known": 1})
    assert [mail.name for mail in world.kept()] == ["row"]
    assert not world.is_marked(by_none)


def test_shadow_mode_writes_down_what_it_would_do_and_changes_nothing(world):
    item = world.mail("stuck")
    worker = world.worker(world.held(item))
    dead = world.worker(world.held(world.mail("of the dead")))
    dead.fall_silent()
    report = world.run(mode="shadow")
    assert (
        report["mode"],
        report["planned"],
        report["applied"],
        report["noted"],
        report["status"],
    ) == ("shadow", 1, 0, 1, "done")
    assert counts(report) == NOTHING
    assert not world.is_marked(item)
    (noted,) = report["mails"]
    assert (noted["enqueueId"], noted["action"], noted["content"], noted["bytes"]) == (
        str(item.enqueue_id),
        "closed",
        "not copied",
        0,
    )
    assert world.kept() == []
    assert world.stores.own.worker_records.get(world.queue, dead.name).in_flight
    (again,) = world.run(mode="shadow")["mails"]
    assert again["decided"] == noted["decided"]
    assert min(mail["ageSeconds"] for mail in (noted, again)) >= 120
    (decision,) = world.decisions()
    assert (decision.action, decision.run) == ("would close", report["run"])
    worker.say(in_flight=())
    assert world.run(mode="shadow")["mails"] == []


@pytest.mark.parametrize("mode", ["shadow", "close"])
def test_a_note_that_a_kill_left_goes_in_every_mode(world, mode):
    item = world.mail()
    holder = Holder("w", "loaded", system_clock(), timedelta(minutes=11))
    decided = Decided("would close", "held", "tester", "r")
    kept = world.quarantine.keep(item, holder, decided)
    noted = replace(kept, state=State.NOTED, content=Content.NOT_COPIED, copy_id="", attempt=2)
    world.stores.own.quarantine.add(world.queue, noted)
    world.quarantine.withdraw(kept)
    world.run(mode=mode)
    assert world.kept() == []


def test_what_shadow_mode_said_is_no_bar_to_the_closing(world):
    world.worker(world.held(world.mail()))
    world.run(mode="shadow")
    assert world.run()["closed"] == 1
    assert [mail.action for mail in world.kept()] == ["closed"]


def test_a_dry_run_changes_nothing(world):
    item = world.mail()
    world.worker(world.held(item))
    report = world.run(dry_run=True)
    assert (report["status"], report["planned"], report["inFlight"], report["closed"]) == (
        "dry run",
        1,
        1,
        0,
    )
    assert (world.kept(), world.is_marked(item)) == ([], False)


def test_recover_is_refused_where_workers_write_no_stage_marks(world):
    with pytest.raises(Refused, match="MAILSLICE_QUEUE_STAGE_MARKS"):
        world.run(mode="recover")


def test_more_decisions_than_allowed_are_refused_and_unusually_many_are_told(world):
    items = [world.mail(f"m{number}") for number in range(12)]
    world.worker(*(world.held(item) for item in items))
    with pytest.raises(GateFailed, match="One run decides about 5 mails at most"):
        world.run(most=5)
    assert not any(world.is_marked(item) for item in items)
    report = world.run()
    assert report["closed"] == 12
    assert report["alert"] == report["message"].rpartition("; ")[2]
    assert "12 mails are stuck in one run, 10 are" in report["alert"]


def test_a_plan_that_was_touched_or_not_checked_is_refused(world):
    world.worker(world.held(world.mail()))
    request = world.request()
    world.steps(request, "plan")
    with pytest.raises(PlanRefused, match="check"):
        run_step("apply", request, world.settings)
    world.steps(request, "check")
    (file,) = Path(world.settings.duty.artifacts).rglob(f"{request.run}/plan.json")
    file.write_text(file.read_text().replace('"mode": "close"', '"mode": "shadow"'))
    with pytest.raises(PlanRefused, match="was changed"):
        run_step("apply", request, world.settings)


def test_when_time_is_over_the_rest_is_left_to_the_next_run(world, monkeypatch):
    world.worker(*(world.held(world.mail(f"m{number}")) for number in range(3)))
    real = StuckMailActions.act
    done = []

    def act(self, planned, found):
        done.append(planned)
        return real(self, planned, found)

    monkeypatch.setattr(StuckMailActions, "act", act)
    monkeypatch.setattr("mailslice.maintenance.run.Run.out_of_time", lambda _: len(done) >= 2)
    report = world.run()
    assert (report["closed"], report["left"]) == (2, 1)
    monkeypatch.undo()
    assert world.run()["closed"] == 1


def test_a_store_that_goes_away_ends_the_run_and_the_next_one_goes_on(world, monkeypatch):
    items = [world.mail(f"m{number}") for number in range(2)]
    world.worker(*(world.held(item) for item in items))

    def away(*_):
        raise StoreUnavailable("S3 at 127.0.0.1:1 answers 503")

    with monkeypatch.context() as patched:
        patched.setattr(S3BlobStore, "get", away)
        with pytest.raises(StoreUnavailable):
            world.run()
    assert not any(world.is_marked(item) for item in items)
    assert world.run()["closed"] == 2


def test_a_mail_whose_content_alone_does_not_answer_holds_up_no_other(world, monkeypatch):
    items = [world.mail(f"m{number}") for number in range(3)]
    world.worker(*(world.held(item, 200 - 10 * number) for number, item in enumerate(items)))
    get = S3BlobStore.get

    def answers(store, key):
        if key == items[0].header_blob_id:
            raise StoreUnavailable("S3 at 127.0.0.1:1 answers 500")
        return get(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(S3BlobStore, "get", answers)
        with pytest.raises(StoreUnavailable, match="answers 500"):
            world.run()
    assert [world.is_marked(item) for item in items] == [False, True, True]
    assert world.run()["closed"] == 1


def test_a_store_that_answers_for_no_mail_is_not_asked_for_all(world, monkeypatch):
    world.worker(*(world.held(world.mail(f"m{number}")) for number in range(9)))
    asked = []

    def away(_, key):
        asked.append(key)
        raise StoreUnavailable("S3 at 127.0.0.1:1 answers 503")

    monkeypatch.setattr(S3BlobStore, "get", away)
    with pytest.raises(StoreUnavailable):
        world.run()
    assert len(asked) == 3


def test_a_scan_reads_no_row_of_the_view(world, monkeypatch):
    """Whatever the size of the queue: the records are all that is read."""
    world.worker(world.held(world.mail()))
    for name in ("rows_of", "ids_of", "packed_ids_of", "partitions", "by_ids", "find"):
        monkeypatch.setattr(EnqueuedMails, name, lambda *_, **__: pytest.fail("the view was read"))
    assert world.run()["closed"] == 1


def test_a_closed_mail_is_in_no_view_and_its_release_is(world):
    item = world.mail("again")
    world.worker(world.held(item))
    world.run()
    queue = MailQueue(world.stores, world.queue, system_clock)
    assert list(queue.browse()) == []
    (kept,) = world.kept()
    world.quarantine.release(kept)
    (row,) = queue.browse()
    assert (row.item.mail.name, row.enqueue_id != item.enqueue_id) == ("again", True)
    assert replace(row.item.mail, last_updated_ns=None) == replace(item.mail, last_updated_ns=None)
