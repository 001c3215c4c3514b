"""`mailslice queue` and `mailslice mail show` on real stores."""

import hashlib
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from cassandra.cluster import Session

from mailslice.admin import queues
from mailslice.maintenance import overview as overview_module
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.health import Health
from mailslice.maintenance.overview import Quota, last_reported, newest_report, overview
from mailslice.model.clock import system_clock
from mailslice.model.mail import Partition, QueueName, ViewRow
from mailslice.model.names import NO_QUEUE_NAME, RabbitNames
from mailslice.model.settings import load_settings
from mailslice.model.slices import slice_start
from mailslice.stores import open_stores
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord, WorkerRecords
from mailslice.stores.own.runs import RunRow
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.management import Depth
from mailslice.stores.rabbitmq.traffic import Traffic
from tests.acceptance.command import Cli
from tests.services.duties.world import queued_mail

HOUR = timedelta(hours=1)
DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def shared(make_fresh):
    """A queue with the sample mails, for tests that only look."""
    cli = Cli(make_fresh().env).inside()
    cli("queue", "create", "spool")
    cli("mail", "enqueue", "spool", DATA / "sample")
    return cli


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


def add(
    cli, count=1, sender="alice@example.org", recipient="bob@example.net", name=None, queue="spool"
):
    words = ["--name", name] if name else []
    return [
        line
        for number in range(count)
        for line in cli.json(
            "mail",
            "enqueue",
            queue,
            "-",
            "--sender",
            sender,
            "--recipient",
            recipient,
            *words,
            stdin=b"Subject: %d\r\n\r\nbody" % number,
        )
    ]


@pytest.mark.new_keyspaces
def test_create_answers_queue_table_and_size_and_again_changes_nothing(fresh):
    cli = Cli(fresh.env).inside()
    for _ in range(2):
        answer = cli("queue", "create", "spool", "--reason", "first", "--json").one
        assert (answer["queue"], answer["table"], answer["size"]) == ("spool", "v4", 0)
    add(cli, 2)
    assert cli("queue", "create", "spool", "--json").one["size"] == 2


def test_list_has_a_line_a_queue(fresh):
    cli = Cli(fresh.env).inside()
    cli("queue", "create", "spool")
    cli("queue", "create", "outgoing")
    add(cli, 3)
    assert {line["queue"]: line["size"] for line in cli.json("queue", "list")} == {
        "outgoing": 0,
        "spool": 3,
    }


def test_list_says_first_which_queue_is_ill_and_why(fresh):
    cli = Cli(fresh.env).inside()
    for queue in ("spool", "outgoing"):
        cli("queue", "create", queue)
        add(cli, 2, queue=queue)
    until(lambda: health(cli, "outgoing") == "NO WORKERS")  # the broker's figures come late
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        connection.channel().queue_purge(RabbitNames(QueueName("spool")).work_queue)
    until(lambda: health(cli, "spool") == "LOST?")
    first, second = cli.json("queue", "list")
    assert (first["queue"], second["queue"]) == ("spool", "outgoing")
    assert first["why"].startswith("2 mails wait; the broker has 0 of them")
    assert first["next"] == "mailslice duty run queue_audit --queue spool"
    assert second["why"] == "2 messages are ready, and nobody consumes the queue"


def test_list_scans_no_large_queue_and_says_how_old_its_figure_is(fresh):
    cli = Cli(fresh.env).inside()
    cli("queue", "create", "spool")
    add(cli, 2)
    with open_stores(fresh.settings) as stores:
        (one,) = overview(stores, system_clock, quota=Quota(rows=1))
        assert (one.size, one.size_at) == (None, None)
    cli("duty", "run", "queue_size", "--queue", "spool")
    add(cli, 1)
    with open_stores(fresh.settings) as stores:
        (one,) = overview(stores, system_clock, quota=Quota(rows=1))
        assert one.size == 2
        assert one.size_at == datetime.fromisoformat(one.reports["queue_size"]["measuredAt"])
        (one,) = overview(stores, system_clock)
        assert one.size == 3


def test_the_overview_of_many_queues_asks_little_of_each(fresh, monkeypatch):
    with open_stores(fresh.settings) as stores:
        for number in range(8):
            queues.create(stores, f"queue-{number}")
        overview(stores, system_clock)  # prepares the statements
        asked = []
        send = Session.execute_async
        counted = lambda *words, **named: asked.append(1) or send(*words, **named)
        monkeypatch.setattr(Session, "execute_async", counted)
        of_one = overview(stores, system_clock, [QueueName("queue-0")])
        requests = len(asked)
        of_all = overview(stores, system_clock)
        assert (len(of_one), len(of_all)) == (1, 8)
        assert {one.size for one in of_all} == {0}
        assert len(asked) - requests <= requests + 7 * 2


@pytest.mark.parametrize(("measured", "shown"), [(5, 0), (6, 6)])
def test_a_queue_that_was_large_when_it_was_measured_is_not_counted_on_the_spot(
    fresh, measured, shown
):
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        now = system_clock()
        report = json.dumps({"status": "done", "size": measured, "measuredAt": iso(now)})
        row = RunRow("r", "queue_size", queue, now, "done", report, finished=now)
        stores.own.runs.save(row, timedelta(days=1))
        (one,) = overview(stores, system_clock, quota=Quota(rows=5))
        assert one.size == shown


@pytest.mark.parametrize(
    ("moving", "seconds", "word"),
    [(100.0, 60, Health.OK), (100.0, 5, Health.LOST), (0.0, 60, Health.LOST)],
)
def test_a_large_queue_that_was_drained_while_it_was_measured_is_not_lost(
    fresh, monkeypatch, moving, seconds, word
):
    """What moves now says nothing of then."""
    with open_stores(fresh.settings) as stores:
        queue, now = queues.create(stores, "spool"), system_clock()
        of_broker = dict.fromkeys(
            ("ready", "unacknowledged", "delayed", "parked", "deadLetters"), 0
        )
        fields = {"size": 7000, "measuredAt": iso(now), "moving": moving, **of_broker}
        report = json.dumps({"status": "done", "seconds": {"plan": seconds}, **fields})
        row = RunRow("r", "queue_size", queue, now, "done", report, finished=now)
        stores.own.runs.save(row, timedelta(days=1))
        work = Traffic(Depth(0, 0, 0, 1), 0.0, 0.0, None, None, None)
        names = RabbitNames(queue)
        monkeypatch.setattr(overview_module, "traffic", lambda _: {names.work_queue: work})
        (one,) = overview(stores, system_clock)
        assert (one.size, one.verdict.health) == (7000, word)


def test_a_run_that_failed_takes_no_measurement_away(fresh):
    with open_stores(fresh.settings) as stores:
        queue, now = queues.create(stores, "spool"), system_clock()
        for run, ago, fields in (
            ("measured", 30, {"size": 6, "measuredAt": iso(now - timedelta(minutes=30))}),
            ("failed", 15, {"status": "failed", "alerts": [{"name": "failed", "text": "away"}]}),
            ("refused", 10, {"status": "refused", "size": 5, "measuredAt": iso(now)}),
            ("again", 5, {"status": "failed", "alerts": [{"name": "failed", "text": "away"}]}),
        ):
            finished = now - timedelta(minutes=ago)
            report = json.dumps({"status": "done", "finished": iso(finished), **fields})
            row = RunRow(run, "queue_size", queue, finished, "done", report, finished=finished)
            stores.own.runs.save(row, timedelta(days=1))
        (one,) = overview(stores, system_clock, quota=Quota(rows=5))
        assert (one.size, one.size_at) == (6, now - timedelta(minutes=30))
        assert [alert["text"] for alert in one.reports["queue_size"]["alerts"]] == ["away"]
        assert newest_report(stores, queue, "queue_size")["size"] == 6


def test_alerts_are_those_of_the_newest_run_that_was_not_dry(fresh):
    with open_stores(fresh.settings) as stores:
        queue, refused = queues.create(stores, "spool"), {**DRY, "status": "refused"}
        failed = {"status": "failed", "alerts": [{"name": "failed"}], "pastAlerts": []}
        reported(stores, "queue_cleanup", queue, timedelta(hours=5), **failed)
        for hours, fields in ((4, DRY), (3, DRY), (2, DRY), (1, refused)):
            gate = {"alerts": [{"name": "gate"}], "pastAlerts": failed["alerts"]}
            reported(stores, "queue_cleanup", queue, timedelta(hours=hours), **fields, **gate)
        (one,) = overview(stores, system_clock)
        report = one.reports["queue_cleanup"]
        assert (report["status"], report["alerts"]) == ("refused", [{"name": "failed"}])
        assert (report["pastAlerts"], report["alertsAt"] < report["finished"]) == ([], True)


@pytest.mark.parametrize(
    "newer",
    [
        {"status": "failed"},
        {"status": "failed", "verdicts": {"lost": 0}},
        {"verdicts": {"lost": 0}, "params": {"slices_from": "2026-01-01T00:00"}},
    ],
)
def test_audits_that_failed_or_saw_some_slices_end_no_loss(fresh, newer):
    with open_stores(fresh.settings) as stores:
        queue, now = queues.create(stores, "spool"), system_clock()
        lose(stores, queue)
        for hours, fields in ((5, {"verdicts": {"lost": 3}}), *((ago, newer) for ago in (3, 2, 1))):
            finished = now - timedelta(hours=hours)
            about = {"run": f"r{hours}", "alerts": [{"name": f"a{hours}"}]}
            report = json.dumps({"status": "done", "finished": iso(finished), **about, **fields})
            row = RunRow(
                about["run"], "queue_audit", queue, finished, "done", report, finished=finished
            )
            stores.own.runs.save(row, timedelta(days=1))
        (one,) = overview(stores, system_clock)
        assert one.verdict.health is Health.LOST
        assert one.reports["queue_audit"]["alerts"] == [{"name": "a1"}]


def reported(stores, duty, queue, ago, **fields):
    """A report in the ledger, of a run that ended so long ago."""
    finished = system_clock() - ago
    run = fields.setdefault("run", f"{duty}-{ago}")
    counts = {"planned": 3, "applied": 0, "skipped": 0, "skippedBy": {}}
    report = json.dumps({"status": "done", "finished": iso(finished), **counts, **fields})
    row = RunRow(run, duty, queue, finished, "done", report, finished=finished)
    stores.own.runs.save(row, timedelta(days=1))


def lose(stores, queue, count=3):
    """Live rows, six hours old, without a message."""
    at = slice_start(system_clock() - 6 * HOUR, HOUR)
    stores.tables.browse_starts.insert_first(queue, at)
    rows = (ViewRow(queue, Partition(at, 0), at, queued_mail()) for _ in range(count))
    stores.tables.written.insert_many(rows, in_flight=count)


BY_AUDIT = {"audit": {"run": "a"}}
DRY = {"status": "dry run", "params": {"dry_run": True}}


@pytest.mark.parametrize(
    ("republished", "lost"),
    [
        ([{**DRY, **BY_AUDIT}], 3),
        ([{"status": "refused", "audit": None}], 3),
        ([{"status": "failed", "applied": 1, **BY_AUDIT}], 2),
        ([{"applied": 1, "skippedBy": {"already republished": 1}, **BY_AUDIT}], 1),
        ([{"applied": 1, "skippedBy": {"done or gone": 1, "younger": 1}, **BY_AUDIT}], 1),
        ([{"applied": 3, "audit": {"run": "another"}}], 3),
        ([{"applied": 3, **BY_AUDIT}, {"status": "refused", "audit": None}], 0),
        (
            [
                {"applied": 3, **BY_AUDIT},
                {**DRY, **BY_AUDIT, "skippedBy": {"younger": 3}},
            ],
            0,
        ),
        (
            [
                {"applied": 3, **BY_AUDIT},
                {**DRY, **BY_AUDIT, "skippedBy": {"already republished": 1}},
            ],
            0,
        ),
        ([{"applied": 3, **BY_AUDIT}, {"skippedBy": {"younger": 3}, **BY_AUDIT}], 0),
        (
            [
                {"applied": 1, **BY_AUDIT},
                {"skippedBy": {"done or gone": 2, "already republished": 1}, **BY_AUDIT},
            ],
            0,
        ),
    ],
)
def test_a_loss_ends_by_what_was_put_back_and_not_by_a_run(fresh, republished, lost):
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        lose(stores, queue)
        reported(stores, "queue_audit", queue, 5 * HOUR, run="a", verdicts={"lost": 3})
        for hours, fields in zip((3, 2), republished, strict=False):
            reported(stores, "republish_lost", queue, hours * HOUR, **fields)
        (one,) = overview(stores, system_clock)
        shown = (f"{lost} mail" in one.verdict.why, one.verdict.health is Health.LOST)
        assert shown == (lost > 0, lost > 0)


@pytest.mark.parametrize(
    ("later", "lost"),
    [
        ({}, 2),
        ({"status": "dry run", "census": {"taken": False, "why": "a dry run takes none"}}, 2),
        ({"census": {"taken": True, "unproved": "1 messages are parked"}}, 2),
        ({"verdicts": {"lost": 0}, "params": {"older_than": "1d"}}, 2),
        ({"verdicts": {"lost": 0, "unknown": 0}}, 0),
    ],
)
def test_an_audit_that_cannot_know_of_lost_mails_ends_no_loss(fresh, later, lost):
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        lose(stores, queue)
        reported(stores, "queue_audit", queue, 5 * HOUR, run="a", verdicts={"lost": 3})
        reported(stores, "republish_lost", queue, 3 * HOUR, applied=1, **BY_AUDIT)
        fields = {"run": "b", "verdicts": {"lost": 0, "unknown": 3}, **later}
        reported(stores, "queue_audit", queue, HOUR, **fields)
        (one,) = overview(stores, system_clock)
        shown = (f"{lost} mail" in one.verdict.why, one.verdict.health is Health.LOST)
        assert shown == (lost > 0, lost > 0)


@pytest.mark.parametrize(
    ("ago", "fields", "stuck"),
    [
        (0, {"applied": 1}, 2),
        (0, {"applied": 1, "skipped": 2}, 0),
        (0, {"status": "dry run"}, 3),
        (0, {"mode": "shadow", "noted": 2, "skipped": 1}, 2),
        (25, {}, 3),
        (27, {}, 0),
    ],
)
def test_stuck_are_mails_that_the_last_run_left_with_their_holders_for_a_day(
    fresh, ago, fields, stuck
):
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        reported(stores, "stuck_mails", queue, ago * HOUR, **fields)
        (one,) = overview(stores, system_clock)
        why = f"{stuck} mails are in flight" in one.verdict.why
        assert (why, one.verdict.health is Health.STUCK) == (stuck > 0, stuck > 0)


@pytest.mark.parametrize("status", ["failed", "refused"])
def test_stuck_mails_do_not_end_by_a_run_that_could_not_look(fresh, status):
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        reported(stores, "stuck_mails", queue, 2 * HOUR, lockTimeoutSeconds=600.0, inFlight=4)
        failed = {"status": status, "planned": 0, "inFlight": None}
        reported(stores, "stuck_mails", queue, HOUR, **failed)
        (one,) = overview(stores, system_clock)
        assert one.verdict.health is Health.STUCK
        assert "3 mails are in flight" in one.verdict.why
        reported(stores, "stuck_mails", queue, HOUR / 2, lockTimeoutSeconds=600.0, planned=0)
        (one,) = overview(stores, system_clock)
        assert one.verdict.health is not Health.STUCK


def test_what_is_about_no_queue_is_none_of_the_queues_that_were_reported_last(fresh):
    with open_stores(fresh.settings) as stores:
        for duty, queue in (("blob_gc", NO_QUEUE_NAME), ("queue_size", "spool")):
            at = system_clock()
            row = RunRow(f"{duty}-1", duty, QueueName(queue), at, "done", "{}", finished=at)
            stores.own.runs.save(row, timedelta(days=1))
        assert [one.queue for one in last_reported(stores, "RabbitMQ is away")] == ["spool"]


def test_dead_letters_without_figures_are_not_none_and_no_mail_is_called_lost(fresh, monkeypatch):
    """RabbitMQ gives figures of each queue by itself, up to 10 s late."""
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        now, names = system_clock(), RabbitNames(queue)
        row = ViewRow(queue, Partition(slice_start(now, HOUR), 0), now, queued_mail())
        stores.tables.written.insert_many([row])
        stores.tables.browse_starts.insert_first(queue, row.partition.slice_start)
        known = Traffic(Depth(0, 0, 0, 1), None, None, None, None, None)
        moving = dict.fromkeys((names.work_queue, names.hop_queue, names.park_queue), known) | {
            names.dead_letter_queue: replace(known, depth=None)
        }
        monkeypatch.setattr(overview_module, "traffic", lambda _: moving)
        (one,) = overview(stores, system_clock)
        assert (one.size, one.dead_letters, one.verdict.health) == (1, None, Health.OK)


def test_mails_of_a_dead_worker_are_stuck_only_while_the_broker_has_them_with_it(
    fresh, monkeypatch
):
    with open_stores(fresh.settings) as stores:
        queue, now = queues.create(stores, "spool"), system_clock()
        mails = tuple(
            InFlightMail(uuid4(), "m", timedelta(seconds=1), "loaded", 1, begun=True)
            for _ in range(3)
        )
        dead = WorkerRecord("w", "h", 1, now, timedelta(seconds=0.1), 1, mails)
        live = replace(dead, worker="live", every=HOUR)
        WorkerRecords.created(stores.cassandra, stores.settings)
        stores.own.worker_records.save_future(queue, dead).result()
        until(lambda: not any(one.is_alive for one in stores.worker_records(queue)))
        whys = []
        for unacknowledged in (3, 0, None, 3, 4):
            if len(whys) == 3:
                stores.own.worker_records.save_future(queue, live).result()
            depth = None if unacknowledged is None else Depth(0, unacknowledged, 0, 1)
            work = Traffic(depth, None, None, None, None, None)
            moving = {RabbitNames(queue).work_queue: work}
            monkeypatch.setattr(overview_module, "traffic", lambda _, moving=moving: moving)
            (one,) = overview(stores, system_clock)
            whys.append((one.verdict.health, one.verdict.why))
        stuck = (Health.STUCK, "workers without a heartbeat hold 3 mails")
        one_of_them = (Health.STUCK, "workers without a heartbeat hold 1 mail")
        empty = (Health.OK, "empty")
        assert whys == [stuck, empty, stuck, empty, one_of_them]


def test_many_queues_together_read_no_more_than_ten():
    quota = Quota(rows=500, partitions=250)
    assert (quota.per_queue(1), quota.per_queue(10)) == (quota, quota)
    assert quota.per_queue(50) == Quota(rows=100, partitions=50)


def health(cli, queue):
    (line,) = (line for line in cli.json("queue", "list") if line["queue"] == queue)
    return line["health"]


def until(holds, seconds=40):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.5)


@pytest.mark.new_keyspaces
def test_list_of_no_queue_is_empty_and_says_how_to_make_one(fresh):
    answer = Cli(fresh.env).inside()("queue", "list")
    assert answer.out == b""
    assert "mailslice queue create" in answer.err


def test_show_has_configuration_starts_and_the_brokers_figures(cli):
    add(cli, 2)
    shown = cli("queue", "show", "spool", "--json").one
    assert shown["configuration"] == {
        "sliceWindow": "1h",
        "bucketCount": 1,
        "updateBrowseStartPace": 1000,
    }
    assert (shown["queue"], shown["table"], shown["size"], shown["deadLetters"] in (0, None)) == (
        "spool",
        "v4",
        2,
        True,
    )
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    assert shown["browseStart"] == shown["contentStart"]
    assert datetime.fromisoformat(shown["browseStart"]) in (start, start - timedelta(hours=1))
    assert shown["browseStart"].endswith(":00:00Z")
    assert {"ready", "unacknowledged", "delayed"} <= shown.keys()


def test_size_of_an_empty_queue_is_0(cli):
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]


def test_size_counts_to_the_last_enqueue(shared):
    assert shared.json("queue", "size", "spool") == [
        {"queue": "spool", "size": len(list((DATA / "sample").glob("*.eml")))}
    ]


def test_browse_has_a_line_a_mail(shared):
    lines = shared.json("queue", "browse", "spool")
    assert len(lines) == 25
    assert len({line["enqueueId"] for line in lines}) == 25
    keys = {
        "enqueueId",
        "name",
        "sender",
        "recipients",
        "state",
        "enqueuedTime",
        "lastUpdated",
        "nextDelivery",
        "slice",
        "headerBlobId",
        "bodyBlobId",
        "attributes",
    }
    assert all(keys <= line.keys() for line in lines)
    now = datetime.now(UTC)
    assert all(
        now - timedelta(minutes=10) < datetime.fromisoformat(line["enqueuedTime"]) <= now
        for line in lines
    )
    assert all(line["slice"].endswith("Z") and line["enqueuedTime"].endswith("Z") for line in lines)
    assert sum(line["sender"] is None for line in lines) == 1


def test_browse_stops_at_the_limit(shared):
    assert len(shared.json("queue", "browse", "spool", "--limit", 3)) == 3


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--sender", "choir@choir.example"], 1),
        (["--sender", "CHOIR@choir.example"], 1),
        (["--sender", "<>"], 1),
        (["--recipient", "member007@choir.example"], 1),
        (["--recipient", "ada@mills.example", "--sender", "log@machine.example"], 1),
        (["--recipient", "ada@mills.example", "--sender", "choir@choir.example"], 0),
        (["--older-than", "1h"], 0),
        (["--older-than", "0s"], 25),
        (["--name", "no such name"], 0),
    ],
)
def test_browse_filters_are_anded(shared, filters, count):
    assert len(shared.json("queue", "browse", "spool", *filters)) == count


def test_browse_as_a_table_escapes_what_mails_carry(shared):
    answer = shared("queue", "browse", "spool")
    assert answer.out.count(b"\n") > 25
    assert b"\x1b" not in answer.out
    assert "\u202e".encode() not in answer.out


def test_slices_count_live_and_dead(cli):
    add(cli, 5)
    cli("worker", "drain", "spool", "--max", 2)
    [line] = cli.json("queue", "slices", "spool")
    assert (line["live"], line["dead"]) == (3, 2)
    assert line["slice"].endswith(":00:00Z")


def test_delete_by_each_filter_and_their_combination(cli):
    add(cli, 2, sender="eve@example.org")
    add(cli, 1, sender="eve@example.org", recipient="carol@example.net")
    add(cli, 3, recipient="carol@example.net")
    [named] = add(cli, 1, name="by-name")
    assert named["name"] == "by-name"
    assert cli(
        "queue",
        "delete",
        "spool",
        "--sender",
        "eve@example.org",
        "--recipient",
        "carol@example.net",
        "--dry-run",
        "--json",
    ).one == {
        "queue": "spool",
        "deleted": 1,
        "dryRun": True,
    }
    assert cli("queue", "size", "spool", "--json").one["size"] == 7
    assert (
        cli(
            "queue",
            "delete",
            "spool",
            "--sender",
            "eve@example.org",
            "--older-than",
            "1h",
            "--yes",
            "--json",
        ).one["deleted"]
        == 0
    )
    assert (
        cli(
            "queue",
            "delete",
            "spool",
            "--sender",
            "eve@example.org",
            "--yes",
            "--reason",
            "test",
            "--json",
        ).one["deleted"]
        == 3
    )
    answer = cli("queue", "delete", "spool", "--name", "by-name", "--yes", "--json").one
    assert answer.keys() == {"queue", "deleted", "run", "restorableUntil", "contentLost"}
    assert (answer["queue"], answer["deleted"], answer["contentLost"]) == ("spool", 1, 0)
    assert (
        cli("queue", "delete", "spool", "--recipient", "carol@example.net", "--yes", "--json").one[
            "deleted"
        ]
        == 3
    )
    assert cli.json("worker", "drain", "spool") == []


def test_clear_deletes_all_and_they_are_not_delivered(cli):
    add(cli, 4)
    assert cli("queue", "clear", "spool", "--dry-run", "--json").one == {
        "queue": "spool",
        "deleted": 4,
        "dryRun": True,
    }
    assert cli("queue", "clear", "spool", "--yes", "--json").one["deleted"] == 4
    assert cli("queue", "clear", "spool", "--yes", "--json").one["deleted"] == 0
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]
    assert cli.json("worker", "drain", "spool") == []


def test_who_deleted_what_and_why_is_kept(cli):
    add(cli, 1, sender="eve@example.org")
    cli("queue", "delete", "spool", "--sender", "eve@example.org", "--yes", "--reason", "a flood")
    decisions = [
        json.loads(path.read_text())
        for path in (Path(cli.env["MAILSLICE_ARTIFACTS"]) / "decisions").rglob("*.json")
    ]
    [deleted] = [decision for decision in decisions if decision["reason"] == "a flood"]
    assert (deleted["queue"], deleted["action"], deleted["deleted"]) == (
        cli.spool,
        "queue delete",
        1,
    )
    assert "@" in deleted["who"]


def test_flush_delivers_delayed_mails_now(cli):
    add(cli, 1, name="now")
    cli.json(
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        "a@b.example",
        "--recipient",
        "c@d.example",
        "--name",
        "later",
        "--delay",
        "1h",
        stdin=b"\r\nx",
    )
    by_name = {line["name"]: line for line in cli.json("queue", "browse", "spool")}
    assert by_name["now"]["nextDelivery"] is None
    due = datetime.fromisoformat(by_name["later"]["nextDelivery"])
    assert timedelta(minutes=58) < due - datetime.now(UTC) <= timedelta(hours=1)
    shown = cli("queue", "show", "spool", "--json").one
    assert (shown["size"], shown["delayed"]) == (2, 1)
    assert [line["name"] for line in cli.json("worker", "drain", "spool")] == ["now"]
    assert cli("queue", "flush", "spool", "--json").one == {"queue": "spool", "flushed": 1}
    assert [
        line["name"] for line in cli.json("worker", "drain", "spool", "--max", 1, "--idle", "10s")
    ] == ["later"]
    assert cli("queue", "flush", "spool", "--json").one == {"queue": "spool", "flushed": 0}
    assert cli("queue", "show", "spool", "--json").one["delayed"] == 0, (
        "its late copy is in its level for an hour"
    )


def test_mail_show_raw_is_the_content_byte_for_byte(shared):
    by_sha = {
        hashlib.sha256(path.read_bytes()).hexdigest(): path
        for path in (DATA / "sample").glob("*.eml")
    }
    line = shared.json("queue", "browse", "spool", "--sender", "scanner@office.example")[0]
    raw = shared("mail", "show", "spool", "--id", line["enqueueId"], "--raw").out
    assert by_sha[hashlib.sha256(raw).hexdigest()].name == "24-nul-and-binary.eml"
    shown = shared("mail", "show", "spool", "--name", line["name"], "--json").one
    assert (shown["enqueueId"], shown["sha256"], shown["bytes"], shown["content"]) == (
        line["enqueueId"],
        hashlib.sha256(raw).hexdigest(),
        len(raw),
        "present",
    )
    assert shown["headers"].startswith("From: scanner@office.example\r\n")


def test_mail_show_of_a_name_that_several_have_gives_a_line_each_and_raw_asks_for_an_id(cli):
    ids = {line["enqueueId"] for line in add(cli, 2, name="twice")}
    assert {
        line["enqueueId"] for line in cli.json("mail", "show", "spool", "--name", "twice")
    } == ids
    answer = cli("mail", "show", "spool", "--name", "twice", "--raw", code=2)
    assert all(enqueue_id in answer.err for enqueue_id in ids)
    assert answer.out == b""


def test_mail_show_of_nothing_exits_2_and_names_it(shared):
    assert "'nothing'" in shared("mail", "show", "spool", "--name", "nothing", code=2).err
    assert (
        "00000000-0000-0000-0000-000000000007"
        in shared(
            "mail", "show", "spool", "--id", "00000000-0000-0000-0000-000000000007", code=2
        ).err
    )


def test_mail_show_says_content_lost(cli, s3):
    [line] = add(cli, 1)
    row = cli.json("queue", "browse", "spool")[0]
    s3.delete_object(Bucket=cli.env["MAILSLICE_S3_BUCKET"], Key=row["bodyBlobId"])
    shown = cli("mail", "show", "spool", "--id", line["enqueueId"], "--json").one
    assert (shown["content"], shown["sha256"]) == ("content lost", None)
    assert b"content lost" in cli("mail", "show", "spool", "--id", line["enqueueId"]).out
    answer = cli(
        "queue", "export", "spool", cli.env["MAILSLICE_ARTIFACTS"] + "/out", "--json", code=1
    )
    assert answer.one["enqueueId"] == line["enqueueId"]
    assert answer.one["error"].startswith("content lost: ")
    assert (
        "content lost"
        in cli("mail", "show", "spool", "--id", line["enqueueId"], "--raw", code=1).err
    )


def test_a_mail_whose_content_is_lost_is_shown_among_the_others_and_can_be_deleted(cli, s3):
    lines = add(cli, 20)
    rows = cli.json("queue", "browse", "spool")
    for row, part in ((rows[3], "headerBlobId"), (rows[17], "bodyBlobId")):
        s3.delete_object(Bucket=cli.env["MAILSLICE_S3_BUCKET"], Key=row[part])
    assert cli.json("queue", "browse", "spool") == rows
    looked = cli.json("queue", "browse", "spool", "--content")
    assert [row["enqueueId"] for row in looked] == [row["enqueueId"] for row in rows]
    assert [number for number, row in enumerate(looked) if row["content"] == "content lost"] == [
        3,
        17,
    ]
    assert {row["content"] for row in looked} == {"present", "content lost"}
    assert b"content lost" in cli("queue", "browse", "spool", "--content", "--limit", "5").out
    assert cli("queue", "size", "spool", "--json").one["size"] == 20
    exported = cli.json(
        "queue", "export", "spool", cli.env["MAILSLICE_ARTIFACTS"] + "/lost", code=1
    )
    assert [line["name"] for line in exported if "error" in line] == [
        rows[3]["name"],
        rows[17]["name"],
    ]
    assert len(exported) == len(lines)
    assert (
        cli("queue", "delete", "spool", "--name", rows[3]["name"], "--yes", "--json").one["deleted"]
        == 1
    )


def test_export_writes_every_mail_byte_for_byte_and_overwrites_nothing(shared, tmp_path):
    folder = tmp_path / "new" / "out"
    lines = shared.json("queue", "export", "spool", folder)
    assert len(lines) == 25
    wanted = sorted(
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (DATA / "sample").glob("*.eml")
    )
    assert (
        sorted(hashlib.sha256(Path(line["path"]).read_bytes()).hexdigest() for line in lines)
        == wanted
    )
    assert sorted(line["sha256"] for line in lines) == wanted
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{line['enqueueId']}.eml" for line in lines
    )
    changed = Path(lines[0]["path"])
    changed.write_bytes(b"mine")
    again = shared.json("queue", "export", "spool", folder, code=1)
    assert changed.read_bytes() == b"mine"
    assert [line["enqueueId"] for line in again if "error" in line] == [lines[0]["enqueueId"]]
    assert len(again) == 25


def test_export_into_a_file_exits_2(shared, tmp_path):
    (tmp_path / "file").write_text("x")
    assert "not a folder" in shared("queue", "export", "spool", tmp_path / "file", code=2).err


def test_browsing_a_closed_pipe_is_quiet(shared):
    process = shared.start("queue", "browse", "spool", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait(30)
    assert err == b""


def test_older_than_deletes_only_the_old(cli):
    add(cli, 1, sender="eve@example.org", name="old")
    with open_stores(load_settings(cli.env)) as stores:
        written = stores.tables.written
        ((_, (row,)),) = written.rows_of(cli.spool, written.partitions(cli.spool))
        written.insert_many([replace(row, enqueued_time=row.enqueued_time - timedelta(hours=1))])
    add(cli, 1, sender="eve@example.org", name="new")
    assert (
        cli(
            "queue",
            "delete",
            "spool",
            "--sender",
            "eve@example.org",
            "--older-than",
            "30m",
            "--yes",
            "--json",
        ).one["deleted"]
        == 1
    )
    assert [line["name"] for line in cli.json("queue", "browse", "spool")] == ["new"]
