"""Phase 2 on real stores.

What the stage marks decide of a mail whose holder hangs, and what a kill in between leaves.
"""

import time
from dataclasses import replace
from datetime import timedelta
from uuid import uuid5

import pytest

from mailslice.admin import queues
from mailslice.admin.quarantine import Decided, Holder
from mailslice.codec import message
from mailslice.model.clock import system_clock
from mailslice.model.errors import ContentMissing, Refused, StoreUnavailable
from mailslice.model.names import RabbitNames
from mailslice.model.stages import MailStage, Stage, next_attempt
from mailslice.stores.cassandra.own import MailStages
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.killed import Killed
from tests.services.cassandra.unanswered import Unanswered
from tests.services.duties.stuck_mails.conftest import BODY, HEADER

A, B, C = "a@x.example", "b@x.example", "c@x.example"


@pytest.fixture
def recover(world):
    """The place, whose queue has stage marks."""
    queue = world.settings.queue.model_copy(update={"stage_marks": (world.queue,)})
    world.settings = world.settings.model_copy(update={"queue": queue})
    return world


def staged(world, item, worker, *, sending=(), sent=(), attempt=1):
    """The holder's marks."""
    states = dict.fromkeys(sending, Stage.SENDING) | dict.fromkeys(sent, Stage.SENT)
    left = tuple(recipient for recipient in item.mail.recipients if recipient not in states)
    record = MailStage(item.enqueue_id, worker, attempt, 1, left, states, system_clock())
    assert world.stores.own.mail_stages.advance(world.queue, None, record)
    return record


def held(world, *recipients, **marks):
    """A mail in a handler that hangs: (item, its worker, its record of stages)."""
    item = world.mail("m", recipients)
    worker = world.worker(
        world.held(item, stage="sending" if marks.get("sending") else "loaded"), stage_marks=True
    )
    return item, worker, staged(world, item, worker.name, **marks) if marks else None


def published(world, queue=None):
    found = []
    with blocking_connection(world.settings.rabbitmq) as connection:
        channel = connection.channel()
        while (
            body := channel.basic_get(RabbitNames(queue or world.queue).work_queue, auto_ack=True)[
                2
            ]
        ) is not None:
            found.append(message.decode(body))
    return found


def stage(world, item):
    return world.stores.own.mail_stages.get(world.queue, item.enqueue_id)


def test_before_sending_the_mail_is_given_to_another_and_its_holder_is_refused(recover):
    item, worker, _ = held(recover, A, B)
    report = recover.run(mode="recover")
    assert (
        report["released"],
        report["closed"],
        report["failed"],
        report["completed"],
        report["applied"],
    ) == (1, 0, 0, 0, 1)
    assert published(recover) == [item]
    assert not recover.is_marked(item)
    assert recover.kept() == []
    now = stage(recover, item)
    assert (now.attempt, now.remaining, now.stage) == (2, (A, B), Stage.RECEIVED)
    late = MailStage(
        item.enqueue_id, worker.name, 1, 1, (), dict.fromkeys((A, B), Stage.SENDING), system_clock()
    )
    assert not recover.stores.own.mail_stages.advance(recover.queue, None, late)
    assert [(decision.verdict, decision.action) for decision in recover.decisions()] == [
        ("stuck before sending", "released")
    ]
    again = recover.run(mode="recover")
    assert (again["planned"], again["applied"], published(recover)) == (0, 0, [])


def test_while_sending_the_mail_fails_and_is_never_published_again(recover):
    item, _, _ = held(recover, A, B, sending=(A, B))
    report = recover.run(mode="recover")
    assert (report["failed"], report["released"], report["status"]) == (1, 0, "done")
    assert recover.is_marked(item)
    assert published(recover) == []
    (kept,) = recover.kept()
    assert (kept.action, kept.state, message.decode(kept.message).mail.recipients) == (
        "failed",
        State.KEPT,
        (A, B),
    )
    assert stage(recover, item).stage is Stage.FAILED
    assert "2 of 2 recipients may have been served" in recover.decisions()[0].why
    assert recover.run(mode="recover")["planned"] == 0


def test_recipients_in_doubt_fail_served_ones_are_done_and_the_rest_is_tried_again(recover):
    item, _, _ = held(recover, A, B, C, sending=(B,), sent=(A,))
    report = recover.run(mode="recover")
    assert (report["failed"], report["applied"]) == (1, 1)
    (again,) = published(recover)
    assert (again.enqueue_id, again.mail.recipients) == (item.enqueue_id, (C,))
    assert not recover.is_marked(item)
    assert message.decode(recover.kept()[0].message).mail.recipients == (B,)
    recover.worker(done=(item.enqueue_id,))
    assert recover.run(mode="recover")["finishedOfEarlierRuns"] == {}
    assert recover.kept()[0].finished is None


def test_after_sent_the_mail_is_complete(recover):
    item, _, _ = held(recover, A, B, sent=(A, B))
    report = recover.run(mode="recover")
    assert (report["completed"], report["applied"]) == (1, 1)
    assert recover.is_marked(item)
    assert (published(recover), recover.kept()) == ([], [])
    assert [decision.action for decision in recover.decisions()] == ["completed"]


def test_a_completion_that_was_cut_off_before_its_mark_is_done_by_the_next_run(
    recover, monkeypatch
):
    item, worker, _ = held(recover, A, B, sent=(A, B))
    cut(recover, monkeypatch, "apply:decided")
    assert (recover.is_marked(item), stage(recover, item).owner) == (False, worker.name)
    report = recover.run(mode="recover")
    assert (report["completed"], report["status"], recover.is_marked(item)) == (1, "done", True)


def bouncing(world):
    """The name of its queue of reports, which is not created."""
    name = f"bounces-{world.queue}"
    worker = world.settings.worker.model_copy(update={"bounce_queue": name})
    world.settings = world.settings.model_copy(update={"worker": worker})
    return name


def test_a_queue_of_reports_that_was_deleted_is_an_alarm_and_stops_no_mail(recover, monkeypatch):
    bouncing(recover)
    cut_off, _, _ = held(recover, A, B, sending=(A,))
    cut(recover, monkeypatch, "apply:taken")
    item, _, _ = held(recover, A, C, sending=(A,))
    report = recover.run(mode="recover")
    assert (report["failed"], report["finishedOfEarlierRuns"]) == (1, {"failed": 1})
    assert (report["status"], report["errorCount"]) == ("failed", 2)
    assert all("there is no queue 'bounces-" in error for error in report["errors"])
    assert {(each.enqueue_id, each.mail.recipients) for each in published(recover)} == {
        (cut_off.enqueue_id, (B,)),
        (item.enqueue_id, (C,)),
    }
    assert {mail.state for mail in recover.kept()} == {State.KEPT}
    assert recover.run(mode="recover")["status"] == "nothing to do"


@pytest.mark.parametrize("of", ["the run", "its holder"])
@pytest.mark.parametrize("point", ["apply:taken", "apply:published", "apply:told"])
def test_a_sender_is_told_under_one_id_and_the_others_are_served_wherever_a_failing_is_cut_off(
    recover, monkeypatch, point, of
):
    """Also where its holder, which hangs, has quarantined those in doubt itself."""
    bounces = queues.create(recover.stores, bouncing(recover))
    item, worker, _ = held(recover, A, B, sending=(A,))
    if of == "its holder":
        kept_by_holder(recover, item, worker, A)
    cut(recover, monkeypatch, point)
    assert len(published(recover, bounces)) == (point == "apply:told")
    assert recover.run(mode="recover")["finishedOfEarlierRuns"] == {"failed": 1}
    (told,) = published(recover, bounces)
    assert told.enqueue_id == uuid5(item.enqueue_id, "report/1")
    assert {each.mail.recipients for each in published(recover)} == {(B,)}
    (kept,) = recover.kept()
    assert (kept.state, message.decode(kept.message).mail.recipients) == (State.KEPT, (A,))


def test_the_sender_of_a_failed_mail_is_told_when_that_is_set(recover):
    bounces = queues.create(recover.stores, bouncing(recover))
    held(recover, A, B, sending=(A,))
    recover.run(mode="recover")
    (told,) = published(recover, bounces)
    assert (told.mail.sender, told.mail.recipients) == (None, ("a@b.example",))
    content = recover.stores.blobs.get(told.header_blob_id) + recover.stores.blobs.get(
        told.body_blob_id
    )
    assert b"multipart/report" in content
    assert A.encode() in content
    assert B.encode() not in content


def test_a_worker_that_writes_no_marks_has_its_mail_closed(recover):
    item = recover.mail("m", (A,))
    recover.worker(recover.held(item), stage_marks=False)
    report = recover.run(mode="recover")
    assert (report["closed"], report["released"]) == (1, 0)
    assert recover.is_marked(item)


def test_a_holder_that_goes_on_meanwhile_keeps_its_mail(recover, monkeypatch):
    item, worker, _ = held(recover, A)

    def goes_on(point):
        if point == "apply:kept":
            staged(recover, item, worker.name, sending=(A,))

    monkeypatch.setattr("mailslice.model.crash.point", goes_on)
    report = recover.run(mode="recover")
    assert report["skippedBy"] == {"its holder went on meanwhile": 1}
    assert (published(recover), recover.kept(), recover.is_marked(item)) == ([], [], False)
    assert stage(recover, item).owner == worker.name


def test_shadow_mode_says_what_recover_would_do(recover):
    for marks in ({}, {"sending": (A,)}, {"sent": (A,)}):
        held(recover, A, **marks)
    report = recover.run(mode="shadow")
    assert sorted(mail["action"] for mail in report["mails"]) == ["completed", "failed", "released"]
    assert sorted(decision.action for decision in recover.decisions()) == [
        "would complete",
        "would fail",
        "would release",
    ]
    assert (report["released"], report["failed"], report["completed"], report["applied"]) == (
        0,
        0,
        0,
        0,
    )
    assert published(recover) == []


def test_close_mode_leaves_a_mail_that_was_given_to_another_attempt(recover):
    item, _, _ = held(recover, A)
    recover.run(mode="recover")
    published(recover)
    assert recover.run(mode="close")["planned"] == 0
    assert not recover.is_marked(item)


def kept_by_holder(world, item, worker, *recipients, **changes):
    """Its row of those in doubt, as a worker leaves it that hangs over the end of an attempt.

    Written before its stage marks say that they failed.
    """
    doubtful = replace(item, mail=replace(item.mail, recipients=recipients))
    holder = Holder(worker.name, "sending", system_clock(), timedelta(0))
    return world.quarantine.keep(
        doubtful, holder, replace(Decided("failed", "in doubt", worker.name), **changes), State.KEPT
    )


@pytest.mark.parametrize("sending", [(A,), (A, C)])
def test_a_holder_that_hangs_after_it_kept_those_in_doubt_loses_the_mail_and_the_others_are_served(
    recover, sending
):
    item, worker, _ = held(recover, A, B, C, sending=sending)
    kept_by_holder(recover, item, worker, A)
    report = recover.run(mode="recover")
    assert (report["failed"], report["skippedBy"]) == (1, {})
    left = tuple(recipient for recipient in (A, B, C) if recipient not in sending)
    assert [each.mail.recipients for each in published(recover)] == [left]
    (kept,) = recover.kept()
    assert (kept.state, kept.action, message.decode(kept.message).mail.recipients) == (
        State.KEPT,
        "failed",
        sending,
    )
    assert recover.quarantine.content(kept) == HEADER + BODY
    assert stage(recover, item).remaining == left
    assert recover.run(mode="recover")["planned"] == 0


@pytest.mark.parametrize("sending", [(A,), ()])
def test_the_row_of_a_holder_that_goes_on_meanwhile_stays(recover, monkeypatch, sending):
    item, worker, record = held(recover, A, B, sending=sending, sent=(A,) if not sending else ())
    mine = kept_by_holder(recover, item, worker, A)

    def goes_on(point):
        if point == "apply:kept":
            assert recover.stores.own.mail_stages.advance(
                recover.queue, record, replace(record, attempt=2, step=record.step + 1)
            )

    monkeypatch.setattr("mailslice.model.crash.point", goes_on)
    report = recover.run(mode="recover")
    assert report["skippedBy"] == {"its holder went on meanwhile": 1}
    assert (recover.kept(), published(recover)) == ([mine], [])


def test_a_release_leaves_the_row_of_recipients_that_were_sent_to_after_all(recover):
    item, worker, _ = held(recover, A, B, sent=(A,))
    mine = kept_by_holder(recover, item, worker, A)
    assert recover.run(mode="recover")["released"] == 1
    assert ([each.mail.recipients for each in published(recover)], recover.kept()) == (
        [(B,)],
        [mine],
    )


def test_mode_close_keeps_the_others_beside_those_in_doubt(recover):
    item, worker, _ = held(recover, A, B, sending=(A,))
    kept_by_holder(recover, item, worker, A)
    report = recover.run(mode="close")
    assert (report["closed"], report["status"]) == (1, "done")
    assert recover.is_marked(item)
    (kept,) = recover.kept()
    assert (kept.state, message.decode(kept.message).mail.recipients) == (State.KEPT, (A, B))
    assert kept.why.startswith("in doubt; held by ")
    recover.quarantine.release(kept)
    assert [each.mail.recipients for each in published(recover)] == [(A, B)]


def test_mode_close_keeps_nobody_who_was_served(recover):
    """Who releases the mail sends it to those alone who may not have it."""
    item, _, _ = held(recover, A, B, C, sending=(B,), sent=(A,))
    assert recover.run(mode="close")["closed"] == 1
    (kept,) = recover.kept()
    assert (recover.is_marked(item), message.decode(kept.message).mail.recipients) == (True, (B, C))
    recover.quarantine.release(kept)
    assert [each.mail.recipients for each in published(recover)] == [(B, C)]


@pytest.mark.parametrize("point", [None, "release:taken", "release:claimed"])
def test_a_release_leaves_out_who_was_served_since_the_close_and_the_holder_serves_nobody_else(
    recover, monkeypatch, point
):
    """Its handler goes on after all: with A before the release, with C after it."""
    _, worker, record = held(recover, A, B, C, sending=(A, B))
    assert recover.run(mode="close")["closed"] == 1
    later = record.moved((A,), Stage.SENT, by=worker.name, now=system_clock())
    stages = recover.stores.own.mail_stages
    assert stages.advance(recover.queue, record, later)
    (kept,) = recover.kept()
    if point is not None:
        killed(monkeypatch, point, lambda: recover.quarantine.release(kept))
        (kept,) = recover.kept()
    late = later.moved((C,), Stage.SENDING, by=worker.name, now=system_clock())
    recover.quarantine.release(kept)
    assert not stages.advance(recover.queue, later, late)
    assert [each.mail.recipients for each in published(recover)] == [(B, C)]


def test_a_release_before_the_holder_began_lets_it_send_to_nobody(recover):
    """Also from a shell without MAILSLICE_QUEUE_STAGE_MARKS."""
    item, worker, _ = held(recover, A, B)
    assert recover.run(mode="close")["closed"] == 1
    recover.quarantine.release(*recover.kept())
    late = MailStage(item.enqueue_id, worker.name, 1, 1, (B,), {A: Stage.SENDING}, system_clock())
    assert not recover.stores.own.mail_stages.advance(recover.queue, None, late)
    assert [each.mail.recipients for each in published(recover)] == [(A, B)]


@pytest.mark.parametrize("error", [ContentMissing, StoreUnavailable])
def test_a_release_that_has_no_content_leaves_the_mail_to_its_holder(recover, monkeypatch, error):
    """The holder has the content in memory."""
    item, worker, record = held(recover, A, B, sending=(A,))
    if error is ContentMissing:
        recover.stores.blobs.delete_many([item.body_blob_id])
    recover.run(mode="close")
    (kept,) = recover.kept()
    with monkeypatch.context() as patch:
        if error is StoreUnavailable:
            patch.setattr(type(recover.stores.own_blobs), "get", away)
        with pytest.raises(error):
            recover.quarantine.release(kept)
    assert stage(recover, item).owner == worker.name
    sent = record.moved((A,), Stage.SENT, by=worker.name, now=system_clock())
    assert recover.stores.own.mail_stages.advance(recover.queue, record, sent)
    if error is StoreUnavailable:
        recover.quarantine.release(kept)
        assert [each.mail.recipients for each in published(recover)] == [(B,)]


def away(*_):
    raise StoreUnavailable("S3 answers 503")


@pytest.mark.parametrize("point", [None, "release:taken", "release:claimed"])
def test_a_release_marks_a_mail_whose_closing_was_cut_off_before_its_mark(
    recover, monkeypatch, point
):
    """Its holder has gone on since, and its next attempt, for B, waits in a delay level."""
    item, worker, record = held(recover, A, B, sending=(A,))
    kept_by_holder(recover, item, worker, A)
    cut(recover, monkeypatch, "apply:decided", mode="close")
    again = next_attempt(record, (B,), by=worker.name, now=system_clock())
    assert recover.stores.own.mail_stages.advance(recover.queue, record, again)
    assert not recover.is_marked(item)
    if point is not None:
        killed(monkeypatch, point, lambda: recover.quarantine.release(*recover.kept()))
    recover.quarantine.release(*recover.kept())
    assert recover.is_marked(item)
    assert [each.mail.recipients for each in published(recover)] == [(A, B)]


def test_a_release_that_loses_the_row_to_a_run_in_mode_recover_marks_nothing(recover, monkeypatch):
    """The run leaves A in quarantine; B waits in the queue."""
    item, worker, _ = held(recover, A, B, sending=(A,))
    kept_by_holder(recover, item, worker, A)
    cut(recover, monkeypatch, "apply:decided", mode="close")
    (kept,) = recover.kept()

    def taken(point):
        if point == "release:taken":
            doubtful = replace(item, mail=replace(item.mail, recipients=(A,)))
            failed = Decided("failed", "held", "tester", "run-2")
            assert recover.quarantine.extend(kept, doubtful, failed, take=True)

    with monkeypatch.context() as patch:
        patch.setattr("mailslice.model.crash.point", taken)
        with pytest.raises(Refused, match="ask again"):
            recover.quarantine.release(kept)
    assert (recover.is_marked(item), published(recover)) == (False, [])
    assert stage(recover, item).remaining == (B,)


def test_a_release_of_those_in_doubt_leaves_the_others_to_their_attempt(recover):
    item, _, _ = held(recover, A, B, sending=(A,))
    recover.run(mode="recover")
    published(recover)
    before = stage(recover, item)
    recover.quarantine.release(*recover.kept())
    assert [each.mail.recipients for each in published(recover)] == [(A,)]
    assert stage(recover, item) == before


def test_a_release_of_a_mail_whose_holder_served_everyone_since_waits_for_a_second_word(recover):
    item, worker, record = held(recover, A, B, sending=(A, B))
    recover.run(mode="close")
    sent = record.moved((A, B), Stage.SENT, by=worker.name, now=system_clock())
    assert recover.stores.own.mail_stages.advance(recover.queue, record, sent)
    with pytest.raises(Refused, match="its worker served all its recipients"):
        recover.quarantine.release(*recover.kept())
    worker.say(in_flight=(), done=(item.enqueue_id,))
    recover.run(mode="close")
    recover.quarantine.release(*recover.kept())
    assert [each.mail.recipients for each in published(recover)] == [(A, B)]


@pytest.mark.parametrize("sent", [(A, B), (A,)])
def test_a_closed_mail_whose_marks_say_that_all_were_served_is_finished(recover, sent):
    """Its worker died before its record named the mail."""
    _, worker, record = held(recover, A, B, sending=(A, B))
    recover.run(mode="close")
    later = record.moved(sent, Stage.SENT, by=worker.name, now=system_clock())
    assert recover.stores.own.mail_stages.advance(recover.queue, record, later)
    worker.say(in_flight=())
    finished = recover.run(mode="close")["finishedOfEarlierRuns"]
    assert finished == ({"completed by its worker after all": 1} if sent == (A, B) else {})
    assert (recover.kept()[0].finished is not None) == (sent == (A, B))
    assert recover.run(mode="close")["finishedOfEarlierRuns"] == {}


def test_mode_close_completes_a_mail_whose_recipients_were_all_served(recover):
    item, _, _ = held(recover, A, B, sent=(A, B))
    report = recover.run(mode="close")
    assert (report["status"], report["closed"], report["completed"]) == ("done", 0, 1)
    assert (recover.is_marked(item), recover.kept(), published(recover)) == (True, [], [])


def test_shadow_and_a_closing_that_comes_too_late_leave_the_row_of_a_holder_as_it_is(
    recover, monkeypatch
):
    """Those whom the holder still answers for are not to be released by a person."""
    item, worker, _ = held(recover, A, B, sending=(A,))
    mine = kept_by_holder(recover, item, worker, A)
    recover.run(mode="shadow")
    assert recover.kept() == [mine]
    monkeypatch.setattr(
        "mailslice.model.crash.point",
        lambda point: (
            point == "apply:kept"
            and recover.stores.tables.deleted.mark_many(recover.queue, [item.enqueue_id])
        ),
    )
    assert recover.run(mode="close")["skippedBy"] == {"completed meanwhile": 1}
    assert recover.kept() == [mine]


@pytest.mark.parametrize(
    "point", ["apply:kept", pytest.param("apply:decided", marks=pytest.mark.soak)]
)
def test_a_closing_that_was_cut_off_is_no_bar_to_recovery(recover, monkeypatch, point):
    item, _, _ = held(recover, A, B, sending=(A,))
    cut(recover, monkeypatch, point, mode="close")
    assert [mail.state for mail in recover.kept()] == [State.CLOSING]
    report = recover.run(mode="recover")
    assert (report["failed"], report["skippedBy"], recover.is_marked(item)) == (1, {}, False)
    assert [each.mail.recipients for each in published(recover)] == [(B,)]
    (kept,) = recover.kept()
    assert (kept.state, kept.action, message.decode(kept.message).mail.recipients) == (
        State.KEPT,
        "failed",
        (A,),
    )


def test_a_mail_that_was_closed_and_cleaned_is_not_recovered(recover):
    item, worker, _ = held(recover, A, B)
    mine = kept_by_holder(recover, item, worker, A, B, action="closed")
    recover.stores.tables.written.delete_partition_future(
        recover.queue, recover.where, time.time_ns() // 1000
    ).result()
    report = recover.run(mode="recover")
    assert report["skippedBy"] == {"it is kept in quarantine, as closed": 1}
    assert (recover.kept(), published(recover)) == ([mine], [])


@pytest.mark.parametrize("of", ["its holder", "a run that was killed"])
def test_a_closing_that_was_cut_off_after_its_mark_is_told_by_the_same_run(
    recover, monkeypatch, of
):
    """Also on a row that another has kept.

    From then on it is that of a closed mail, which its worker may complete after all.
    """
    item, worker, _ = held(recover, A, B, sending=(A,))
    if of == "its holder":
        kept_by_holder(recover, item, worker, A)
    else:
        cut(recover, monkeypatch, "apply:kept", mode="close")
    request = recover.request(mode="close")
    recover.steps(request, "plan", "check")
    killed(monkeypatch, "apply:marked", lambda: recover.steps(request, "apply"))
    report = recover.steps(request, "apply", "verify", "report")
    assert (
        report["closed"],
        report["skippedBy"],
        [mail["enqueueId"] for mail in report["mails"]],
    ) == (1, {}, [str(item.enqueue_id)])
    (kept,) = recover.kept()
    assert (kept.state, kept.action, kept.run, kept.who) == (
        State.KEPT,
        "closed",
        request.run,
        "tester",
    )
    worker.say(in_flight=(), done=(item.enqueue_id,))
    assert recover.run(mode="close")["finishedOfEarlierRuns"] == {
        "completed by its worker after all": 1
    }


def test_a_closing_of_a_holders_row_that_was_cut_off_before_its_mark_is_no_bar_to_recovery(
    recover, monkeypatch
):
    item, worker, _ = held(recover, A, B, sending=(A,))
    kept_by_holder(recover, item, worker, A)
    cut(recover, monkeypatch, "apply:decided", mode="close")
    assert [(mail.state, mail.action) for mail in recover.kept()] == [(State.KEPT, "closed")]
    report = recover.run(mode="recover")
    assert (report["failed"], report["skippedBy"], recover.is_marked(item)) == (1, {}, False)
    assert [each.mail.recipients for each in published(recover)] == [(B,)]
    (kept,) = recover.kept()
    assert (kept.state, kept.action, message.decode(kept.message).mail.recipients) == (
        State.KEPT,
        "failed",
        (A,),
    )


@pytest.mark.parametrize("mode", ["recover", pytest.param("close", marks=pytest.mark.soak)])
def test_a_withdrawal_that_was_cut_off_is_finished_and_the_mail_acted_on(
    recover, monkeypatch, mode
):
    """Killed before the mail was taken; the run after it withdrew that, and was killed, too."""
    item, _, _ = held(recover, A)
    cut(recover, monkeypatch, "apply:kept")
    cut(recover, monkeypatch, "quarantine:emptied")
    assert [mail.state for mail in recover.kept()] == [State.DISCARDING]
    report = recover.run(mode=mode)
    assert (report["released"], report["closed"], report["skippedBy"]) == (
        *((1, 0) if mode == "recover" else (0, 1)),
        {},
    )
    assert (len(published(recover)), len(recover.kept())) == (
        (1, 0) if mode == "recover" else (0, 1)
    )
    assert recover.is_marked(item) is (mode == "close")


CUTS = ["apply:kept", "apply:taken", "apply:published", "quarantine:emptied"]


def cut(world, monkeypatch, point, mode="recover"):
    """A run that ends at this point; its lock is free."""
    killed(monkeypatch, point, lambda: world.run(mode=mode))


def killed(monkeypatch, point, work):
    def crash(at):
        if at == point:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("mailslice.model.crash.point", crash)
        with pytest.raises(Killed):
            work()


@pytest.mark.parametrize(("point", "kept"), [("apply:kept", []), ("apply:marked", [State.KEPT])])
def test_shadow_mode_finishes_a_closing_that_was_cut_off(recover, monkeypatch, point, kept):
    """Until then nobody can release the mail."""
    held(recover, A)
    cut(recover, monkeypatch, point, mode="close")
    assert [mail.state for mail in recover.kept()] == [State.CLOSING]
    report = recover.run(mode="shadow")
    assert report["finishedOfEarlierRuns"] == {"was closing": 1}
    assert [mail.state for mail in recover.kept()] == kept


def test_shadow_mode_serves_a_mail_that_a_run_took_from_its_holder(recover, monkeypatch):
    held(recover, A)
    cut(recover, monkeypatch, "apply:taken")
    recover.run(mode="shadow")
    assert [each.mail.recipients for each in published(recover)] == [(A,)]
    assert recover.kept() == []


@pytest.mark.parametrize("point", CUTS)
def test_a_release_that_was_cut_off_is_finished_by_the_next_run(recover, monkeypatch, point):
    """The message may come twice, under one enqueue id and attempt.

    Of two who are handed it, the conditional mark lets one send.
    """
    item, _, _ = held(recover, A, B)
    cut(recover, monkeypatch, point)
    recover.run(mode="recover")
    came = published(recover)
    assert came
    assert set(map(str, came)) == {str(item)}
    assert recover.kept() == []
    assert not recover.is_marked(item)
    assert stage(recover, item).attempt == 2
    recover.run(mode="recover")
    assert published(recover) == []


def test_a_release_that_was_cut_off_is_not_published_again_when_its_mail_was_cleaned(
    recover, monkeypatch
):
    """By a James, which writes no stage marks.

    The record is still the run's, and row and deleted mark are gone.
    """
    held(recover, A, B)
    cut(recover, monkeypatch, "apply:published")
    assert len(published(recover)) == 1
    recover.stores.tables.written.delete_partition_future(
        recover.queue, recover.where, time.time_ns() // 1000
    ).result()
    recover.run(mode="recover")
    assert (published(recover), recover.kept()) == ([], [])


@pytest.mark.parametrize("point", CUTS[:3])
@pytest.mark.parametrize("left", [(), (C,)])
def test_a_failing_that_was_cut_off_is_finished_by_the_next_run(recover, monkeypatch, point, left):
    item, _, _ = held(recover, A, B, *left, sending=(A,), sent=(B,))
    cut(recover, monkeypatch, point)
    recover.run(mode="recover")
    (kept,) = recover.kept()
    assert (kept.action, kept.state, message.decode(kept.message).mail.recipients) == (
        "failed",
        State.KEPT,
        (A,),
    )
    assert recover.is_marked(item) is not bool(left)
    assert {each.mail.recipients for each in published(recover)} == ({left} if left else set())
    assert recover.run(mode="recover")["planned"] == 0
    assert published(recover) == []


def test_a_failing_that_was_cut_off_before_its_holder_began_anew_fails_nobody(recover, monkeypatch):
    """The next hop refused the recipient for now, and the holder tries it again."""
    item, worker, record = held(recover, A, B, sending=(A,), sent=(B,))
    cut(recover, monkeypatch, "apply:kept")
    again = replace(
        record, attempt=2, step=record.step + 1, remaining=(A,), recipients={B: Stage.SENT}
    )
    assert recover.stores.own.mail_stages.advance(recover.queue, record, again)
    worker.say(in_flight=())
    report = recover.run(mode="recover")
    assert report["finishedOfEarlierRuns"] == {"not taken from its holder": 1}
    assert (recover.kept(), published(recover), recover.is_marked(item)) == ([], [], False)
    assert stage(recover, item).remaining == (A,)


@pytest.mark.parametrize("of", ["the run", "its holder"])
@pytest.mark.parametrize("left", [(), (C,)])
def test_those_in_doubt_are_kept_though_their_row_goes_while_the_run_stands_still(
    recover, monkeypatch, left, of
):
    """Its lock has ended, and what the next run, or a person, read of the row was true then."""
    item, worker, _ = held(recover, A, *left, sending=(A,))
    if of == "its holder":
        kept_by_holder(recover, item, worker, A)
    advance, reports = MailStages.advance, []

    def late(self, *records):
        monkeypatch.undo()
        recover.let_the_locks_run_out()
        if of == "its holder":
            assert recover.quarantine.discard(*recover.kept())
        else:
            worker.say(in_flight=())
            reports.append(recover.run(mode="recover"))
            assert reports[0]["finishedOfEarlierRuns"] == {"not taken from its holder": 1}
        assert recover.kept() == []
        return advance(self, *records)

    monkeypatch.setattr(MailStages, "advance", late)
    report = recover.run(mode="recover")
    (kept,) = recover.kept()
    assert (kept.action, kept.state, message.decode(kept.message).mail.recipients) == (
        "failed",
        State.KEPT,
        (A,),
    )
    assert recover.quarantine.content(kept) == HEADER + BODY
    assert (report["failed"], report["status"], report["errorCount"]) == (1, "failed", 1)
    assert "was withdrawn from quarantine while it was taken from its holder" in report["message"]
    assert recover.is_marked(item) is not bool(left)
    assert {each.mail.recipients for each in published(recover)} == ({left} if left else set())
    assert recover.run(mode="recover")["status"] == "nothing to do"
    assert recover.kept() == [kept]


def test_a_release_whose_row_goes_while_the_run_stands_still_serves_each_recipient(
    recover, monkeypatch
):
    item, worker, _ = held(recover, A, B)
    advance = MailStages.advance

    def late(self, *records):
        monkeypatch.undo()
        recover.let_the_locks_run_out()
        worker.say(in_flight=())
        recover.run(mode="recover")
        assert recover.kept() == []
        return advance(self, *records)

    monkeypatch.setattr(MailStages, "advance", late)
    assert recover.run(mode="recover")["released"] == 1
    assert (published(recover), recover.is_marked(item), recover.kept()) == ([item], False, [])


@pytest.mark.parametrize("sending", [(A, B), ()])
def test_a_taking_that_was_not_answered_is_finished_by_the_next_run(recover, sending):
    """Accepted by a minority: no plain read shows it, and the next conditional write finishes it.

    Nobody withdraws the copy before that is known: it would be all there is of those in doubt.
    """
    item, worker, _ = held(recover, A, B, sending=sending)
    with Unanswered("mail_stages") as writes:
        writes.arm()
        with pytest.raises(StoreUnavailable):
            recover.run(mode="recover")
        assert [mail.state for mail in recover.kept()] == [State.RECOVERING]
        worker.say(in_flight=())
        report = recover.run(mode="recover")
    assert report["finishedOfEarlierRuns"] == {"failed" if sending else "released": 1}
    assert stage(recover, item).attempt == 2
    if sending:
        (kept,) = recover.kept()
        assert (kept.state, message.decode(kept.message).mail.recipients) == (State.KEPT, (A, B))
        assert recover.quarantine.content(kept) == HEADER + BODY
        assert (recover.is_marked(item), published(recover)) == (True, [])
    else:
        assert (recover.kept(), published(recover)) == ([], [item])


def test_ages_and_names_of_the_report_are_those_of_the_mail(recover):
    item, worker, _ = held(recover, A)
    (told,) = recover.run(mode="recover")["mails"]
    assert (told["enqueueId"], told["name"], told["worker"], told["action"]) == (
        str(item.enqueue_id),
        "m",
        worker.name,
        "released",
    )
    assert told["ageSeconds"] >= 120
    assert replace(recover.decisions()[0], age=timedelta(0)).enqueue_id == item.enqueue_id
