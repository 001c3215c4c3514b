"""The command as a process: signals, closed pipes, what it leaves behind."""

import json
import os
import pty
import signal
import subprocess
import time

import psutil
import pytest

from tests.acceptance.command import MAILSLICE, Cli

pytestmark = pytest.mark.new_keyspaces

SIGNALS = [
    *(pytest.param(one, marks=pytest.mark.soak) for one in (signal.SIGINT, signal.SIGTERM)),
    signal.SIGKILL,
]


@pytest.fixture(scope="module")
def cli(fresh_module):
    cli = Cli({**fresh_module.env, "MAILSLICE_QUEUE_SLICE_WINDOW": "1s"})
    cli.inside()("queue", "create", "spool")
    return cli


@pytest.fixture
def inside(cli):
    """The same in this process, for what a test only needs around its process."""
    return cli.inside()


@pytest.fixture(scope="module")
def mbox(tmp_path_factory):
    path = tmp_path_factory.mktemp("mails") / "many.mbox"
    path.write_bytes(
        b"From a Thu Nov 19 08:12:00 2026\nFrom: a@b.example\nTo: c@d.example\n\nx\n\n" * 400
    )
    return path


def end(process, number):
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err.decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_waiting_command_quietly(cli, inside, number, code):
    envelope = ("--sender", "a@example.org", "--recipient", "b@example.net")
    inside("mail", "enqueue", "spool", "-", *envelope, stdin=b"Subject: one\r\n\r\n")
    process = cli.start("worker", "drain", "spool", "--idle", "1h", "--json")
    assert process.stdout.readline()  # the one mail: from here on it waits
    time.sleep(1)
    assert end(process, number) == (code, b"", "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_the_middle_of_a_drain_loses_no_mail_and_completes_none_twice(
    cli, inside, mbox, number
):
    enqueued = {line["enqueueId"] for line in inside.json("mail", "enqueue", "spool", mbox)}
    process = cli.start("worker", "drain", "spool", "--json")
    first = process.stdout.readline()
    _, out, _ = end(process, number)
    lines = [line for line in (first + out).splitlines() if line.endswith(b"}")]
    done = {json.loads(line)["enqueueId"] for line in lines}
    rest = [line["enqueueId"] for line in inside.json("worker", "drain", "spool", "--idle", "3s")]
    assert done.isdisjoint(rest)
    assert len(set(rest)) == len(rest)
    assert len(enqueued - done - set(rest)) <= 64, "marked, and killed before the line"
    assert inside.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]


def test_a_reader_that_goes_away_is_no_error(cli, inside, mbox):
    inside("mail", "enqueue", "spool", mbox)
    done = subprocess.run(
        f"{MAILSLICE} queue browse spool --json | head -n 1",
        shell=True,
        env={**cli.env, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["sender"] == "a@b.example"
    assert done.stderr == b""
    inside("queue", "clear", "spool", "--yes")


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 3, 1)])
def test_on_a_terminal_clear_asks_and_takes_no_for_an_answer(cli, inside, answer, code, left):
    inside("queue", "clear", "spool", "--yes")
    inside(
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
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(MAILSLICE), "queue", "clear", "spool", "--json"],
        env=dict(cli.env),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.write(ours, answer)
    out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code, err
    assert b"Delete all 1 mails of spool?" in err
    assert out.startswith(b'{"queue": "spool", "deleted": 1, "run": ') if code == 0 else not out
    assert inside.json("queue", "size", "spool") == [{"queue": "spool", "size": left}]


def test_nothing_but_mailslice_settings_is_needed(cli):
    assert set(cli.env) == {name for name in cli.env if name.startswith("MAILSLICE_")}
    assert cli("queue", "show", "spool", "--json").one["queue"] == "spool"


@pytest.mark.parametrize("number", SIGNALS)
def test_no_java_outlives_a_duty(cli, number):
    in_spark = cli.but(MAILSLICE_DUTY_SMALL_ROWS="0")
    process = in_spark.start("duty", "run", "queue_cleanup", "--queue", "spool", "--grace", "2s")
    deadline = time.monotonic() + 90
    children = []
    while (
        not any("java" in child for child in names(children))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.2)
        children = psutil.Process(process.pid).children(recursive=True)
    assert any("java" in child for child in names(children)), process.stderr.read()
    end(process, number)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


def names(processes):
    found = []
    for process in processes:
        try:
            found.append(process.name())
        except psutil.Error:
            continue
    return found
