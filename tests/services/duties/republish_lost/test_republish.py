"""What an audit proved lost comes back.

Once, as an enqueue would publish it, each mail proved again, and nothing else.
"""

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.codec import message
from mailslice.codec.row import epoch_ms, epoch_us, instant
from mailslice.duties.republish_lost.duty import RepublishLost
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.audits import newest_audit
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.errors import BadInput, GateFailed, PlanRefused, StoreUnavailable, UnknownQueue
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import HEADER_BUCKET, HEADER_DEAD_LETTER_ROUTING_KEY, HEADER_SLICE
from mailslice.model.stages import MailStage, Stage
from mailslice.stores.cassandra.own import (
    InFlightMail,
    PublishState,
    RepublishedMails,
    WorkerRecord,
)
from mailslice.stores.cassandra.own.quarantine import Content, QuarantinedMail, State
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import open_queue
from tests.services.duties.audited import AGE, MINUTE, working
from tests.services.duties.world import run_step_in_process
from tests.services.worker.refusing import refusing_s3

pytestmark = pytest.mark.usefixtures("at_once")


def in_queue(spool):
    return [each for each, _, _ in spool.messages()]


def test_a_lost_mail_is_published_as_an_enqueue_would_and_handled_like_any_other(spool):
    lost = spool.put("lost", message=False)
    bare = spool.put("bare", message=False, content=False)
    waiting = spool.put("waiting")
    spool.audit(census=True)
    report = spool.republish(reason="broker lost its disk")
    assert (
        report["status"],
        report["nbRequeuedMails"],
        report["applied"],
        report["skippedBy"],
    ) == ("done", 1, 1, {"bare": 1})
    assert (
        report["skipped"],
        report["failed"],
        report["left"],
        report["outcomeUnknown"],
        report["reason"],
    ) == (1, 0, 0, [], "broker lost its disk")
    (first, _, _), (second, properties, _) = spool.messages()
    assert (first, second) == (waiting, lost)
    row = spool.row(lost)
    assert (properties.delivery_mode, properties.priority, properties.content_type) == (
        2,
        0,
        "text/plain",
    )
    assert properties.headers == {
        HEADER_DEAD_LETTER_ROUTING_KEY: "",
        HEADER_SLICE: epoch_ms(row.partition.slice_start),
        HEADER_BUCKET: 0,
    }
    assert properties.timestamp == int(row.enqueued_time.timestamp())
    with working(spool, complete=1) as handed:
        assert handed == [waiting, lost]
    assert spool.row(bare) is not None


def test_a_mail_whose_content_gets_no_answer_stops_neither_audit_nor_republish(spool):
    lost, silent = (spool.put(name, message=False) for name in ("lost", "silent"))
    s3 = spool.settings.s3
    with refusing_s3(s3.endpoint, spool.row(silent).item.body_blob_id) as endpoint:
        settings = {"s3": s3.model_copy(update={"endpoint": endpoint})}
        partly = replace(spool, settings=spool.settings.model_copy(update=settings))
        partly.audit(census=True)
        assert spool.verdicts() == {lost: "lost", silent: "lost"}
        assert "gives no answer" in spool.why(silent)
        assert "gives no answer" not in spool.why(lost)
        report = partly.republish()
    assert (report["status"], report["applied"]) == ("done", 1)
    assert report["skippedBy"] == {"content unknown": 1}
    assert in_queue(spool) == [lost]
    assert spool.republish()["applied"] == 1
    assert in_queue(spool) == [lost, silent]


def test_the_message_is_james_json_of_the_row(spool):
    lost = spool.put("lost", message=False)
    spool.audit(census=True)
    spool.republish()
    with blocking_connection(spool.settings.rabbitmq) as connection:
        _, _, body = connection.channel().basic_get(spool.names.work_queue)
    assert body == message.encode(spool.row(lost).item)


def test_asked_twice_it_publishes_once(spool):
    lost = spool.put("lost", message=False)
    audit = spool.audit(census=True)
    assert spool.republish()["nbRequeuedMails"] == 1
    for again in (spool.republish(), spool.republish(audit=audit["run"])):
        assert (again["status"], again["nbRequeuedMails"], again["skippedBy"]) == (
            "nothing to do",
            0,
            {"already republished": 1},
        )
    assert in_queue(spool) == [lost]


def test_what_a_later_audit_finds_lost_again_is_published_again(spool):
    lost = spool.put("lost", message=False)
    spool.audit(census=True)
    spool.republish()
    with blocking_connection(spool.settings.rabbitmq) as connection:
        connection.channel().queue_purge(spool.names.work_queue)
    assert spool.audit(census=True)["verdicts"]["lost"] == 1
    assert spool.republish()["nbRequeuedMails"] == 1
    assert in_queue(spool) == [lost]
    assert spool.audit(census=True)["verdicts"]["waiting"] == 1
    assert (spool.republish()["status"], in_queue(spool)) == ("nothing to do", [lost])


def test_lost_or_ghost_needs_accept_duplicates(spool):
    james = spool.shared()
    lost = james.put("lost", message=False)
    assert james.audit(census=True)["verdicts"]["lost or ghost"] == 1
    report = james.republish()
    assert (report["status"], report["nbRequeuedMails"], report["skippedBy"]) == (
        "nothing to do",
        0,
        {"lost or ghost": 1},
    )
    assert "--accept-duplicates" in james.republish(dry_run=True)["message"]
    assert in_queue(james) == []
    assert james.republish(accept_duplicates=True)["nbRequeuedMails"] == 1
    assert in_queue(james) == [lost]


def test_lost_of_an_audit_before_james_came_counts_as_lost_or_ghost(spool):
    spool.put("lost", message=False)
    assert spool.audit(census=True)["verdicts"]["lost"] == 1
    assert spool.shared().republish()["skippedBy"] == {"lost or ghost": 1}


def test_older_than_as_in_james(spool):
    spool.put("an hour old", message=False, age=timedelta(hours=1))
    old = spool.put("five hours old", message=False, age=timedelta(hours=5))
    spool.audit(census=True)
    report = spool.republish(older_than="2h")
    assert (report["nbRequeuedMails"], report["skippedBy"], report["olderThan"]) == (
        1,
        {"younger": 1},
        "2h",
    )
    assert in_queue(spool) == [old]


def test_a_dry_run_says_what_would_be_published_and_publishes_nothing(spool):
    spool.put("lost", message=False)
    spool.audit(census=True)
    report = spool.republish(dry_run=True)
    assert (report["status"], report["planned"], report["nbRequeuedMails"]) == ("dry run", 1, 0)
    assert in_queue(spool) == []
    assert spool.republish()["nbRequeuedMails"] == 1


def mark(spool, lost):
    spool.mark(lost)
    return "done or gone"


def clean(spool, lost):
    row = spool.row(lost)
    spool.stores.tables.v4.delete_partition_future(
        spool.queue, row.partition, int(datetime.now(UTC).timestamp() * 1e6)
    ).result()
    return "done or gone"


def pass_by(spool, lost):
    spool.stores.tables.browse_starts.write(
        spool.queue,
        spool.row(lost).partition.slice_start + timedelta(hours=1),
        int(datetime.now(UTC).timestamp() * 1e6),
    )
    return "done or gone"


def delay(spool, lost):
    spool.delay(lost, datetime.now(UTC) + timedelta(hours=1))
    return "delayed"


def hold(spool, lost):
    now = datetime.now(UTC)
    mail = QuarantinedMail(
        lost,
        "m",
        State.KEPT,
        "closed",
        "loaded",
        "host:1:x",
        now,
        AGE,
        "held too long",
        now,
        b"{}",
        "h",
        "b",
        Content.KEPT,
    )
    spool.stores.own.quarantine.add(spool.queue, mail)
    return "held"


def move(spool, lost):
    """As a delay that was killed after it published the copy and before it wrote the row."""
    now, queue = datetime.now(UTC), spool.queue
    old = EnqueueId(uuid.uuid4())
    about = ("m", State.RELEASING, "delay", "waiting", "", now, AGE, "by hand", now)
    copy = (b"{}", "h", "b", Content.KEPT)
    mail = QuarantinedMail(old, *about, *copy, moved_to=queue, released_as=lost)
    spool.stores.own.moving_mails.add(queue, mail)
    return "held"


def take(spool, lost):
    mail = InFlightMail(lost, "m", MINUTE, "loaded", 1, begun=True)
    spool.stores.own.worker_records.save_future(
        spool.queue,
        WorkerRecord("host:1:x", "host", 1, datetime.now(UTC), timedelta(seconds=5), 1, (mail,)),
    ).result()
    return "in flight"


def complete(spool, lost):
    spool.stores.own.worker_records.save_future(
        spool.queue,
        WorkerRecord(
            "host:1:x", "host", 1, datetime.now(UTC), timedelta(seconds=5), 1, (), (lost,)
        ),
    ).result()
    return "ghost"


def send(spool, lost):
    recipients = spool.row(lost).item.mail.recipients
    stage = MailStage(lost, "host:1:x", 1, 1, (), dict.fromkeys(recipients, Stage.SENT))
    assert spool.stores.own.mail_stages.advance(spool.queue, None, stage)
    return "ghost"


def reject(spool, lost):
    spool.publish(spool.names.dead_letter_exchange, spool.row(lost).item)
    return "dead-lettered"


def lose_content(spool, lost):
    spool.stores.blobs.delete_many([spool.row(lost).item.body_blob_id])
    return "bare"


@pytest.mark.parametrize(
    "meanwhile",
    [mark, clean, pass_by, delay, hold, move, take, complete, send, reject, lose_content],
)
def test_each_mail_is_proved_again_just_before(spool, meanwhile):
    lost, other = (
        spool.put("lost", message=False),
        spool.put("other", message=False, age=timedelta(days=1)),
    )
    if meanwhile is pass_by:
        other = None
    spool.audit(census=True)
    request = spool.request("republish_lost")
    assert spool.steps(request, "plan", "check")["planned"] == 2
    why = meanwhile(spool, lost)
    report = spool.steps(request, "apply", "verify", "report")
    expected = {why: 1} if other else {why: 2}
    assert (report["skippedBy"], report["nbRequeuedMails"], in_queue(spool)) == (
        expected,
        1 if other else 0,
        [other] if other else [],
    )


@pytest.mark.parametrize("meanwhile", [mark, clean])
def test_a_mail_that_is_deleted_while_it_is_claimed_is_not_published(spool, monkeypatch, meanwhile):
    lost = spool.put("lost", message=False)
    spool.audit(census=True)
    claim = RepublishedMails.claim

    def claim_late(*args):
        claimed = claim(*args)
        meanwhile(spool, lost)
        return claimed

    monkeypatch.setattr(RepublishedMails, "claim", claim_late)
    report = spool.republish()
    assert (report["status"], report["skippedBy"], in_queue(spool)) == (
        "nothing to do",
        {"done or gone": 1},
        [],
    )


@pytest.mark.parametrize("passed", [True, False])
def test_a_published_mail_that_was_done_and_cleaned_away_is_no_alarm(spool, passed):
    """By James, behind its browseStart, or by a cleanup of mailslice, which drops marks itself."""
    lost = spool.put("lost", message=False)
    spool.audit(census=True)
    request = spool.request("republish_lost")
    assert spool.steps(request, "plan", "check", "apply")["applied"] == 1
    if passed:
        pass_by(spool, lost)
    clean(spool, lost)
    assert spool.steps(request, "verify")["success"]


def test_a_published_mail_that_the_ledger_does_not_know_fails(spool):
    spool.put("lost", message=False)
    spool.audit(census=True)
    request = spool.request("republish_lost")
    assert spool.steps(request, "plan", "check", "apply")["applied"] == 1
    spool.stores.cassandra.execute(f"TRUNCATE {spool.settings.own.keyspace}.republished_mails")
    with pytest.raises(GateFailed, match="in the ledger of decisions as published by this run"):
        spool.steps(request, "verify")


def test_a_mail_whose_delay_is_over_and_whose_copy_is_gone_is_published_and_no_longer_said_to_come(
    spool,
):
    lost = spool.put("overdue", message=False)
    spool.delay(lost, datetime.now(UTC) - 5 * MINUTE)
    assert spool.audit(census=True)["verdicts"]["lost"] == 1
    assert spool.republish()["nbRequeuedMails"] == 1
    assert spool.stores.own.delayed_mails.get(spool.queue, lost).published


def test_an_overdue_mail_that_was_flushed_since_the_audit_is_not_published_once_more(spool):
    lost = spool.put("overdue", message=False)
    body = message.encode(spool.row(lost).item)
    spool.delay(lost, datetime.now(UTC) - 5 * MINUTE, body)
    assert spool.audit(census=True)["verdicts"]["lost"] == 1
    with open_queue(spool.queue, spool.settings) as queue:
        assert queue.flush() == 1
    report = spool.republish()
    assert (report["nbRequeuedMails"], report["skippedBy"]) == (0, {"waiting": 1})
    assert in_queue(spool) == [lost]


def test_an_overdue_mail_that_is_flushed_as_it_is_claimed_is_not_published_once_more(
    spool, monkeypatch
):
    lost = spool.put("overdue", message=False)
    spool.delay(lost, datetime.now(UTC) - 5 * MINUTE, message.encode(spool.row(lost).item))
    spool.audit(census=True)
    claim = RepublishedMails.claim

    def claim_late(*args):
        claimed = claim(*args)
        with open_queue(spool.queue, spool.settings) as queue:
            assert queue.flush() == 1
        return claimed

    monkeypatch.setattr(RepublishedMails, "claim", claim_late)
    report = spool.republish()
    assert (report["nbRequeuedMails"], report["skippedBy"]) == (0, {"waiting": 1})
    assert in_queue(spool) == [lost]


def test_a_publish_that_cannot_be_recorded_leaves_no_delay_that_a_flush_publishes_again(
    spool, monkeypatch
):
    lost = spool.put("overdue", message=False)
    spool.delay(lost, datetime.now(UTC) - 5 * MINUTE, message.encode(spool.row(lost).item))
    spool.audit(census=True)

    def away(*_):
        raise StoreUnavailable("Cassandra is away")

    monkeypatch.setattr(RepublishedMails, "settle", away)
    with pytest.raises(StoreUnavailable):
        spool.republish()
    with open_queue(spool.queue, spool.settings) as queue:
        assert queue.flush() == 0
    assert in_queue(spool) == [lost]


def test_a_mail_that_was_delayed_once_and_lost_later_is_published(spool):
    lost = spool.put("lost", message=False)
    hour_ago = epoch_us(datetime.now(UTC) - timedelta(hours=1))
    spool.stores.own.delayed_mails.close(spool.queue, lost, uuid.uuid4(), hour_ago)
    assert spool.audit(census=True)["verdicts"]["lost"] == 1
    assert spool.republish()["nbRequeuedMails"] == 1
    assert in_queue(spool) == [lost]


def test_a_mail_that_its_worker_delays_anew_as_it_was_published_keeps_that_delay(
    spool, monkeypatch
):
    """A closed row would drop the copy that waits: the mail would be lost once more."""
    lost = spool.put("overdue", message=False)
    spool.delay(lost, datetime.now(UTC) - 5 * MINUTE)
    spool.audit(census=True)
    settle, due = RepublishedMails.settle, datetime.now(UTC) + timedelta(hours=1)

    def settle_late(*args):
        spool.delay(lost, due)
        return settle(*args)

    monkeypatch.setattr(RepublishedMails, "settle", settle_late)
    assert spool.republish()["nbRequeuedMails"] == 1
    row = spool.stores.own.delayed_mails.get(spool.queue, lost)
    assert (row.published, row.due) == (False, instant(epoch_ms(due)))


def decision(spool, lost):
    return spool.stores.own.republished_mails.get(spool.queue, lost)


@pytest.mark.parametrize(
    ("point", "out"),
    [pytest.param("apply:claimed", 0, marks=pytest.mark.soak), ("apply:published", 1)],
)
def test_killed_before_the_record_nobody_knows_so_it_is_told_and_not_repeated_unless_asked(
    spool, point, out
):
    lost = spool.put("lost", message=False)
    spool.audit(census=True)
    request = spool.request("republish_lost")
    spool.steps(request, "plan", "check")
    spool.kill("apply", request, point)
    spool.let_the_locks_run_out()
    assert (decision(spool, lost).state, in_queue(spool)) == (PublishState.CLAIMED, [lost] * out)
    for report in (spool.steps(request, "apply", "verify", "report"), spool.republish()):
        assert (report["nbRequeuedMails"], report["skippedBy"], report["outcomeUnknown"]) == (
            0,
            {"outcome unknown": 1},
            [str(lost)],
        )
        assert "--repeat-unknown" in report["message"]
    assert in_queue(spool) == [lost] * out
    assert spool.republish(repeat_unknown=True)["nbRequeuedMails"] == 1
    assert in_queue(spool) == [lost] * (out + 1)


@pytest.mark.soak
@pytest.mark.parametrize(("point", "out"), [("apply:locked", 0), ("apply:recorded", 1)])
def test_killed_before_the_claim_or_after_the_record_the_same_run_goes_on(spool, point, out):
    lost = spool.put("lost", message=False)
    spool.audit(census=True)
    request = spool.request("republish_lost")
    spool.steps(request, "plan", "check")
    spool.kill("apply", request, point)
    spool.let_the_locks_run_out()
    assert in_queue(spool) == [lost] * out
    assert spool.steps(request, "apply", "verify", "report")["nbRequeuedMails"] == 1
    assert in_queue(spool) == [lost]


@pytest.mark.soak
def test_a_new_census_settles_what_a_kill_left_open(spool):
    lost = spool.put("lost", message=False)
    spool.audit(census=True)
    request = spool.request("republish_lost")
    spool.steps(request, "plan", "check")
    spool.kill("apply", request, "apply:claimed")
    spool.let_the_locks_run_out()
    assert spool.audit(census=True)["verdicts"]["lost"] == 1
    assert spool.republish()["nbRequeuedMails"] == 1
    assert in_queue(spool) == [lost]


def test_the_same_run_tried_again_counts_what_it_had_published(spool):
    lost = [spool.put("lost", message=False) for _ in range(3)]
    spool.audit(census=True)
    request = spool.request("republish_lost")
    spool.steps(request, "plan", "check", "apply")
    report = spool.steps(request, "apply", "verify", "report")
    assert (report["nbRequeuedMails"], report["skippedBy"]) == (3, {})
    assert sorted(in_queue(spool)) == sorted(lost)


def test_a_publish_without_a_confirm_is_unknown_and_the_rest_is_left(spool):
    one_by_one = replace(spool, tools=replace(spool.tools, logic=RepublishLost(concurrency=1)))
    lost = [spool.put("lost", message=False) for _ in range(3)]
    spool.audit(census=True)
    with blocking_connection(spool.settings.rabbitmq) as connection:
        connection.channel().queue_unbind(spool.names.work_queue, spool.names.exchange, "")
    with pytest.raises(
        StoreUnavailable,
        match=r"no queue bound.*0 mails were published, 1 without a confirm, 2 are left",
    ):
        one_by_one.republish()
    assert sorted(
        each.state for each in spool.stores.own.republished_mails.by_ids(spool.queue, lost).values()
    ) == [PublishState.UNKNOWN]
    with blocking_connection(spool.settings.rabbitmq) as connection:
        connection.channel().queue_bind(spool.names.work_queue, spool.names.exchange, "")
    report = spool.republish()
    assert (report["nbRequeuedMails"], report["skippedBy"]) == (2, {"outcome unknown": 1})


def test_a_publish_is_recorded_although_its_count_cannot_be_saved(spool, monkeypatch):
    lost = spool.put("lost", message=False)
    spool.audit(census=True)

    def away(*_):
        raise StoreUnavailable("S3 is away")

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "done", away)
        with pytest.raises(StoreUnavailable, match="S3 is away"):
            spool.republish()
    assert (decision(spool, lost).state, in_queue(spool)) == (PublishState.PUBLISHED, [lost])
    assert spool.republish()["outcomeUnknown"] == []
    assert in_queue(spool) == [lost]


def test_the_time_limit_leaves_the_rest_to_the_next_run(spool):
    lost = [spool.put("lost", message=False) for _ in range(3)]
    spool.audit(census=True)
    report = spool.republish(time_limit="0s")
    assert (report["status"], report["nbRequeuedMails"], report["left"]) == ("nothing to do", 0, 3)
    assert report["message"] == ("no mail was published; 3 left to the next run by the time limit")
    assert sorted([*in_queue(spool), *lost]) == sorted(lost)
    assert spool.republish()["nbRequeuedMails"] == 3


def test_the_rate_is_kept(spool, monkeypatch):
    taken = []
    monkeypatch.setattr(
        "mailslice.maintenance.rate_limit.Throttle.take", lambda _, count=1: taken.append(count)
    )
    for _ in range(3):
        spool.put("lost", message=False)
    spool.audit(census=True)
    taken.clear()
    spool.republish()
    assert sum(taken) == 3


def test_without_an_audit_there_is_nothing_to_act_by(spool):
    spool.put("lost", message=False)
    with pytest.raises(
        PlanRefused,
        match=r"no audit .* took a census is done.*duty run queue_audit --queue .* --census",
    ):
        spool.republish()
    audit = spool.audit()
    with pytest.raises(PlanRefused, match="no audit"):
        spool.republish()
    with pytest.raises(PlanRefused, match="took no census"):
        spool.republish(audit=audit["run"])
    with pytest.raises(BadInput, match="'nosuch' is not in the ledger"):
        spool.republish(audit="nosuch")


def test_an_audit_of_another_queue_or_an_old_one_is_refused(spool, make_spool):
    other = make_spool()
    theirs = other.audit(census=True)
    with pytest.raises(BadInput, match="allowed is an audit of"):
        spool.republish(audit=theirs["run"])
    other.put("lost", message=False)
    other.audit(census=True)
    with pytest.raises(PlanRefused, match=r"25\.0 h old; allowed are 24 h"):
        other.republish(clock=lambda: datetime.now(UTC) + timedelta(hours=25))
    with pytest.raises(UnknownQueue, match="nobody"):
        run_step_in_process(
            "plan", RunRequest("republish_lost", QueueName("nobody"), "r-1"), other.settings
        )


def test_an_audit_that_was_edited_is_refused(spool):
    spool.put("lost", message=False)
    run = spool.audit(census=True)["run"]
    folder = RunFolder(artifacts(spool.settings), "queue_audit", spool.queue, run)
    plan = folder.read_json("plan.json")
    folder.write_json(
        "plan.json",
        json.loads(
            json.dumps(plan)
            .replace('"census": true', '"census": false', 1)
            .replace('"shared": false', '"shared": true', 1)
        ),
    )
    with pytest.raises(PlanRefused, match="was changed"):
        spool.republish()
    folder.write_json("plan.json", plan)
    (file,) = newest_audit(spool.stores, spool.queue).files()
    spool.put("another", message=False)
    other = spool.audit(census=True)["run"]
    theirs = RunFolder(artifacts(spool.settings), "queue_audit", spool.queue, other)
    (their_file,) = newest_audit(spool.stores, spool.queue).files()
    folder.artifacts.write(folder.file(file), theirs.artifacts.read(theirs.file(their_file)))
    with pytest.raises(PlanRefused, match=r"files of audit .* were changed"):
        spool.republish(audit=run)
    folder.artifacts.remove(folder.file(file))
    with pytest.raises(PlanRefused, match="cannot be read"):
        spool.republish(audit=run)


def test_a_plan_that_was_edited_or_did_not_pass_the_gate_is_refused(spool):
    spool.put("lost", message=False)
    spool.audit(census=True)
    request = spool.request("republish_lost")
    spool.steps(request, "plan")
    with pytest.raises(PlanRefused, match="check comes first"):
        spool.steps(request, "apply")
    spool.steps(request, "check")
    folder = RunFolder(artifacts(spool.settings), "republish_lost", spool.queue, request.run)
    plan = folder.read_json("plan.json")
    folder.write_json(
        "plan.json", {**plan, "decided": {**plan["decided"], "acceptDuplicates": True}}
    )
    with pytest.raises(PlanRefused, match="was changed"):
        spool.steps(request, "apply")
    folder.write_json("plan.json", plan)
    folder.artifacts.write(folder.file("plan/mails.parquet"), b"PAR1nonsense")
    with pytest.raises(PlanRefused, match="changed or removed"):
        spool.steps(request, "apply")
    assert in_queue(spool) == []


def test_a_gate_stops_a_plan_of_an_audit_that_was_made_anew_since(spool):
    spool.put("lost", message=False)
    run = spool.audit(census=True)["run"]
    request = spool.request("republish_lost")
    spool.steps(request, "plan")
    spool.put("another", message=False)
    spool.steps(spool.request("queue_audit", run, census=True), "plan")
    with pytest.raises(GateFailed, match="the very one that the plan was made from"):
        spool.steps(request, "check")


def test_nobody_can_claim_a_mail_twice(spool):
    from mailslice.stores.cassandra.own import Republished

    table, one = spool.stores.own.republished_mails, EnqueueId(uuid.uuid4())
    day = timedelta(days=1)
    now = datetime.now(UTC).replace(microsecond=0)
    first, second = (
        Republished(one, name, "run", PublishState.CLAIMED, "tester", now) for name in ("a", "b")
    )
    assert table.claim(spool.queue, first, "", day) == first
    assert table.claim(spool.queue, second, "", day) == first
    assert table.claim(spool.queue, second, "x", day) == first
    assert table.settle(spool.queue, first, PublishState.PUBLISHED, now, day)
    assert table.claim(spool.queue, second, "a", day) == second
    assert not table.settle(spool.queue, first, PublishState.PUBLISHED, now, day)
    assert table.by_ids(spool.queue, [one, EnqueueId(uuid.uuid4())]) == {one: second}


def test_an_audit_with_a_census_that_had_no_old_mail_to_ask_about_leaves_nothing_to_publish(spool):
    spool.put("young", age=MINUTE, message=False)
    spool.audit(census=True, dry_run=True)
    with pytest.raises(PlanRefused, match="nothing is proved lost"):
        spool.republish()
    audit = spool.audit(census=True)
    assert audit["census"]["taken"] is False
    report = spool.republish()
    assert (report["status"], report["nbRequeuedMails"], report["audit"]["run"]) == (
        "nothing to do",
        0,
        audit["run"],
    )
    assert spool.republish(audit=audit["run"])["nbRequeuedMails"] == 0
    assert spool.messages() == []


def test_an_audit_that_needed_no_census_hides_no_mail_that_an_earlier_one_proved_lost(spool):
    lost = spool.put("lost", message=False)
    first = spool.audit(census=True)
    assert spool.audit(census=True, older_than="30d")["census"]["needless"]
    report = spool.republish()
    assert (report["nbRequeuedMails"], report["audit"]["run"]) == (1, first["run"])
    assert in_queue(spool) == [lost]
