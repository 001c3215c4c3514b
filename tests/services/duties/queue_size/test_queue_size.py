"""queue_size on real stores, through the whole road.

What it counts, what it publishes, what it says when the queue is empty.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.bench.clearing import delete_sample, drop_marks
from mailslice.codec.row import epoch_us
from mailslice.duties.queue_size import measurement
from mailslice.duties.queue_size.measurement import Measure, slices_to_measure
from mailslice.engine.partition_scan import Marks
from mailslice.engine.spark_session import spark_session
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.registry import load
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_all, run_step
from mailslice.model.errors import GateFailed, StoreUnavailable, UnknownQueue
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.slices import slice_start
from mailslice.stores import open_stores
from mailslice.stores.rabbitmq.traffic import traffic
from mailslice.view.configuration import view_shape
from tests.contracts.making import row
from tests.services.duties.world import run_all_in_process
from tests.services.rabbitmq.parked import parked

QUEUE = QueueName("spool")
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as opened:
        queues.create(opened, QUEUE)
        queues.create(opened, "empty")
        yield opened


@pytest.fixture(scope="module")
def now():
    return slice_start(datetime.now(UTC), HOUR) + timedelta(minutes=30)


@pytest.fixture(scope="module")
def filled(stores, now):
    """Three slices.

    Dead rows behind browseStart and one without a mark there; live and dead at it; live now, one
    mail to two domains.
    """
    start = slice_start(now, HOUR)
    behind = [row(QUEUE, start - 3 * HOUR) for _ in range(5)]
    at = [row(QUEUE, now - 2 * HOUR, recipients=("secret.person@x.example",)) for _ in range(4)]
    fresh = [
        row(
            QUEUE,
            now - timedelta(minutes=2),
            recipients=("secret.person@x.example", "b@Y.example", "c@y.example"),
        )
    ]
    stores.tables.v4.insert_many([*behind, *at, *fresh])
    stores.tables.deleted.mark_many(QUEUE, [each.enqueue_id for each in [*behind[1:], *at[2:]]])
    stores.tables.browse_starts.insert_first(QUEUE, start - 2 * HOUR)
    stores.tables.content_starts.insert_first(QUEUE, start - 3 * HOUR)
    return stores


@pytest.fixture(scope="module")
def report(filled, fresh_module, now):
    request = RunRequest(
        "queue_size", QUEUE, "run-1", who="test", params={"sample": False, "domains": 1}
    )
    return run_all(request, fresh_module.settings, clock=lambda: now)


def test_live_dead_and_unproven_rows_are_told_apart_slice_by_slice(report, now):
    start = slice_start(now, HOUR)
    assert [
        (each["start"], each["live"], each["dead"], each["survivors"], each["unproven"])
        for each in report["slices"]
    ] == [
        (f"{start - 3 * HOUR:%Y-%m-%dT%H:%M:%SZ}", 0, 4, 0, 1),
        (f"{start - 2 * HOUR:%Y-%m-%dT%H:%M:%SZ}", 2, 2, 2, 0),
        (f"{start:%Y-%m-%dT%H:%M:%SZ}", 1, 0, 0, 0),
    ]
    assert report["survivors"] == 2
    assert (report["size"], report["live"], report["dead"], report["unproven"]) == (3, 3, 6, 1)


def test_the_size_is_what_the_queue_itself_says(report, filled, now):
    assert report["size"] == MailQueue(filled, QUEUE, lambda: now).size()


def test_the_oldest_mail_and_the_histogram(report):
    assert report["oldestAgeSeconds"] == 7200.0
    assert report["shape"]["total"] == [1, 0, 0, 0, 0, 2, 0, 0, 0, 0]
    assert report["shape"]["domains"] == [
        {"domain": "x.example", "total": 3, "counts": [1, 0, 0, 0, 0, 2, 0, 0, 0, 0]},
        {"domain": "(others)", "total": 1, "counts": [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]},
    ]


def test_addresses_are_nowhere_in_what_is_kept(report, fresh_module):
    world = artifacts(fresh_module.settings)
    kept = {name: world.read(name) for name in world.files("")}
    assert any(name.endswith("plan.json") for name in kept)
    assert [name for name, data in kept.items() if b"secret.person" in data] == []


def test_advice_speaks_of_the_row_without_a_mark(report):
    assert [
        sentence
        for sentence in report["advice"]
        if sentence.startswith("1 rows without a mark lie behind browseStart")
    ]


def test_the_metrics_file_says_the_same(report, fresh_module):
    text = artifacts(fresh_module.settings).read("metrics/mailslice-spool.prom").decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {"queue": QUEUE}
    }
    assert samples["mailslice_queue_size"] == 3
    assert samples["mailslice_queue_dead_rows"] == 6
    assert samples["mailslice_queue_oldest_mail_age_seconds"] == 7200


def test_the_report_is_in_the_ledger_with_its_gates(report, filled, fresh_module):
    kept = Ledger(filled, fresh_module.settings).last("queue_size", QUEUE)
    assert kept["run"] == "run-1"
    assert kept["status"] == "done"
    assert kept["slices"] == report["slices"]
    assert kept["dataDocs"]
    assert set(kept["seconds"]) == {"plan", "check", "apply", "verify", "report"}
    assert json.loads(json.dumps(kept)) == kept


def test_a_queue_that_never_had_a_mail_is_measured_too(stores, fresh_module):
    found = run_all(
        RunRequest("queue_size", QueueName("empty"), "run-2", params={"sample": False}),
        fresh_module.settings,
    )
    assert (found["size"], found["oldest"], found["slices"], found["advice"]) == (0, None, [], [])
    text = artifacts(fresh_module.settings).read("metrics/mailslice-empty.prom").decode()
    assert 'mailslice_queue_size{queue="empty"} 0.0' in text


def test_a_dry_run_publishes_nothing(stores, fresh_module):
    queues.create(stores, "dry")
    found = run_all(
        RunRequest(
            "queue_size", QueueName("dry"), "run-3", params={"sample": False, "dry_run": True}
        ),
        fresh_module.settings,
    )
    assert (found["status"], found["size"]) == ("dry run", 0)
    assert artifacts(fresh_module.settings).read("metrics/mailslice-dry.prom") is None


def test_an_unknown_queue_is_refused_by_name(stores, fresh_module):
    with pytest.raises(UnknownQueue, match="no mail queue 'nosuch'"):
        run_all(RunRequest("queue_size", QueueName("nosuch"), "run-4"), fresh_module.settings)


def test_an_empty_broker_is_remembered_from_two_looks(stores, fresh_module):
    """The one test that waits.

    A new queue has no figures for some seconds, and two looks are 15 s apart.
    """
    import time

    queues.create(stores, "drained")
    from mailslice.stores.rabbitmq.management import shows_no_messages

    deadline = time.monotonic() + 30
    while (
        not shows_no_messages(stores.management, QueueName("drained"))
        and time.monotonic() < deadline
    ):
        time.sleep(1)
    request = RunRequest("queue_size", QueueName("drained"), "run-5")
    found = run_all(request, fresh_module.settings)
    kept = stores.own.queue_samples.get(QueueName("drained"))
    assert kept.second_pass - kept.first_pass >= timedelta(seconds=15)
    assert abs(datetime.fromisoformat(found["lastSeenEmpty"]) - kept.first_pass) < timedelta(
        milliseconds=1
    )
    delete_sample(stores, QueueName("drained"))
    with pytest.raises(GateFailed, match="A broker that was seen empty is remembered as such"):
        run_step("verify", request, fresh_module.settings)


def test_what_is_parked_or_moves_is_in_the_report_and_its_metrics(
    stores, fresh_module, monkeypatch
):
    queue = queues.create(stores, "parking")
    parked(stores, queue)
    work = RabbitNames(queue).work_queue

    def moving(management):
        figures = traffic(management)
        return figures | {work: replace(figures[work], published=1.5, delivered=2.0)}

    monkeypatch.setattr(measurement, "traffic", moving)
    request = RunRequest("queue_size", queue, "run-6", params={"sample": False})
    report = run_all_in_process(request, fresh_module.settings)
    assert (report["parked"], report["moving"]) == (1, 3.5)
    text = artifacts(fresh_module.settings).read("metrics/mailslice-parking.prom").decode()
    assert 'mailslice_queue_parked{queue="parking"} 1.0' in text


def test_a_management_api_that_refuses_us_is_said_and_the_size_is_measured(
    filled, fresh_module, now, caplog
):
    """What the broker does not say is unknown, never 0."""
    rabbit = fresh_module.settings.rabbitmq
    url = SecretStr(rabbit.management_url.get_secret_value().replace("//", "//x", 1))
    rabbit = rabbit.model_copy(update={"management_url": url})
    settings = fresh_module.settings.model_copy(update={"rabbitmq": rabbit})
    request = RunRequest("queue_size", QUEUE, "run-8", params={"sample": False})
    report = run_all_in_process(request, settings, clock=lambda: now)
    assert (report["status"], report["size"]) == ("done", 3)
    of_broker = "ready unacknowledged consumers delayed parked deadLetters moving".split()
    assert {report[name] for name in of_broker} == {None}
    (said,) = [one for one in caplog.records if one.name.startswith("mailslice.duties.queue_size")]
    assert said.message.startswith("RabbitMQ gives no figures of spool: ")
    assert "refuses user 'xguest'" in said.message


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("metrics/mailslice-empty.prom", "The metrics file says the size that was measured"),
        ("runs/queue_size/empty/{run}/slices.svg", "The picture is the one that was drawn"),
    ],
)
def test_what_was_published_and_says_something_else_fails(stores, fresh_module, name, sentence):
    request = RunRequest(
        "queue_size", QueueName("empty"), f"run-{len(name)}", params={"sample": False}
    )
    run_all(request, fresh_module.settings)
    world, file = artifacts(fresh_module.settings), name.format(run=request.run)
    world.write(file, world.read(file).replace(b"0", b"1"))
    with pytest.raises(GateFailed, match=sentence):
        run_step("verify", request, fresh_module.settings)


def test_mails_that_james_clears_while_they_are_counted_are_not_live(
    stores, fresh_module, now, monkeypatch
):
    """James moves browseStart on, then drops marks, then rows."""
    queue, start = queues.create(stores, "clearing"), slice_start(now, HOUR) - HOUR
    mails = [row(queue, start) for _ in range(3)]
    stores.tables.v4.insert_many(mails)
    stores.tables.content_starts.insert_first(queue, start)
    stores.tables.browse_starts.insert_first(queue, start)
    stores.tables.deleted.mark_many(queue, [mail.enqueue_id for mail in mails])
    of = Marks.of

    def cleared(self, ids):
        stores.tables.browse_starts.write(queue, start + HOUR, epoch_us(datetime.now(UTC)))
        drop_marks(stores.tables.deleted, queue, [mail.enqueue_id for mail in mails])
        return of(self, ids)

    monkeypatch.setattr(Marks, "of", cleared)
    request = RunRequest("queue_size", queue, "run-7", params={"sample": False})
    report = run_all_in_process(request, fresh_module.settings, clock=lambda: now)
    assert (report["live"], report["unproven"], report["oldest"]) == (0, 3, None)
    assert report["shape"]["total"] == [0] * 10
    assert datetime.fromisoformat(report["browseStart"]) == start + HOUR


def test_a_worker_of_spark_that_cannot_reach_cassandra_names_it(stores, fresh_module, now):
    closed = fresh_module.settings.cassandra.model_copy(update={"port": 9})
    measure = Measure(
        fresh_module.settings.model_copy(update={"cassandra": closed}), QUEUE, HOUR, 1, now
    )
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
        measure.in_spark(
            spark_session(fresh_module.settings, "queue_size"), [slice_start(now, HOUR)]
        )


def test_slices_behind_browse_start_are_measured_down_to_content_start(filled, fresh_module, now):
    request = RunRequest("queue_size", QUEUE, "run-6")
    folder = RunFolder(artifacts(fresh_module.settings), "queue_size", QUEUE, "run-6")
    run = Run(
        request, load("queue_size").params(), fresh_module.settings, filled, folder, lambda: now
    )
    view = view_shape(filled)
    slices, buckets = slices_to_measure(run, view, now)
    start = slice_start(now, HOUR)
    assert slices == [start + at * HOUR for at in (-3, -2, -1, 0, 1)]
    assert buckets == 1


@pytest.mark.new_keyspaces
def test_a_james_without_content_start_is_measured(fresh, now):
    """James 3.5 and 3.6 have no such table, and looking makes none."""
    with open_stores(fresh.settings) as opened:
        queues.create(opened, QUEUE)
        opened.tables.v4.insert_many([row(QUEUE, now)])
        opened.tables.browse_starts.insert_first(QUEUE, slice_start(now, HOUR))
        opened.cassandra.execute(f"DROP TABLE {fresh.settings.cassandra.keyspace}.contentstart")
    request = RunRequest("queue_size", QUEUE, "run-1", params={"sample": False})
    report = run_all_in_process(request, fresh.settings, clock=lambda: now)
    assert (report["status"], report["size"], report["contentStart"]) == ("done", 1, None)
