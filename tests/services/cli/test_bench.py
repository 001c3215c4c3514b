"""`mailslice bench`: whose queue it may use, what it answers, and that nothing stays behind. Speed is no test's business."""

import pytest

from tests.acceptance.command import Cli


@pytest.fixture(scope="module")
def cli(fresh_module):
    cli = Cli(fresh_module.env).inside()
    cli("queue", "create", "spool")
    return cli


def test_hotpath_answers_with_its_figures_and_removes_the_queue_that_it_made(cli, s3):
    found = cli("bench", "hotpath", "--count", 10, "--size", "2k", "--in-flight", 4, "--repeat", 2, "--json").one
    keys = {"enqueue_rate", "dequeue_rate", "enqueue_ms", "dequeue_ms", "cpu_seconds_per_1000", "peak_mib", "limits"}
    assert keys <= found.keys()
    assert found["enqueue_ms"].keys() == found["dequeue_ms"].keys() == {"p50", "p95", "p99"}
    assert found["limits"].keys() == {"s3_puts", "view_inserts", "confirmed_publishes"}
    assert (found["count"], found["size"], found["in_flight"], found["runs"]) == (10, 2048, 4, 2)
    assert [line["queue"] for line in cli.json("queue", "list")] == ["spool"]
    assert s3.list_objects_v2(Bucket=cli.env["MAILSLICE_S3_BUCKET"])["KeyCount"] == 0
    assert cli.json("report", "list") == []


def test_a_queue_with_mails_of_others_is_refused_and_left_as_it_is(cli):
    own = cli.own_queue()
    [mail] = own.json("mail", "enqueue", "spool", "-", "--sender", "a@b.example", "--recipient", "c@d.example", stdin=b"x")
    assert mail["name"] in own("bench", "hotpath", "--queue", "spool", "--count", 1, code=3).err
    assert [line["enqueueId"] for line in own.json("worker", "drain", "spool", "--max", 1)] == [mail["enqueueId"]]


@pytest.mark.parametrize("name", ["size", "cleanup"])
def test_benchmarks_that_delete_all_rows_take_no_queue_that_exists(cli, name):
    answer = cli("bench", name, "--queue", "spool", code=3)
    assert "queue spool exists" in answer.err
    assert "size" in cli("queue", "size", "spool", "--json").one
