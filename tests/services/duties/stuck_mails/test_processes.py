"""Whole worker processes that hang, are stopped (SIGSTOP) and killed (-9), and the duty beside
them.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mailslice.model.names import RabbitNames
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.services.duties.stuck_mails.test_kill import MAILSLICE
from tests.services.duties.world import environment

HANDLER = """
import pathlib, time
from mailslice.worker import Reject

def handle(mail, content):
    with open("begun", "a") as file:
        file.write(mail.name + "\\n")
    while mail.name != "quick" and not pathlib.Path("go").exists():
        time.sleep(0.1)
    if mail.name == "retries":
        raise ValueError("later")
    return Reject("no") if mail.name == "rejects" else None
"""


class Process:
    """`mailslice worker run` on the queue, in a folder with the handler."""

    def __init__(self, world, folder):
        (folder / "handlers.py").write_text(HANDLER)
        self.folder, self.partition = folder, world
        words = [
            MAILSLICE,
            "worker",
            "run",
            "--queue",
            world.queue,
            "--handler",
            "handlers:handle",
            "--drain",
            "1s",
        ]
        with (folder / "log").open("a") as log:
            env = {**environment(world.settings), "MAILSLICE_WORKER_RECORD_EVERY": "500ms"}
            self.popen = subprocess.Popen(
                words, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def signal(self, number):
        os.killpg(self.popen.pid, number)

    def begun(self):
        file = self.folder / "begun"
        return sorted(file.read_text().split()) if file.exists() else []

    def record(self):
        """Of this process: the one that was started last."""
        records = self.partition.stores.own.worker_records.list(self.partition.queue)
        return max(records, key=lambda record: record.started)

    def recorded(self):
        return {
            mail.name
            for record in self.partition.stores.own.worker_records.list(self.partition.queue)
            for mail in record.in_flight
            if record.is_alive
        }


def until(what, seconds=60):
    """At load 10 a process takes its time to start."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.fixture
def worker(world, tmp_path):
    started = []

    def start(folder=tmp_path):
        started.append(Process(world, Path(folder)))
        return started[-1]

    yield start
    for process in started:
        for number in (signal.SIGCONT, signal.SIGKILL):
            if process.popen.poll() is None:
                process.signal(number)
        process.popen.wait()


def enqueue(world, folder, *names):
    for name in names:
        (folder / f"{name}.eml").write_bytes(b"Subject: x\r\n\r\n" + name.encode())
        words = [
            MAILSLICE,
            "mail",
            "enqueue",
            world.queue,
            str(folder / f"{name}.eml"),
            "--name",
            name,
            "--sender",
            "a@b.example",
            "--recipient",
            "c@d.example",
        ]
        subprocess.run(
            words, env=environment(world.settings), check=True, capture_output=True, timeout=120
        )


def depth(world, name):
    with blocking_connection(world.settings.rabbitmq) as connection:
        return connection.channel().queue_declare(name, passive=True).method.message_count


def test_a_handler_that_hangs_and_comes_back_after_its_mail_was_closed(world, worker, tmp_path):
    names = ["completes", "rejects", "retries"]
    enqueue(world, tmp_path, "quick", *names)
    process = worker()
    until(lambda: process.begun() == sorted(["quick", *names]))
    until(lambda: process.recorded() == set(names))
    time.sleep(1.1)
    report = world.run(lock_timeout="1s")
    assert (report["inFlight"], report["closed"], report["workers"]["alive"]) == (3, 3, 1)
    assert [mail.name for mail in sorted(world.kept(), key=lambda mail: mail.name)] == names
    assert {mail.stage for mail in world.kept()} == {"loaded"}

    (tmp_path / "go").touch()
    until(lambda: not process.recorded())
    process.signal(signal.SIGTERM)
    process.popen.wait(60)
    assert process.begun() == sorted(["quick", *names])
    queues = RabbitNames(world.queue)
    assert [depth(world, name) for name in (queues.work_queue, queues.dead_letter_queue)] == [0, 0]

    report = world.run(lock_timeout="1s")
    assert (report["inFlight"], report["closed"], report["discardedRecords"]) == (0, 0, 0)
    finished = {mail.name: mail.finished is not None for mail in world.kept()}
    assert finished == {"completes": True, "rejects": False, "retries": False}
    assert world.quarantine.content(
        next(mail for mail in world.kept() if mail.name == "completes")
    ).endswith(b"completes")


def test_a_worker_that_is_killed_between_plan_and_apply_has_nothing_closed(world, worker, tmp_path):
    """Its last record is younger than the plan. The broker gives the mail to the next worker."""
    enqueue(world, tmp_path, "hangs")
    process = worker()
    until(lambda: process.recorded() == {"hangs"})
    time.sleep(1.1)
    request = world.request(lock_timeout="1s")
    world.steps(request, "plan", "check")

    beat = process.record().beat
    until(lambda: process.record().beat > beat)
    process.signal(signal.SIGKILL)
    process.popen.wait(60)
    report = world.steps(request, "apply", "verify", "report")
    assert (report["planned"], report["closed"], report["skippedBy"]) == (
        1,
        0,
        {"its holder is silent": 1},
    )
    assert listed(world) == []

    (tmp_path / "go").touch()
    process = worker()
    until(lambda: process.begun() == ["hangs", "hangs"])
    until(lambda: not live(world))
    assert world.run(lock_timeout="1s")["closed"] == 0
    assert (process.begun(), world.kept()) == (["hangs", "hangs"], [])
    assert depth(world, RabbitNames(world.queue).work_queue) == 0


@pytest.mark.soak
def test_a_worker_that_is_stopped_and_one_that_is_killed_have_nothing_closed(
    world, worker, tmp_path
):
    enqueue(world, tmp_path, "hangs")
    process = worker()
    until(lambda: process.recorded() == {"hangs"})
    time.sleep(1.1)
    process.signal(signal.SIGSTOP)
    report = world.run(lock_timeout="1s")
    assert (report["closed"], report["discardedRecords"], report["inFlight"]) == (0, 1, 0)

    process.signal(signal.SIGCONT)
    until(lambda: process.recorded() == {"hangs"})
    process.signal(signal.SIGKILL)
    process.popen.wait(60)
    report = world.run(lock_timeout="1s")
    assert (report["closed"], report["discardedRecords"], report["inFlight"]) == (0, 1, 0)
    assert world.kept() == []

    (tmp_path / "go").touch()
    process = worker()
    until(lambda: process.begun() == ["hangs", "hangs"])
    until(lambda: not live(world))
    assert world.run(lock_timeout="1s")["closed"] == 0
    assert [mail for mail in world.kept() if mail.state is not State.KEPT] == []


def live(world):
    """The rows of the view that have no deleted mark."""
    written, deleted = world.stores.tables.written, world.stores.tables.deleted
    pages = written.rows_of(world.queue, written.partitions(world.queue))
    rows = [row for _, page in pages for row in page]
    return [row for row in rows if not deleted.is_marked(world.queue, row.enqueue_id)]


def listed(world):
    """What `mailslice stuck list` shows."""
    words = [MAILSLICE, "stuck", "list", world.queue, "--json"]
    done = subprocess.run(
        words, env=environment(world.settings), check=True, capture_output=True, timeout=120
    )
    return done.stdout.decode().splitlines()
