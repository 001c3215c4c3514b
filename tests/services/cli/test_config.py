"""`mailslice config` and the guard in front of every command."""

import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq import management
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.management import Management
from tests.acceptance.command import Cli

pytestmark = pytest.mark.new_keyspaces


@pytest.fixture
def cli(fresh):
    cli = Cli(fresh.env).inside()
    cli("queue", "create", "spool")
    return cli


def test_before_the_first_start_nothing_is_stored_and_looking_stores_nothing(fresh):
    cli = Cli(fresh.env).inside()
    for _ in range(2):
        shown = cli("config", "show", "--json").one
        assert shown["stored"] is None
        assert shown["wanted"] == {
            "sliceWindow": "1h",
            "bucketCount": 1,
            "updateBrowseStartPace": 1000,
        }
        assert shown["verdict"].startswith("nothing stored")
    cli("config", "check")


def test_the_same_configuration_is_same(cli):
    shown = cli("config", "check", "--json").one
    assert (shown["stored"], shown["verdict"]) == (shown["wanted"], "same")
    assert shown["unsafeQueues"] == []


def test_a_delay_level_of_a_type_that_may_lose_mails_is_a_difference(cli, fresh):
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        connection.channel().queue_declare(
            RabbitNames("spool").delay_queue(60),
            durable=True,
            arguments={"x-queue-type": "quorum", "x-message-ttl": 60_000},
        )
    shown = cli("config", "check", "--json", code=1).one
    assert shown["verdict"] == "same"
    assert [sentence.split()[1] for sentence in shown["unsafeQueues"]] == [
        "mailslice-delay-60s-spool"
    ]


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("MAILSLICE_QUEUE_SLICE_WINDOW", "2h", "sliceWindow may not grow: stored 1h, wanted 2h"),
        (
            "MAILSLICE_QUEUE_SLICE_WINDOW",
            "7m",
            "sliceWindow must divide the stored one: stored 1h, wanted 7m",
        ),
        ("MAILSLICE_QUEUE_BUCKET_COUNT", "1", "bucketCount may not decrease: stored 4, wanted 1"),
    ],
)
def test_what_james_refuses_is_refused_by_check_and_apply(fresh, variable, value, why):
    cli = Cli(fresh.env).inside()
    cli.but(MAILSLICE_QUEUE_BUCKET_COUNT="4")("queue", "create", "spool")
    other = cli.but(**{variable: value})
    shown = other("config", "check", "--json", code=1).one
    assert shown["why"] == why
    answer = other("config", "apply", code=3)
    assert (answer.out, why in answer.err) == (b"", True)
    assert other("queue", "size", "spool", code=3).err.count("\n") <= 2


def test_an_allowed_change_is_refused_by_every_command_until_it_is_applied(cli):
    other = cli.but(MAILSLICE_QUEUE_SLICE_WINDOW="30m", MAILSLICE_QUEUE_BUCKET_COUNT="2")
    for words in (
        ["queue", "size", "spool"],
        ["queue", "browse", "spool"],
        ["queue", "clear", "spool", "--yes"],
        ["mail", "enqueue", "spool", "-", "--sender", "a@b.example", "--recipient", "a@b.example"],
        ["worker", "drain", "spool"],
        ["duty", "run", "queue_size", "--queue", "spool"],
    ):
        answer = other(*words, code=3)
        assert answer.out == b""
        assert "sliceWindow=1h bucketCount=1" in answer.err
        assert "sliceWindow=30m bucketCount=2" in answer.err
        assert "mailslice config apply" in answer.err
    assert (
        other("config", "check", "--json", code=1).one["verdict"]
        == "differs: config apply stores the wanted one"
    )
    assert other("config", "apply", "--reason", "more mail", "--json").one["applied"] is True
    assert other("config", "apply", "--json").one["applied"] is False
    assert other("config", "check", "--json").one["verdict"] == "same"
    assert other.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}], (
        "settings that were not given follow what is stored"
    )
    assert (
        "bucketCount may not decrease: stored 2, wanted 1"
        in cli.but(MAILSLICE_QUEUE_BUCKET_COUNT="1")("config", "apply", code=3).err
    )


def test_shared_is_shown_stored_and_refused_where_a_process_differs(cli):
    other = cli.but(MAILSLICE_QUEUE_SHARED="true")
    assert cli("config", "shared", "--json").one["shared"] is True
    assert cli("config", "shared", "false", "--json").one["changed"] is True
    assert cli("config", "shared", "false", "--json").one["changed"] is False
    assert other("config", "shared", "--json").one["stored"] is False
    for words in (
        ["mail", "enqueue", "spool", "-", "--sender", "a@b.example", "--recipient", "a@b.example"],
        ["worker", "drain", "spool"],
        ["duty", "run", "queue_size", "--queue", "spool"],
    ):
        refused = other(*words, code=3).err
        assert "MAILSLICE_QUEUE_SHARED=true" in refused
        assert "false is stored" in refused
    assert "'maybe'" in cli("config", "shared", "maybe", code=2).err


KILLED = """
import os, signal, sys
from datetime import timedelta
from mailslice.cli.main import main
from mailslice.stores.own.locks import Locks
from mailslice.stores.rabbitmq import management

when = sys.argv.pop()
management.APART = timedelta(seconds=2)

def killed(write):
    def written(*given):
        if when == "after":
            write(*given)
        os.kill(os.getpid(), signal.SIGKILL)
    return written

Locks.first, Locks.change = killed(Locks.first), killed(Locks.change)
main()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("value", ["false", "true"])
def test_an_answer_whose_command_is_killed_is_stored_by_the_next_and_nothing_is_in_between(
    cli, fresh, value, when, monkeypatch
):
    """Killed -9 before the conditional write, and after it."""
    monkeypatch.setattr(management, "APART", timedelta(seconds=2))
    before = {"false": None, "true": False}[value]
    if before is not None:
        cli("config", "shared", "false", "--reason", "test")
        figures, end = Management(fresh.settings.rabbitmq), time.monotonic() + 40
        while figures.depth(RabbitNames("spool").work_queue) is None:
            assert time.monotonic() < end
            time.sleep(0.5)
    command = ("config", "shared", value, "--reason", "test", "--json")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *command, when],
        env=fresh.environ,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    there = before if when == "before" else value == "true"
    assert cli("config", "shared", "--json").one["stored"] is there
    again = cli(*command).one
    assert (again["stored"], again["changed"]) == (value == "true", when == "before")
