"""`mailslice bench`: whose queue it may use, what it answers, and that nothing stays behind.

Speed is no test's business.
"""

import asyncio
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from pika.exceptions import ChannelClosedByBroker

from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.bench.commands import DEFAULT_QUEUE
from mailslice.bench.isolated import isolated
from mailslice.bench.measure import Bench
from mailslice.bench.own_mails import bench_mail, take_stale
from mailslice.bench.paced import take_messages
from mailslice.bench.queues import bench_queue
from mailslice.bench.store_cpu import StoreCpu
from mailslice.model.clock import system_clock
from mailslice.model.errors import Refused
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import load_settings
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker.queue_worker import open_worker
from tests.acceptance.command import Cli

LIMITS = {
    "s3_puts",
    "s3_gets",
    "s3_bulk_deletes",
    "view_inserts",
    "view_reads",
    "view_marks",
    "confirmed_publishes",
    "acked_deliveries",
}


@pytest.fixture(scope="module")
def cli(fresh_module):
    cli = Cli(fresh_module.env).inside()
    cli("queue", "create", "spool")
    return cli


def test_hotpath_answers_with_its_figures_and_removes_the_queue_that_it_made(cli, s3):
    found = cli(
        "bench",
        "hotpath",
        "--count",
        10,
        "--size",
        "2k",
        "--in-flight",
        4,
        "--repeats",
        2,
        "--warm-up",
        "1ms",
        "--json",
    ).one
    keys = {
        "enqueue_rate",
        "dequeue_rate",
        "cpu_seconds_per_1000",
        "enqueue_cpu_seconds_per_1000",
        "dequeue_cpu_seconds_per_1000",
        "peak_mib",
    }
    assert all(found[key] > 0 for key in keys)
    assert found["peak_mib"] < 95, "100 MB: did the worker import boto3 or numpy?"
    assert found["enqueue_ms"].keys() == found["dequeue_ms"].keys() == {"p50", "p95", "p99"}
    assert 0 < found["events"]["share"] < 1
    assert found["limits"].keys() == LIMITS
    assert all(rate > 0 for rate in found["limits"].values())
    assert found["stores_cpu_seconds_per_1000"].keys() == {"cassandra", "rabbitmq", "s3"}
    assert (found["count"], found["size"], found["in_flight"], found["repeats"]) == (10, 2048, 4, 2)
    assert len(found["enqueue_rate_of_tenths"]) == len(found["dequeue_rate_of_tenths"]) == 10
    for spread, middle in (
        (found["runs"]["enqueue_rate"], found["enqueue_rate"]),
        (found["runs"]["dequeue_ms"]["p99"], found["dequeue_ms"]["p99"]),
    ):
        assert 0 < spread["min"] <= spread["median"] == middle <= spread["max"]
    assert (found["paced"]["load"], found["paced"]["count"]) == (0.8, 10)
    assert found["paced"]["enqueue_ms"]["p99"] > 0
    assert found["paced"]["dequeue_ms"]["p99"] > 0
    assert "scaling" not in found
    assert (found["warm_up"]["mails"], found["warm_up"]["level"]) == (10, False), (
        "one round is no proof, and the time was up"
    )
    assert len(found["warm_up"]["rates_of_rounds"]) == 1
    assert [line["queue"] for line in cli.json("queue", "list")] == ["spool"]
    assert s3.list_objects_v2(Bucket=cli.env["MAILSLICE_S3_BUCKET"])["KeyCount"] == 0
    assert cli.json("report", "list") == []


SMALL = ("--count", 8, "--size", "2k", "--warm-up", 0)


@pytest.mark.soak
def test_the_window_is_shown_beside_fixed_ones_far_away_too(cli, monkeypatch):
    monkeypatch.setattr("mailslice.bench.hotpath.CURVE", (1, 2))
    monkeypatch.setattr("mailslice.bench.hotpath.WINDOWS", (2, 4))
    found = cli("bench", "hotpath", *SMALL, "--load", 0, "--curve", "--rtt", "30ms", "--json").one
    assert found["rtt_ms"] == 30
    assert found["enqueue_ms"]["p50"] >= 30
    assert found["limits"]["s3_gets"] < 64 / 0.03
    assert [(each["in_flight"], each["window"]) for each in found["curve"]] == [
        (in_flight, window) for in_flight in (1, 2) for window in ("fixed", "adaptive")
    ]
    window = found["window"]
    best = max(window["fixed"], key=lambda each: each["enqueue_rate"])
    assert (window["asked"], window["best"]) == (64, best["window"])
    assert window["ratio"]["enqueue_rate"] == round(
        window["adaptive"]["enqueue_rate"] / best["enqueue_rate"], 2
    )


@pytest.mark.soak
def test_the_client_for_small_objects_is_compared_with_obstore(cli, s3):
    found = cli("bench", "clients", *SMALL, "--in-flight", 4, "--turns", 2, "--json").one
    small, obstore = found["small"], found["obstore"]
    assert small.keys() == obstore.keys() == found["ratio"].keys()
    for name, ratio in found["ratio"].items():
        assert ratio == round(small[name] / obstore[name], 2)
    assert s3.list_objects_v2(Bucket=cli.env["MAILSLICE_S3_BUCKET"])["KeyCount"] == 0


@pytest.mark.soak
def test_servers_are_measured_near_and_far_and_the_one_of_the_settings_is_not_cold(cli):
    rows = cli("bench", "s3", *SMALL, "--in-flight", "2,4", "--json").lines
    assert [(row["state"], row["way"], row["in_flight"]) for row in rows] == [
        ("warm", "near", 2),
        ("warm", "near", 4),
        ("warm", "far", 4),
    ]
    assert [row["ratio"]["enqueue_rate"] for row in rows[:2]] == [1.0, 1.0]
    assert rows[2]["enqueue_ms"]["p50"] >= 20


@pytest.mark.soak
def test_delayed_mails_take_one_hop_by_a_level(cli):
    found = cli("bench", "delays", "--count", 5, "--json").one
    assert [(each["delay"], each["hops_a_mail"]) for each in found["measured"]] == [
        ("1s", 1.0),
        ("5s", 1.0),
        ("7s", 1.0),
    ]
    assert all(0 <= each["late_ms"]["p99"] < 5000 for each in found["measured"])
    assert {"delay": "1h", "hops": 1} in found["computed"]


@pytest.mark.soak
def test_a_sweep_lists_all_marks_and_the_next_run_drops_them(cli):
    found = cli("bench", "marks", "--rows", 3000, "--json").one
    assert found["rows"] == 3000
    assert found["listed_marks_per_second"] > 0
    assert found["dropped_marks_per_second"] > 0


@pytest.mark.soak
def test_several_processes_share_the_mails(cli):
    words = (
        "--count",
        11,
        "--size",
        "2k",
        "--in-flight",
        2,
        "--load",
        0,
        "--processes",
        "2",
        "--warm-up",
        0,
    )
    found = cli("bench", "hotpath", *words, "--json").one
    assert "paced" not in found
    assert found["warm_up"] is None
    assert [each["processes"] for each in found["scaling"]] == [2]
    for each in found["scaling"]:
        assert each["count"] == 11
        assert all(
            each[key] > 0
            for key in (
                "enqueue_rate",
                "dequeue_rate",
                "enqueue_cpu_seconds_per_1000",
                "dequeue_cpu_seconds_per_1000",
                "peak_mib",
            )
        )
        assert (
            each["enqueue_share_of_cores"].keys()
            == each["dequeue_share_of_cores"].keys()
            == {"worker", "cassandra", "rabbitmq", "s3", "rest"}
        )


@pytest.mark.soak
def test_many_waiting_mails_are_put_before_the_enqueues_and_all_are_drained(cli, s3):
    found = cli(
        "bench",
        "hotpath",
        "--count",
        5,
        "--size",
        "2k",
        "--in-flight",
        4,
        "--load",
        0,
        "--waiting",
        40,
        "--warm-up",
        0,
        "--json",
    ).one["waiting"]
    assert (found["waiting"], found["count"]) == (40, 5)
    assert all(
        found[key] > 0
        for key in (
            "fill_rate",
            "enqueue_rate_alone",
            "enqueue_rate",
            "drain_rate",
            "drain_cpu_seconds_per_1000",
        )
    )
    assert len(found["drain_rate_of_tenths"]) == 10
    assert found["peak_mib"] < 95
    assert [line["queue"] for line in cli.json("queue", "list")] == ["spool"]
    assert s3.list_objects_v2(Bucket=cli.env["MAILSLICE_S3_BUCKET"])["KeyCount"] == 0


def test_a_queue_with_mails_of_others_is_refused_and_left_as_it_is(cli):
    own = cli.own_queue()
    [mail] = own.json(
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        "a@b.example",
        "--recipient",
        "c@d.example",
        stdin=b"x",
    )
    assert mail["name"] in own("bench", "hotpath", "--queue", "spool", "--count", 1, code=3).err
    assert [line["enqueueId"] for line in own.json("worker", "drain", "spool", "--max", 1)] == [
        mail["enqueueId"]
    ]


@pytest.mark.soak
def test_what_a_stopped_benchmark_left_is_taken_off_by_the_next_one_and_other_mails_are_not(
    cli, s3
):
    own = cli.own_queue()
    bucket = own.env["MAILSLICE_S3_BUCKET"]
    before = s3.list_objects_v2(Bucket=bucket)["KeyCount"]
    mail = (
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        "a@b.example",
        "--recipient",
        "c@d.example",
    )
    _left_by_a_benchmark(own, 5)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == before + 10
    assert (
        own(
            "bench",
            "hotpath",
            "--queue",
            "spool",
            "--count",
            2,
            "--in-flight",
            2,
            "--load",
            0,
            "--warm-up",
            0,
            "--json",
        ).one["count"]
        == 2
    )
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == before
    assert own.json("queue", "browse", "spool") == []
    _left_by_a_benchmark(own, 1)
    [other] = own.json(*mail, stdin=b"x")
    refused = own("bench", "hotpath", "--queue", "spool", "--count", 1, code=3).err
    assert other["name"] in refused
    assert "leave out --queue" in refused
    assert len(own.json("queue", "browse", "spool")) == 2, (
        "a queue with mails of others is left as it is"
    )


def _left_by_a_benchmark(cli, count, queue=None):
    """As after a kill between the two halves of a run."""

    async def enqueue():
        async with open_worker(_settings(cli), queue or cli.spool) as worker:
            for number in range(count):
                await worker.enqueue(bench_mail(number), b"A: b\r\n\r\nleft")

    asyncio.run(enqueue())


def _settings(cli):
    return load_settings(cli.env, state_file=Path("/nonexistent"))


def _of_somebody(cli, queue="spool"):
    [mail] = cli.json(
        "mail",
        "enqueue",
        queue,
        "-",
        "--sender",
        "a@b.example",
        "--recipient",
        "c@d.example",
        stdin=b"x",
    )
    return mail


def test_a_mail_of_somebody_that_comes_while_mails_are_completed_goes_back_and_ends_the_benchmark(
    cli,
):
    own = cli.own_queue()
    other = _of_somebody(own)
    _left_by_a_benchmark(own, 2)

    async def taken():
        async with open_worker(_settings(own), own.spool) as worker:
            await Bench(worker, StoreCpu(worker.context.settings), b"", 4).take(3)

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(taken())
    assert raised.group_contains(Refused, match=other["name"])
    assert asyncio.run(take_stale(_settings(own), own.spool)) == other["name"]
    assert [line["enqueueId"] for line in own.json("worker", "drain", "spool")] == [
        other["enqueueId"]
    ], "and the benchmark's own are gone"


def test_a_mail_of_somebody_among_messages_that_are_published_at_a_pace_goes_back(
    cli, fresh_module
):
    own = cli.own_queue()
    _left_by_a_benchmark(own, 1)
    other = _of_somebody(own)
    with (
        blocking_connection(fresh_module.settings.rabbitmq) as connection,
        pytest.raises(Refused, match=other["name"]),
    ):
        list(take_messages(connection.channel(), own.spool, 2))
    assert len(own.json("worker", "drain", "spool")) == 2


@pytest.mark.parametrize("ends_by", [Refused, ZeroDivisionError])
def test_a_queue_that_got_mails_of_others_at_the_end_stays_with_them(cli, ends_by):
    name, mails, told = QueueName(f"bench-{uuid4().hex}"), [], []

    def used():
        with bench_queue(_settings(cli), name, synthetic=True, print_progress=told.append) as queue:
            queue.fill(3, 1, dead=True)
            mails.append(_of_somebody(cli, name))
            if ends_by is ZeroDivisionError:
                raise ZeroDivisionError

    with pytest.raises(ends_by) as raised:
        used()
    assert mails[0]["name"] in (told[-1] if ends_by is ZeroDivisionError else str(raised.value))
    assert [line["enqueueId"] for line in cli.json("worker", "drain", name)] == [
        mails[0]["enqueueId"]
    ]


def test_rows_are_where_the_stored_configuration_has_them(fresh):
    stored = (
        Cli(fresh.env)
        .inside()
        .but(MAILSLICE_QUEUE_SLICE_WINDOW="10m", MAILSLICE_QUEUE_BUCKET_COUNT="4")
    )
    stored("queue", "create", "spool")
    with bench_queue(fresh.settings, DEFAULT_QUEUE, synthetic=True) as queue:
        queue.fill(40, 5, dead=True)
        dead = sorted(
            {
                partition.slice_start
                for partition in queue.stores.tables.written.partitions(DEFAULT_QUEUE)
            }
        )
        queue.fill(8, 1, dead=False)
        assert [after - before for before, after in pairwise(dead)] == [timedelta(minutes=10)] * 4
        assert {
            partition.bucket for partition in queue.stores.tables.written.partitions(DEFAULT_QUEUE)
        } == {
            0,
            1,
            2,
            3,
        }
        mails = MailQueue(queue.stores, DEFAULT_QUEUE, system_clock)
        assert (mails.size(), len(list(mails.browse(MailFilter(), None)))) == (8, 8)


def test_a_queue_whose_name_begins_like_a_benchmarks_is_not_one(cli):
    name = f"mailslice-benchmarks-{uuid4().hex}"
    cli("queue", "create", name)
    assert "exists" in cli("bench", "size", "--queue", name, code=3).err


def test_a_second_benchmark_on_a_queue_is_refused(cli):
    own = cli.own_queue()
    with bench_queue(_settings(own), own.spool, synthetic=False):
        assert (
            "another benchmark uses queue"
            in own("bench", "hotpath", "--queue", "spool", "--count", 1, code=3).err
        )
    with bench_queue(_settings(own), own.spool, synthetic=False):
        pass


def test_a_queue_that_somebody_consumes_is_refused(cli, fresh_module):
    own = cli.own_queue()
    with blocking_connection(fresh_module.settings.rabbitmq) as connection:
        connection.channel().basic_consume(RabbitNames(own.spool).work_queue, lambda *_: None)
        assert (
            "being consumed"
            in own("bench", "hotpath", "--queue", "spool", "--count", 1, code=3).err
        )


@pytest.mark.parametrize("name", ["size", "cleanup"])
def test_benchmarks_that_delete_all_rows_take_no_queue_that_exists(cli, name):
    answer = cli("bench", name, "--queue", "spool", code=3)
    assert "queue spool exists" in answer.err
    assert "size" in cli("queue", "size", "spool", "--json").one


@pytest.mark.parametrize("quorum", [pytest.param("false", marks=pytest.mark.soak), "true"])
def test_the_queue_goes_and_what_a_killed_benchmark_left_in_it_too_in_a_process_with_processes(
    cli, fresh_module, quorum
):
    own = cli.but(MAILSLICE_QUEUE_QUORUM=quorum)
    own("queue", "create", DEFAULT_QUEUE)
    _left_by_a_benchmark(own, 3, DEFAULT_QUEUE)
    isolated(_used_once, own.env)
    assert DEFAULT_QUEUE not in [line["queue"] for line in own.json("queue", "list")]
    with (
        blocking_connection(fresh_module.settings.rabbitmq) as connection,
        pytest.raises(ChannelClosedByBroker, match="404"),
    ):
        connection.channel().exchange_declare(RabbitNames(DEFAULT_QUEUE).exchange, passive=True)


def _used_once(env):
    with bench_queue(
        load_settings(env, state_file=Path("/nonexistent")), DEFAULT_QUEUE, synthetic=True
    ) as queue:
        queue.fill(3, 1, dead=True)
