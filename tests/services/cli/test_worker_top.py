"""`mailslice worker top`: what it says of queues, of workers, and of stores that are away."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
import time

import pytest

from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import open_stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import Reject, new_mail, open_queue
from tests.acceptance.command import MAILSLICE, Cli
from tests.services.rabbitmq.parked import parked

pytestmark = pytest.mark.new_keyspaces

KEYS = [
    "queue",
    "size",
    "oldestSeconds",
    "ready",
    "unacknowledged",
    "delayed",
    "parked",
    "deadLetters",
    "consumers",
    "enqueueRate",
    "deliverRate",
    "completeRate",
    "redeliverRate",
    "deadLetterRate",
    "workers",
    "inHandlers",
    "fetched",
    "longestSeconds",
    "p99Seconds",
    "completed",
    "notCompleted",
    "delayHops",
    "undoing",
    "leftBehind",
    "problems",
    "health",
    "why",
    "next",
]
SILENCE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def cli(fresh_module):
    cli = Cli({**fresh_module.env, "MAILSLICE_WORKER_RECORD_EVERY": "500ms"}).inside()
    cli("queue", "create", "spool")
    cli("queue", "create", "other")
    return cli


def test_an_idle_queue_has_all_its_figures_and_looking_makes_no_table(cli, fresh_module):
    first, second = cli.json("worker", "top", "--once")
    assert (first["queue"], second["queue"]) == ("other", "spool")
    assert list(first) == KEYS
    assert (first["size"], first["oldestSeconds"], first["workers"], first["problems"]) == (
        0,
        None,
        0,
        [],
    )
    with open_stores(fresh_module.settings) as stores:
        rows = stores.cassandra.execute(
            stores.cassandra.prepare(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
            ),
            [fresh_module.env["MAILSLICE_OWN_KEYSPACE"]],
        )
        assert list(rows) == []


def test_a_parked_mail_is_seen(cli, fresh_module):
    with open_stores(fresh_module.settings) as stores:
        parked(stores, QueueName("other"))
    assert cli.json("worker", "top", "other")[0]["parked"] == 1
    assert [each["parked"] for each in cli.json("queue", "list")] == [1, 0]
    with blocking_connection(fresh_module.settings.rabbitmq) as connection:
        connection.channel().queue_purge(RabbitNames("other").park_queue)


def test_a_mail_in_a_handler_is_seen_with_its_worker_and_its_age(cli, fresh_module):
    settings = fresh_module.but(MAILSLICE_WORKER_RECORD_EVERY="500ms").settings
    leave = threading.Event()
    with open_queue("spool", settings) as queue:
        for _ in range(3):
            queue.enqueue(new_mail("a@b.example", ["c@d.example"]), b"x")
        consuming = threading.Thread(
            target=lambda: queue.consume(
                lambda _mail, _content: (leave.wait(60), None)[1], concurrency=1, most=3
            )
        )
        consuming.start()
        try:
            deadline = time.monotonic() + 60
            while (seen := cli.json("worker", "top", "spool")[0])["inHandlers"] != 1 or seen[
                "longestSeconds"
            ] < 1:
                assert time.monotonic() < deadline, seen
                time.sleep(0.5)
            assert (seen["queue"], seen["workers"], seen["size"]) == ("spool", 1, 3)
            assert seen["fetched"] == 2
            assert seen["oldestSeconds"] >= 1
            assert seen["problems"] == []
            assert (seen["completed"], seen["notCompleted"]) == (0, 0)
        finally:
            leave.set()
            consuming.join()
        queue.enqueue(new_mail("a@b.example", ["c@d.example"]), b"x")
        queue.consume(lambda _mail, _content: Reject("test"), most=1)
        while (seen := cli.json("worker", "top", "spool")[0])["notCompleted"] != 1:
            assert time.monotonic() < deadline, seen
            time.sleep(0.5)
        assert seen["completed"] == 3
        assert seen["p99Seconds"] >= 1


def test_without_cassandra_the_brokers_figures_are_shown_and_the_exit_code_is_4(cli):
    answer = cli.but(MAILSLICE_CASSANDRA_CONTACT_POINTS=SILENCE)(
        "worker", "top", "other", "--once", "--json", code=4
    )
    assert (answer.one["size"], answer.one["workers"]) == (None, None)
    assert answer.one["deadLetters"] in (0, None)
    assert any(SILENCE in problem for problem in answer.one["problems"])
    assert SILENCE in answer.err


def test_without_rabbitmq_nothing_is_known(cli):
    answer = cli.but(MAILSLICE_RABBITMQ_MANAGEMENT_URL=f"http://guest:guest@{SILENCE}")(
        "worker", "top", "--json", code=4
    )
    assert answer.out == b""
    assert SILENCE in answer.err


def test_an_unknown_queue_is_wrong_use_that_names_the_known_ones(cli):
    answer = cli("worker", "top", "nosuch", "--once", code=2)
    assert "'nosuch'; known are: other, spool" in answer.err


def test_without_a_terminal_it_prints_one_table(cli):
    answer = cli("worker", "top")
    text = answer.out.decode()
    assert text.split()[:3] == ["queue", "health", "size"]
    assert text.count("other") == 1


def test_on_a_terminal_it_goes_on_until_ctrl_c(cli):
    ours, theirs = pty.openpty()
    env = {**cli.env, "TERM": "xterm", "COLUMNS": "200", "LINES": "20"}
    with subprocess.Popen(
        [str(MAILSLICE), "worker", "top", "--interval", "300ms"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
    ) as process:
        os.close(theirs)
        try:
            seen = b""
            while seen.count(b"other") < 2:
                seen += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            _read_to_the_end(ours)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert b"Traceback" not in seen


def _read_to_the_end(terminal: int) -> None:
    """So that the process never waits for a reader."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        os.close(terminal)
