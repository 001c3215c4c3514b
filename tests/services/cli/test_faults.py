"""Stores that are down, die in the middle or refuse us; queues that are unknown or declared
otherwise: exit codes, and what the message names.
"""

import json
import subprocess
import time
from urllib.parse import urlsplit

import pika
import pytest

from tests.acceptance.command import Cli
from tests.acceptance.proxy import Proxy

ENVELOPE = ("--sender", "alice@example.org", "--recipient", "bob@example.net")
DOWN = {
    "cassandra": {"MAILSLICE_CASSANDRA_PORT": "9"},
    "rabbitmq": {"MAILSLICE_RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:9/%2F"},
    "s3": {"MAILSLICE_S3_ENDPOINT": "http://127.0.0.1:9"},
    "management": {"MAILSLICE_RABBITMQ_MANAGEMENT_URL": "http://guest:guest@127.0.0.1:9"},
}


@pytest.fixture(scope="module")
def cli(fresh_module):
    cli = Cli(fresh_module.env).inside()
    cli("queue", "create", "spool")
    return cli


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("cassandra", ["queue", "size", "spool"]),
        ("cassandra", ["mail", "enqueue", "spool", "-", *ENVELOPE]),
        ("cassandra", ["worker", "drain", "spool"]),
        ("cassandra", ["config", "check"]),
        ("cassandra", ["report", "last"]),
        ("cassandra", ["duty", "run", "queue_cleanup", "--queue", "spool"]),
        ("rabbitmq", ["queue", "size", "spool"]),
        ("rabbitmq", ["queue", "create", "other"]),
        ("rabbitmq", ["mail", "enqueue", "spool", "-", *ENVELOPE]),
        ("rabbitmq", ["worker", "drain", "spool"]),
        ("s3", ["queue", "create", "other"]),
        ("s3", ["mail", "enqueue", "spool", "-", *ENVELOPE]),
        ("s3", ["worker", "drain", "spool"]),
        ("management", ["queue", "list"]),
        ("management", ["queue", "size", "nope"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_store_that_is_down_at_the_start_ends_with_4_and_its_address(cli, store, words):
    begun = time.monotonic()
    answer = cli.but(**DOWN[store])(*words, code=4, stdin=b"x")
    assert time.monotonic() - begun < 60
    assert answer.out == b""
    assert "127.0.0.1:9" in answer.err
    assert answer.err.count("\n") <= 3


def test_a_list_of_queues_without_cassandra_has_the_brokers_figures_and_ends_with_4(cli):
    answer = cli.but(**DOWN["cassandra"])("queue", "list", "--json", code=4)
    assert (answer.one["queue"], answer.one["size"]) == ("spool", None)
    assert "127.0.0.1:9 does not answer" in answer.err


def test_a_list_of_queues_has_the_brokers_figures_where_cassandra_refuses_and_ends_with_2(cli):
    answer = cli.but(MAILSLICE_CASSANDRA_KEYSPACE="nope")("queue", "list", "--json", code=2)
    assert (answer.one["queue"], answer.one["size"]) == ("spool", None)
    assert answer.one["health"] == "UNKNOWN"
    assert "MAILSLICE_CASSANDRA_KEYSPACE" in answer.err


def test_wrong_passwords_exit_2_and_name_the_setting_not_the_password(cli):
    for change, names in (
        (
            {"MAILSLICE_RABBITMQ_URL": _with_password(cli.env["MAILSLICE_RABBITMQ_URL"])},
            "MAILSLICE_RABBITMQ_URL",
        ),
        (
            {
                "MAILSLICE_RABBITMQ_MANAGEMENT_URL": _with_password(
                    cli.env["MAILSLICE_RABBITMQ_MANAGEMENT_URL"]
                )
            },
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL",
        ),
        ({"MAILSLICE_S3_SECRET_KEY": "swordfish"}, "MAILSLICE_S3_"),
    ):
        words = (
            ["queue", "list"]
            if "MANAGEMENT" in names
            else ["mail", "enqueue", "spool", "-", *ENVELOPE]
        )
        answer = cli.but(**change)(*words, code=2, stdin=b"x")
        assert names in answer.err
        assert "swordfish" not in answer.err
        assert answer.err.count("\n") <= 3


def _with_password(url):
    parts = urlsplit(url)
    return parts._replace(
        netloc=f"{parts.username}:swordfish@{parts.hostname}:{parts.port}"
    ).geturl()


def test_an_unknown_queue_names_the_known_ones(cli):
    for words in (
        ["queue", "size", "nope"],
        ["mail", "enqueue", "nope", "-", *ENVELOPE],
        ["worker", "drain", "nope"],
        ["duty", "run", "queue_size", "--queue", "nope"],
    ):
        answer = cli(*words, code=2, stdin=b"x")
        assert "'nope'" in answer.err
        assert "spool" in answer.err
        assert "mailslice queue create nope" in answer.err
        assert answer.out == b""


def test_a_queue_that_exists_with_other_arguments_is_refused(cli):
    with pika.BlockingConnection(
        pika.URLParameters(cli.env["MAILSLICE_RABBITMQ_URL"])
    ) as connection:
        connection.channel().queue_declare(
            "JamesMailQueue-workqueue-other-args", durable=True, arguments={"x-max-length": 7}
        )
    answer = cli("queue", "create", "other-args", code=3)
    assert "x-max-length=7" in answer.err
    assert "x-dead-letter-exchange" in answer.err


@pytest.mark.parametrize(
    ("store", "how"),
    [
        ("rabbitmq", "cut"),
        *(
            pytest.param(*one, marks=pytest.mark.soak)
            for one in (("cassandra", "cut"), ("s3", "cut"), ("cassandra", "stall"))
        ),
    ],
)
def test_a_store_that_dies_during_an_enqueue_ends_with_4_and_loses_nothing_acknowledged(
    fresh, tmp_path, store, how
):
    cli = Cli(fresh.env)
    cli("queue", "create", "spool")
    proxy, change = _proxied(cli.env, store)
    mails = tmp_path / "mails"
    mails.mkdir()
    for number in range(1200):
        (mails / f"{number:04}.eml").write_bytes(
            b"From: a@b.example\r\nTo: c@d.example\r\n\r\n" + b"x" * 3000
        )
    process = cli.but(**change).start("mail", "enqueue", "spool", mails, "--json")
    first = process.stdout.readline()
    assert b"enqueueId" in first
    begun = time.monotonic()
    getattr(proxy, how)()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert time.monotonic() - begun < 60
    assert f"127.0.0.1:{proxy.port}".encode() in err
    assert b"Traceback" not in err
    acknowledged = {
        line["enqueueId"]
        for line in map(json.loads, (first + out).splitlines())
        if "enqueueId" in line
    }
    assert 0 < len(acknowledged) < 1200
    assert acknowledged <= {line["enqueueId"] for line in cli.json("queue", "browse", "spool")}
    drained = {line["enqueueId"] for line in cli.json("worker", "drain", "spool", "--idle", "3s")}
    assert acknowledged <= drained
    proxy.cut()


def test_a_store_that_dies_during_an_enqueue_from_an_open_and_silent_pipe_ends_with_4(
    fresh,
):
    cli = Cli(fresh.env)
    cli("queue", "create", "spool")
    proxy, change = _proxied(cli.env, "s3")
    one = b"From a Thu Nov 19 08:12:00 2026\nFrom: a@b.example\nTo: c@d.example\n\nx\n\n"
    process = cli.but(**change).start(
        "mail", "enqueue", "spool", "-", "--json", stdin=subprocess.PIPE
    )
    process.stdin.write(one * 2)
    assert b"enqueueId" in process.stdout.readline(), "the second mail is whole when a third begins"
    proxy.cut()
    begun = time.monotonic()
    process.stdin.write(one)
    try:
        assert process.wait(60) == 4
    finally:
        process.kill()
        _, err = process.communicate()
    assert time.monotonic() - begun < 60
    assert f"127.0.0.1:{proxy.port}".encode() in err


@pytest.mark.parametrize(
    "store",
    ["rabbitmq", *(pytest.param(one, marks=pytest.mark.soak) for one in ("cassandra", "s3"))],
)
def test_a_store_that_dies_while_mail_is_drained_ends_with_4_and_every_other_mail_comes_again(
    fresh, tmp_path, store
):
    cli = Cli(fresh.env)
    cli("queue", "create", "spool")
    mails = tmp_path / "mails.mbox"
    one = b"From a Thu Nov 19 08:12:00 2026\nFrom: a@b.example\nTo: c@d.example\n\nx\n\n"
    mails.write_bytes(one * 800)
    enqueued = {line["enqueueId"] for line in cli.json("mail", "enqueue", "spool", mails)}
    assert len(enqueued) == 800
    proxy, change = _proxied(cli.env, store)
    process = cli.but(**change).start("worker", "drain", "spool", "--json")
    first = process.stdout.readline()
    begun = time.monotonic()
    proxy.cut()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert time.monotonic() - begun < 60
    assert f"127.0.0.1:{proxy.port}".encode() in err
    done = {line["enqueueId"] for line in map(json.loads, (first + out).splitlines())}
    # What S3 did not answer for may be parked: it comes back within a minute.
    idle = "70s" if store == "s3" else "3s"
    drained = cli.json("worker", "drain", "spool", "--idle", idle, timeout=240)
    rest = [line["enqueueId"] for line in drained]
    assert done & set(rest) == set()
    assert len(rest) == len(set(rest))
    marked_but_not_acknowledged = enqueued - done - set(rest)
    assert len(marked_but_not_acknowledged) <= 64, (
        "at most what was in flight is without a line: marked, and dropped when it came again"
    )
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]


def _proxied(env, store):
    """A proxy in front of one store, and the settings that go through it."""
    if store == "cassandra":
        proxy = Proxy(
            (env["MAILSLICE_CASSANDRA_CONTACT_POINTS"], int(env["MAILSLICE_CASSANDRA_PORT"]))
        )
        return proxy, {"MAILSLICE_CASSANDRA_PORT": str(proxy.port)}
    variable = {"rabbitmq": "MAILSLICE_RABBITMQ_URL", "s3": "MAILSLICE_S3_ENDPOINT"}[store]
    parts = urlsplit(env[variable])
    proxy = Proxy((parts.hostname, parts.port))
    userinfo = f"{parts.username}:{parts.password}@" if parts.username else ""
    return proxy, {variable: parts._replace(netloc=f"{userinfo}127.0.0.1:{proxy.port}").geturl()}
