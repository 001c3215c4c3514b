"""A census takes nothing, doubles nothing, and proves nothing that it does not know."""

import asyncio
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pika
import pytest

from mailslice.codec import message
from mailslice.codec.row import epoch_us
from mailslice.duties.queue_audit import duty, evidence
from mailslice.engine import worker_stores
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.audits import audit_of, newest_audit
from mailslice.maintenance.lock import LockLost
from mailslice.maintenance.plan import digest_of
from mailslice.model.errors import (
    BadInput,
    GateFailed,
    PlanRefused,
    Refused,
    StoreUnavailable,
    UnknownQueue,
)
from mailslice.model.mail import EnqueueId, Mail, QueueName
from mailslice.stores import Stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.management import Management
from mailslice.stores.rabbitmq.work_census import WorkQueueCensus
from mailslice.worker import Deliveries, Delivery, open_worker
from tests.services.duties.audited import MINUTE, Spool, working
from tests.services.rabbitmq.parked import figures
from tests.services.rabbitmq.parked import parked as park


@pytest.mark.usefixtures("at_once")
def test_killed_while_it_holds_everything_all_comes_back_in_order_and_the_same_run_goes_on(spool):
    mails = [spool.put(f"m-{number}") for number in range(20)]
    request = spool.request("queue_audit", census=True)
    spool.kill("plan", request, "plan:after-first-read")
    spool.kill("plan", request, "plan:census-held")
    spool.let_the_locks_run_out()
    found = spool.messages()
    assert [each for each, _, _ in found] == mails
    assert {redelivered for _, _, redelivered in found} == {True}
    spool.kill("plan", request, "plan:after-evidence")
    spool.let_the_locks_run_out()
    report = spool.steps(request, "plan", "check", "apply", "verify", "report")
    assert (report["status"], report["verdicts"]["waiting"], report["mails"]) == ("done", 20, 20)
    assert [each for each, _, _ in spool.messages()] == mails


@pytest.mark.usefixtures("at_once")
def test_it_says_first_what_it_changes(spool, caplog):
    spool.put()
    spool.audit()
    assert "census" not in caplog.text
    spool.audit(census=True)
    (said,) = [
        record
        for record in caplog.records
        if record.name.startswith("mailslice.duties.") and "census of" in record.message
    ]
    assert "workers get no mail of it" in said.message
    assert "is marked redelivered, and they keep their order" in said.message


@pytest.mark.usefixtures("at_once")
def test_a_queue_with_a_hundred_times_as_many_messages_as_old_mails(spool):
    old = [
        spool.put(f"m-{number}", age=30 * MINUTE, message=number % 2 == 0) for number in range(4)
    ]
    item = spool.row(old[0]).item
    odd = b'{"enqueueId": "%b", "name": 1}' % str(old[1]).encode()
    with blocking_connection(spool.settings.rabbitmq) as connection:
        channel = connection.channel()
        for _ in range(400):
            channel.basic_publish(
                spool.names.exchange, "", b"not a mail", pika.BasicProperties(delivery_mode=2)
            )
        # James may deliver what mailslice does not understand.
        channel.basic_publish(spool.names.exchange, "", odd)
    report = spool.audit(census=True)
    assert (report["census"]["held"], report["census"]["notMails"]) == (403, 401)
    assert (report["verdicts"]["waiting"], report["verdicts"]["lost"]) == (3, 1)
    assert item.enqueue_id in spool.verdicts()


@pytest.mark.parametrize(
    ("elsewhere", "why"),
    [
        (1, "consumers hold 1 messages of which no worker's record tells"),
        (None, "RabbitMQ gives no figures of what consumers hold"),
    ],
)
def test_what_consumers_hold_and_nobody_explains_leaves_mails_unknown(
    spool, monkeypatch, elsewhere, why
):
    monkeypatch.setattr(evidence, "HOLD", timedelta(0))
    monkeypatch.setattr(evidence, "LONGEST_HOLD", timedelta(0))
    monkeypatch.setattr(WorkQueueCensus, "elsewhere", lambda _: elsewhere)
    lost = spool.put("lost", message=False)
    assert spool.audit(census=True)["census"]["unproved"] == why
    assert (spool.verdicts(), spool.why(lost)) == (
        {lost: "unknown"},
        f"its message is in no queue, but {why}",
    )


@pytest.mark.soak
def test_while_a_consumer_holds_what_no_record_explains_nothing_is_called_lost(spool, monkeypatch):
    monkeypatch.setattr(
        evidence, "HOLD", timedelta(seconds=12)
    )  # RabbitMQ's figures are up to 10 s old
    monkeypatch.setattr(evidence, "LONGEST_HOLD", timedelta(seconds=13))
    taken, lost, waiting = (
        spool.put("taken"),
        spool.put("lost", message=False),
        spool.put("waiting"),
    )
    with blocking_connection(spool.settings.rabbitmq) as connection:
        channel = connection.channel()
        method, _, _ = channel.basic_get(spool.names.work_queue)
        report = spool.audit(census=True)
        assert spool.verdicts() == {taken: "unknown", lost: "unknown", waiting: "waiting"}
        assert (
            report["census"]["unproved"]
            == "consumers hold 1 messages of which no worker's record tells"
        )
        assert spool.why(lost) == f"its message is in no queue, but {report['census']['unproved']}"
        # As James may: acknowledged, and no mark.
        channel.basic_ack(method.delivery_tag)
    monkeypatch.setattr(evidence, "HOLD", timedelta(0))
    monkeypatch.setattr(WorkQueueCensus, "elsewhere", lambda _: 0)
    spool.audit(census=True)
    assert spool.verdicts() == {taken: "lost", lost: "lost", waiting: "waiting"}


def test_a_mail_of_a_living_workers_record_is_not_lost_though_a_late_figure_knows_of_none(
    spool, monkeypatch
):
    """A broker whose collect_statistics_interval is a minute tells of a minute ago."""
    monkeypatch.setattr(WorkQueueCensus, "elsewhere", lambda _: 0)
    taken, lost = spool.put("taken"), spool.put("lost", message=False)
    with working(spool) as handed:
        assert handed == [taken]
        spool.audit(census=True)
    assert spool.verdicts() == {taken: "in flight", lost: "lost"}


def test_what_a_consumer_gives_back_while_it_holds_comes_to_it_and_not_to_a_worker(spool):
    one = spool.put("given back")
    with blocking_connection(spool.settings.rabbitmq) as connection:
        channel = connection.channel()
        method, _, _ = channel.basic_get(spool.names.work_queue)
        over = threading.Event()
        audit = threading.Thread(target=lambda: (spool.audit(census=True), over.set()))
        audit.start()
        connection.sleep(3)
        channel.basic_nack(method.delivery_tag, requeue=True)
        while not over.is_set():
            connection.sleep(0.2)
        audit.join()
    assert spool.verdicts() == {one: "waiting"}


def test_without_a_census_what_is_not_known_is_unknown_and_says_why(spool):
    lost, delayed, bare = (
        spool.put("lost", message=False),
        spool.put("delayed", message=False),
        spool.put("bare", content=False),
    )
    spool.delay(delayed, datetime.now(UTC) + timedelta(hours=1))
    report = spool.audit()
    assert spool.verdicts() == {lost: "unknown", delayed: "delayed", bare: "bare"}
    assert report["census"] == {"taken": False, "why": "it was not asked for"}
    assert "a census (--census)" in spool.why(lost)
    assert "else unknown" in spool.why(bare)
    assert report["message"].endswith("a census (--census) may tell the unknown ones apart")


def test_a_dry_run_takes_no_census_and_publishes_nothing(spool):
    spool.put("lost", message=False)
    waiting = spool.put("waiting")
    report = spool.audit(census=True, dry_run=True)
    assert (report["status"], report["census"], report["verdicts"]["unknown"]) == (
        "dry run",
        {"taken": False, "why": "a dry run takes none"},
        2,
    )
    assert [(each, redelivered) for each, _, redelivered in spool.messages()] == [(waiting, False)]


@pytest.mark.usefixtures("at_once")
def test_a_quorum_queue_gives_everything_back_and_one_with_a_delivery_limit_is_refused(spool):
    names = spool.names
    with blocking_connection(spool.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_delete(names.work_queue)
        channel.queue_declare(
            names.work_queue,
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": names.dead_letter_exchange,
            },
        )
        channel.queue_bind(names.work_queue, names.exchange, "")
    mails = [spool.put(f"m-{number}") for number in range(10)]
    lost = spool.put("lost", message=False)
    report = spool.audit(census=True)
    assert (report["verdicts"]["waiting"], report["verdicts"]["lost"]) == (10, 1)
    assert sorted(each for each, _, _ in spool.messages()) == sorted(mails)
    with blocking_connection(spool.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_delete(names.work_queue)
        channel.queue_declare(
            names.work_queue,
            durable=True,
            arguments={"x-queue-type": "quorum", "x-delivery-limit": 2},
        )
        channel.queue_bind(names.work_queue, names.exchange, "")
    spool.publish(names.exchange, spool.row(lost).item)
    with pytest.raises(Refused, match="delivery limit 2"):
        spool.audit(census=True)
    assert [(each, redelivered) for each, _, redelivered in spool.messages()] == [(lost, False)]
    assert spool.audit()["status"] == "done"


@pytest.mark.usefixtures("at_once")
def test_an_alarm_of_the_broker_refuses_a_census(spool, monkeypatch):
    spool.put()
    monkeypatch.setattr(Management, "alarms", lambda _: ["memory alarm on rabbit@here"])
    with pytest.raises(Refused, match="memory alarm on rabbit@here"):
        spool.audit(census=True)
    assert spool.audit()["status"] == "done"


@pytest.mark.usefixtures("at_once")
def test_dead_letters_that_cannot_be_looked_through_leave_mails_unknown(spool):
    lost, report = spool.put("lost", message=False), {}
    with blocking_connection(spool.settings.rabbitmq) as connection:
        connection.channel().basic_consume(spool.names.dead_letter_queue, lambda *_: None)
        over = threading.Event()
        audit = threading.Thread(
            target=lambda: (report.update(spool.audit(census=True)), over.set())
        )
        audit.start()
        while not over.is_set():
            connection.sleep(0.2)
        audit.join()
    assert (spool.verdicts(), spool.why(lost)) == (
        {lost: "unknown"},
        report["census"]["unproved"],
    )
    assert report["census"]["unproved"] == "the dead letters could not be looked through"


@pytest.mark.soak
def test_mails_that_are_enqueued_and_handled_meanwhile_are_all_handled_once(spool, monkeypatch):
    """A live worker and a live sender through a whole census.

    Nothing is lost, nothing comes twice, nothing is called lost.
    """
    monkeypatch.setattr(evidence, "LONGEST_HOLD", timedelta(seconds=12))
    done: list[EnqueueId] = []
    sent: list[EnqueueId] = []
    lost = spool.put("lost", message=False)

    async def live(over: threading.Event) -> None:
        async def handle(delivery: Delivery) -> None:
            done.append(delivery.item.enqueue_id)
            await asyncio.sleep(0.05)
            await delivery.complete()

        async def receive(deliveries: Deliveries) -> None:
            async with asyncio.TaskGroup() as handlers:
                async for delivery in deliveries:
                    handlers.create_task(handle(delivery))

        async with open_worker(spool.settings, spool.queue) as worker:
            deliveries = worker.deliveries(32)
            receiving = asyncio.create_task(receive(deliveries))
            while not over.is_set():
                sent.append(
                    (
                        await worker.enqueue(
                            Mail("m", None, ("c@d.example",)), b"Subject: x\r\n\r\n"
                        )
                    ).enqueue_id
                )
                await asyncio.sleep(0.1)
            deadline = asyncio.get_running_loop().time() + 120
            clock = asyncio.get_running_loop().time
            while not set(sent) <= set(done) and clock() < deadline:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)
            await deliveries.aclose()
            await receiving

    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(live(over)))
    thread.start()
    try:
        report = spool.audit(census=True, older_than="0s")
    finally:
        over.set()
        thread.join(180)
    assert len(sent) > 20
    assert sorted(done) == sorted(sent)
    assert report["census"]["taken"]
    assert {one for one, verdict in spool.verdicts().items() if verdict == "lost"} <= {lost}
    assert spool.audit(older_than="0s")["mails"] == 1


@pytest.mark.usefixtures("at_once")
def test_only_mails_of_that_age_are_asked_about(spool):
    ages = {
        name: spool.put(name, age=age)
        for name, age in (
            ("1m", MINUTE),
            ("15m", 15 * MINUTE),
            ("30m", 30 * MINUTE),
            ("5h", 300 * MINUTE),
        )
    }
    expected = {
        "0s": {"1m", "15m", "30m", "5h"},
        "10m": {"15m", "30m", "5h"},
        "1h": {"5h"},
        "30d": set(),
        "36500d": set(),
    }
    for older_than, names in expected.items():
        assert spool.audit(older_than=older_than)["mails"] == len(names)
        assert spool.verdicts().keys() == {ages[name] for name in names}
    assert spool.audit()["mails"] == 2  # two windows of ten minutes
    assert spool.audit(older_than="30d", census=True)["census"] == {
        "taken": False,
        "needless": True,
        "why": "no mail is old enough",
    }
    with pytest.raises(BadInput, match="older_than"):
        spool.audit(older_than="36501d")
    with pytest.raises(BadInput, match="older_than"):
        spool.audit(older_than="yesterday")


def test_an_audit_that_is_held_to_slices_asks_about_their_mails_alone(spool):
    old, older = spool.put("old", age=30 * MINUTE), spool.put("older", age=300 * MINUTE)
    between = datetime.now(UTC) - 100 * MINUTE
    for held_to, asked in (
        ({"slices_before": between.isoformat()}, older),
        ({"slices_from": between.isoformat()}, old),
    ):
        report = spool.audit(**held_to)
        assert report["mails"] == 1
        location = artifacts(spool.settings)
        assert [
            mail.enqueue_id
            for mail in audit_of(spool.stores, spool.queue, report["run"]).mails(location)
        ] == [str(asked)]
    assert (
        newest_audit(spool.stores, spool.queue) is None
    )  # what republish_lost and `queue audit` act by is about the whole queue


@pytest.mark.usefixtures("at_once")
def test_a_census_whose_connection_is_cut_proves_nothing_and_gives_everything_back_in_its_order(
    spool, monkeypatch
):
    mails = [spool.put(f"m-{number}") for number in range(10)]

    def cut(hold: WorkQueueCensus, _seconds: float) -> None:
        hold._connection._impl._terminate_stream(ConnectionResetError("cut"))
        hold._connection.process_data_events(time_limit=1)

    monkeypatch.setattr(WorkQueueCensus, "wait", cut)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        spool.audit(census=True)
    assert newest_audit(spool.stores, spool.queue) is None
    assert [each for each, _, _ in spool.messages()] == mails


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("timeout", "waited"), [(10, 20), (45, 90)])
def test_a_mail_enqueued_a_moment_ago_is_waited_for_before_the_census(spool, timeout, waited):
    """Its message may be on its way; its writer's clock may be behind ours."""
    rabbit = spool.settings.rabbitmq.model_copy(update={"timeout": timedelta(seconds=timeout)})
    spool = replace(spool, settings=spool.settings.model_copy(update={"rabbitmq": rabbit}))
    pauses: list[float] = []
    lost = spool.put("lost", age=timedelta(minutes=3), message=False)
    request = spool.request("queue_audit", census=True, older_than="1s")
    context = _context(spool, request)
    found, _ = evidence.gather(
        context, census=True, youngest=spool.row(lost).enqueued_time, sleep=pauses.append
    )
    assert sum(pauses) == waited
    assert found.census == frozenset()


def _context(spool: Spool, request):
    from mailslice.duties.queue_audit.params import Params
    from mailslice.maintenance.artifacts import RunFolder, artifacts
    from mailslice.maintenance.run import Run
    from mailslice.model.clock import system_clock

    folder = RunFolder(artifacts(spool.settings), request.duty, request.queue, request.run)
    return Run(
        request, Params.parse(request.params), spool.settings, spool.stores, folder, system_clock
    )


def test_a_queue_without_mail_and_one_that_is_unknown(spool):
    report = spool.audit(census=True)
    assert (report["status"], report["mails"], set(report["verdicts"].values())) == ("done", 0, {0})
    assert report["message"] == "no live mail is older than 20m"
    with pytest.raises(UnknownQueue, match="nobody"):
        Spool(spool.settings, spool.stores, QueueName("nobody")).audit()


@pytest.mark.usefixtures("at_once")
def test_rows_of_both_tables_are_judged_and_a_copied_row_once(spool):
    stores, one, other = (
        spool.stores,
        spool.put("in both", message=False),
        spool.put("in V3 alone", message=False),
    )
    stores.cassandra.execute(
        f"CREATE TABLE IF NOT EXISTS {spool.settings.cassandra.keyspace}.enqueuedmailsv3 "
        f"{_v3_columns()}"
    )
    _look_again(stores)
    try:
        row = spool.row(other)
        stores.tables.v3.insert_many([spool.row(one), row])
        stores.cassandra.execute(
            stores.cassandra.prepare(
                f"DELETE FROM {spool.settings.cassandra.keyspace}.enqueuedmailsv4 WHERE "
                "queuename = ? AND timerangestart = ? AND bucketid = 0 AND enqueueid = ?"
            ),
            [spool.queue, row.partition.slice_start, other],
        )
        assert spool.audit(census=True)["verdicts"]["lost"] == 2
        assert spool.verdicts() == {one: "lost", other: "lost"}
        assert spool.republish()["nbRequeuedMails"] == 2
        assert sorted(each for each, _, _ in spool.messages()) == sorted([one, other])
    finally:
        stores.cassandra.execute(f"DROP TABLE {spool.settings.cassandra.keyspace}.enqueuedmailsv3")
        _look_again(stores)


def _look_again(stores: Stores) -> None:
    """Existing tables are looked up once a process, also by what stands for Spark's workers."""
    stores.tables.__dict__.pop("existing", None)
    worker_stores.close_all()


def _v3_columns() -> str:
    from mailslice.model.names import QueueTable
    from mailslice.stores.cassandra.ddl import _TABLES

    return _TABLES[QueueTable.V3.cql]


@pytest.mark.usefixtures("at_once")
def test_a_plan_that_was_edited_is_not_published(spool):
    spool.put("lost", message=False)
    request = spool.request("queue_audit", census=True)
    spool.steps(request, "plan", "check")
    audit = _context(spool, request).folder
    plan = audit.read_json("plan.json")
    audit.write_json("plan.json", {**plan, "decided": {**plan["decided"], "verdicts": {"lost": 7}}})
    with pytest.raises(PlanRefused, match="was changed"):
        spool.steps(request, "apply")
    assert newest_audit(spool.stores, spool.queue) is None


def test_what_consumers_hold_is_unknown_until_the_broker_has_figures_of_the_hold_itself(spool):
    assert (
        spool.stores.management.unacked_elsewhere(spool.names.work_queue, "no such consumer")
        is None
    )


@pytest.fixture
def published(spool):
    """An audit that has published its verdicts: (the spool, the request, its folder)."""
    spool.put()
    request = spool.request("queue_audit")
    spool.steps(request, "plan", "check", "apply", "verify")
    folder = RunFolder(artifacts(spool.settings), request.duty, request.queue, request.run)
    return spool, request, folder


def test_an_audit_whose_metrics_another_run_replaces_meanwhile_passes_verify(spool):
    spool.put()
    request = spool.request("queue_audit")
    spool.steps(request, "plan", "check", "apply")
    spool.put("another")
    assert spool.audit()["mails"] == 2
    spool.steps(request, "verify", "report")
    text = artifacts(spool.settings).read(f"metrics/mailslice-audit-{spool.queue}.prom").decode()
    assert f'mailslice_audit_mails{{queue="{spool.queue}",verdict="unknown"}} 2.0' in text


def test_files_with_fewer_mails_than_the_audit_says_fail_verify(published):
    spool, request, folder = published
    plan = folder.read_json("plan.json")
    decided = plan["decided"]
    more = {verdict: count + 1 for verdict, count in decided["verdicts"].items()}
    decided = {**decided, "verdicts": more}
    changed = {**plan, "decided": decided, "planDigest": digest_of(decided)}
    folder.write_json("plan.json", changed)
    with pytest.raises(GateFailed, match="as many mails of each verdict as were judged so"):
        spool.steps(request, "verify")


@pytest.mark.usefixtures("at_once")
def test_what_is_parked_is_present_and_nothing_is_lost_until_it_is_back(spool):
    parked, lost = spool.put("parked", message=False), spool.put("lost", message=False)
    item = spool.row(parked).item
    park(spool.stores, spool.queue, message.encode(item))
    report = spool.audit(census=True)
    assert report["verdicts"]["lost"] == 0
    assert report["census"]["unproved"] == "1 messages are parked until a store answers for them"
    assert spool.republish()["nbRequeuedMails"] == 0
    with blocking_connection(spool.settings.rabbitmq) as connection:
        connection.channel().queue_purge(spool.names.park_queue)
    figures(spool.stores, spool.queue, 0)
    spool.publish(spool.names.exchange, item)  # as its time ends
    assert spool.audit(census=True)["verdicts"]["lost"] == 1
    assert (spool.verdicts()[parked], spool.verdicts()[lost]) == ("waiting", "lost")


@pytest.mark.usefixtures("at_once")
def test_while_messages_wait_in_a_delay_level_of_which_no_row_tells_nothing_is_called_lost(spool):
    """As after the loss of the own keyspace: a republish would deliver the mail at once."""
    mail, level = spool.put(message=False), spool.names.delay_queue(3600)
    spool.stores.rabbitmq.declare_delays(spool.queue, [3600])
    with blocking_connection(spool.settings.rabbitmq) as connection:
        body = message.encode(spool.row(mail).item)
        connection.channel().basic_publish("", level, body, mandatory=True)
    deadline = time.monotonic() + 60
    while spool.stores.management.messages(level) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    report = spool.audit(census=True)
    assert report["census"]["unproved"] == (
        "messages may wait in delay levels, and no row tells of any"
    )
    assert (spool.verdicts(), report["census"]["unproved"] in spool.why(mail)) == (
        {mail: "unknown"},
        True,
    )
    spool.delay(mail, datetime.now(UTC) + timedelta(hours=1))
    assert spool.audit(census=True)["census"]["unproved"] is None
    assert spool.verdicts() == {mail: "delayed"}


@pytest.mark.usefixtures("at_once")
def test_a_mail_whose_delay_begins_and_ends_while_the_audit_looks_is_not_lost(spool, monkeypatch):
    """Its message came after the hold; that of a mail that was delayed an hour ago is nowhere."""
    old, meanwhile = (spool.put(name, message=False) for name in ("old", "meanwhile"))
    delays = spool.stores.own.delayed_mails
    delays.close(spool.queue, old, uuid4(), epoch_us(datetime.now(UTC) - 60 * MINUTE))

    def gathered(*args, **kwargs):
        spool.delay(meanwhile, datetime.now(UTC))
        row = delays.get(spool.queue, meanwhile)
        delays.close(spool.queue, meanwhile, row.token, row.written_us)
        return evidence.gather(*args, **kwargs)

    monkeypatch.setattr(duty, "gather", gathered)
    spool.audit(census=True)
    assert spool.verdicts() == {old: "lost", meanwhile: "unknown"}
    assert "its delay ended while the audit looked" in spool.why(meanwhile)


@pytest.mark.usefixtures("at_once")
def test_an_audit_whose_machine_was_suspended_while_it_classified_proves_nothing(
    spool, monkeypatch
):
    """Its lock is another run's by then, which may have republished what the census missed."""
    spool.put("lost", message=False)
    classify_all, clock = duty.classify_all, time.clock_gettime

    def resumed(*args):
        tasks = classify_all(*args)
        late = lambda which: clock(which) + 120 * (which == time.CLOCK_BOOTTIME)
        monkeypatch.setattr(time, "clock_gettime", late)
        return tasks

    monkeypatch.setattr(duty, "classify_all", resumed)
    request = spool.request("queue_audit", census=True)
    with pytest.raises(LockLost):
        spool.steps(request, "plan")
    assert spool.folder(request).read_json("plan.json") is None
