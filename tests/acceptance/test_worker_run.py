"""`mailslice worker run` and `smtp-in` as whole processes: signals, kill -9, probes, and every mail
accounted for.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import smtplib
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from mailslice.bench.relay import server_process
from mailslice.model.settings import clone_root
from mailslice.stores import open_stores
from tests.acceptance.command import Cli
from tests.acceptance.proxy import Proxy
from tests.conftest import Fresh
from tests.ports import free_port
from tests.services.worker_process.sink import Sink, Watching, certificate, running

pytestmark = pytest.mark.new_keyspaces

MAILSLICE = str(Path(sys.executable).parent / "mailslice")
SAMPLE = clone_root() / "tests" / "data" / "sample"
_NUMBERS = itertools.count(1)
HANDLER = """
import hashlib, os, threading, time

def note(mail, content, kind):
    with open("notes", "ab", buffering=0) as file:
        digest = hashlib.sha256(content).hexdigest()
        file.write(f"{kind} {mail.name} {digest} {os.getpid()}\\n".encode())

def handle(mail, content):
    note(mail, content, "begun")
    time.sleep(float(os.environ.get("HANDLER_SECONDS", "0")))
    note(mail, content, "done")

def printing(mail, content):
    print("handled", len(content))
    import atexit
    atexit.register(print, "goodbye")

def failing(mail, content):
    note(mail, content, "begun")
    raise ValueError("no")
"""


@dataclass
class Note:
    kind: str
    name: str
    sha256: str
    pid: int


@dataclass
class World:
    """A queue, a folder with a handler in it, and the processes that a test started."""

    fresh: Fresh
    folder: Path
    queue: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def cli(self, *words: str, exit_code: int = 0) -> list[dict[str, object]]:
        """Runs a command in this process: the tests here are about those that it starts."""
        return Cli(self.fresh.environ).inside().json(*words, code=exit_code)

    def size(self) -> int:
        ((line),) = self.cli("queue", "size", self.queue)
        return int(str(line["size"]))

    def enqueue(self, count: int) -> dict[str, str]:
        """Mails of bytes that differ: name -> SHA-256."""
        box = self.folder / f"mails-{count}"
        box.mkdir()
        for number in range(count):
            (box / f"{number:03}.eml").write_bytes(
                f"From: s@x.example\r\nTo: r@x.example\r\nSubject: {number}\r\n\r\n".encode()
                + b"\xff\nbody" * (number + 1)
            )
        lines = self.cli("mail", "enqueue", self.queue, str(box))
        assert len(lines) == count
        return {
            str(line["name"]): hashlib.sha256(Path(str(line["path"])).read_bytes()).hexdigest()
            for line in lines
        }

    def worker(
        self, *words: str, handler: str = "handlers:handle", seconds: float = 0, **environ: str
    ) -> subprocess.Popen[str]:
        command = [MAILSLICE, "worker", "run", "--queue", self.queue, "--handler", handler, *words]
        return self.start(command, {"HANDLER_SECONDS": str(seconds), **environ})

    def start(self, command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
        log = self.folder / f"log-{len(self.started)}"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.fresh.environ, **environ},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def notes(self, kind: str) -> list[Note]:
        file = self.folder / "notes"
        found = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [Note(what, name, sha, int(pid)) for what, name, sha, pid in found if what == kind]

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*")))


@pytest.fixture
def world(fresh_module: Fresh, tmp_path: Path) -> Iterator[World]:
    """A queue of its own in one deployment for all tests here: creating tables takes longer than
    most of them.
    """
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "handlers.py").write_text(HANDLER)
    made = World(fresh_module, folder, f"q{next(_NUMBERS)}")
    made.cli("queue", "create", made.queue)
    yield made
    for process in made.started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The consuming processes of a parent: its children but for Python's resource tracker."""
    return [
        child
        for child in psutil.Process(process.pid).children()
        if "resource_tracker" not in " ".join(child.cmdline())
    ]


def fetch(port: int, path: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def test_every_mail_is_handled_once_and_sigterm_ends_the_idle_worker_with_0(world: World) -> None:
    mails = world.enqueue(40)
    worker = world.worker("--processes", "2", "--prefetch", "10")
    until(lambda: len(world.notes("done")) >= 40, "40 mails handled")
    until(lambda: world.size() == 0, "all completed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert {note.name: note.sha256 for note in world.notes("done")} == mails
    assert len(world.notes("begun")) == 40


def test_sigterm_lets_running_handlers_end_and_gives_the_rest_back(world: World) -> None:
    mails = world.enqueue(12)
    worker = world.worker("--concurrency", "4", "--prefetch", "12", seconds=2)
    until(lambda: len(world.notes("begun")) >= 4, "four handlers run")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    first = {note.name for note in world.notes("begun")}
    assert {note.name for note in world.notes("done")} == first
    assert len(first) < 12
    assert world.size() == 12 - len(first)
    world.worker(seconds=0)
    until(lambda: world.size() == 0, "the rest handled")
    assert Counter(note.name for note in world.notes("begun")) == dict.fromkeys(mails, 1)


def test_what_a_handler_prints_is_seen_at_once_and_its_exit_hooks_run(world: World) -> None:
    world.enqueue(1)
    worker = world.worker(handler="handlers:printing")
    assert worker.stdout is not None
    assert worker.stdout.readline().startswith("handled ")
    until(lambda: world.size() == 0, "completed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert worker.stdout.read() == "goodbye\n"


def test_a_handler_that_never_ends_is_given_up_after_the_drain_and_its_mail_stays(
    world: World,
) -> None:
    world.enqueue(1)
    worker = world.worker("--drain", "1s", seconds=600)
    until(lambda: world.notes("begun"), "the handler runs")
    children = workers_of(worker)
    began = time.monotonic()
    worker.send_signal(signal.SIGINT)
    assert worker.wait(60) == 0
    assert time.monotonic() - began < 45
    assert gone(children)
    assert world.size() == 1
    assert "1 handlers did not end within 0:00:01" in world.log()


def gone(processes: list[psutil.Process]) -> bool:
    return not any(
        each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes
    )


def every_mail_once_or_twice(world: World, mails: dict[str, str], twice: int) -> None:
    """All mails were handled, with their bytes, and no more of them twice than were in a handler
    when something was killed.
    """
    until(lambda: world.size() == 0, "all completed", 90)
    done = world.notes("done")
    assert {note.name: note.sha256 for note in done} == mails
    assert len(done) - len(mails) <= twice


def test_kill_9_of_a_child_and_then_of_all_loses_nothing(world: World) -> None:
    mails = world.enqueue(60)
    words = ("--prefetch", "20", "--concurrency", "5")
    worker = world.worker(*words, seconds=0.1)
    until(lambda: len(world.notes("done")) >= 10, "some handled")
    (child,) = workers_of(worker)
    child.kill()
    until(
        lambda: {note.pid for note in world.notes("done")} - {child.pid}, "another process handles"
    )
    assert "ended with signal 9; starting it again" in world.log()
    (second,) = workers_of(worker)
    worker.kill()
    second.kill()
    worker.wait(30)
    world.worker(*words, seconds=0.1)
    every_mail_once_or_twice(world, mails, twice=10)


def test_kill_9_of_the_parent_ends_its_processes_which_drain_first(world: World) -> None:
    mails = world.enqueue(60)
    words = ("--prefetch", "20", "--concurrency", "5")
    worker = world.worker(*words, seconds=0.1)
    until(lambda: len(world.notes("done")) >= 10, "some handled")
    children = workers_of(worker)
    worker.kill()
    worker.wait(30)
    until(lambda: gone(children), "the children ended")
    assert len(world.notes("begun")) == len(world.notes("done")) < 60
    world.worker(*words, seconds=0.1)
    every_mail_once_or_twice(world, mails, twice=0)


def test_probes_tell_of_every_process_and_sum_their_figures(world: World) -> None:
    world.enqueue(20)
    port = free_port()
    worker = world.worker("--processes", "2", "--health-port", str(port))
    until(lambda: world.size() == 0, "all completed")
    until(
        lambda: (
            'mailslice_mails_total{outcome="completed",queue="' + world.queue + '"} 20.0'
            in fetch(port, "/metrics")[1]
        ),
        "20 completed in the figures",
    )
    until(
        lambda: (
            [p["connected"] for p in json.loads(fetch(port, "/livez")[1])["processes"]]
            == [True, True]
        ),
        "both connected",
    )
    status, text = fetch(port, "/livez")
    assert (status, json.loads(text)["live"]) == (200, True)
    until(lambda: fetch(port, "/readyz")[0] == 200, "both reach the stores")
    metrics = fetch(port, "/metrics")[1]
    assert f'mailslice_handling_seconds_count{{queue="{world.queue}"}} 20.0' in metrics
    assert f'mailslice_mails_in_flight{{queue="{world.queue}"}} 0.0' in metrics
    assert fetch(port, "/other")[0] == 404
    stopped = workers_of(worker)[0]
    stopped.send_signal(signal.SIGSTOP)
    until(lambda: fetch(port, "/livez")[0] == 503, "a stopped process is not alive")
    assert "hangs" in fetch(port, "/livez")[1]
    stopped.send_signal(signal.SIGCONT)
    until(lambda: fetch(port, "/livez")[0] == 200, "alive again")


def test_a_worker_that_cannot_read_the_holds_at_its_start_is_alive_and_says_what_is_missing(
    world: World,
) -> None:
    """It connects to RabbitMQ only when it knows them, so RabbitMQ is not what is missing."""
    world.cli("queue", "hold", world.queue, "--reason", "makes the table")
    keyspace, port = world.fresh.settings.own.keyspace, free_port()
    with open_stores(world.fresh.settings) as stores:
        stores.cassandra.execute(f"DROP TABLE {keyspace}.holds")
        stores.cassandra.execute(f"CREATE TABLE {keyspace}.holds (other text PRIMARY KEY)")
        world.worker("--health-port", str(port))
        until(lambda: "holds" in fetch(port, "/readyz")[1], "the holds are named", 30)
        (process,) = json.loads(fetch(port, "/readyz")[1])["processes"]
        assert process["wrong"] == "does not reach Cassandra (its holds could not be read)"
        assert fetch(port, "/livez")[0] == 200
        stores.cassandra.execute(f"DROP TABLE {keyspace}.holds")
        until(lambda: fetch(port, "/readyz")[0] == 200, "ready when there are no holds")


def test_a_relay_that_is_told_to_end_waits_for_the_answer_and_begins_no_other_mail(
    world: World,
) -> None:
    world.enqueue(3)
    with running(Watching()) as sink:
        hop = {"MAILSLICE_RELAY_HOST": "127.0.0.1", "MAILSLICE_RELAY_PORT": str(sink.port)}
        worker = world.worker("--concurrency", "1", handler="relay", **hop)
        until(sink.begun.is_set, "the first mail is sent whole")
        worker.send_signal(signal.SIGTERM)
        time.sleep(2)
        assert worker.poll() is None
        sink.may_go_on.set()
        assert worker.wait(60) == 0
        assert (sink.mails, len(sink.got)) == (1, 1)
    assert world.size() == 2, "it was completed, and the others are there"
    assert f"MAILSLICE_QUEUE_STAGE_MARKS={world.queue} prevents that" in world.log()


def test_a_failing_handler_is_tried_again_later_and_the_mail_stays(world: World) -> None:
    world.enqueue(2)
    world.worker(handler="handlers:failing")
    until(lambda: len(world.notes("begun")) == 2, "both tried")
    until(lambda: world.log().count("handler failed: ValueError at") == 2, "both logged")
    time.sleep(2)
    assert (world.size(), len(world.notes("begun"))) == (2, 2)
    assert "r@x.example" not in world.log()


def test_a_worker_that_cannot_start_says_why_in_one_line(world: World) -> None:
    cases: list[tuple[list[str], dict[str, str], int, str]] = [
        (["--handler", "no_module_here:f"], {}, 2, "module 'no_module_here' cannot be imported"),
        (["--handler", "handlers:absent"], {}, 2, "handlers has no 'absent'"),
        (["--handler", "handlers"], {}, 2, "'handlers' names no function"),
        (["--queue", "absent"], {}, 2, "absent"),
        ([], {"MAILSLICE_RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:1/%2F"}, 4, "127.0.0.1:1"),
        ([], {"MAILSLICE_CASSANDRA_CONTACT_POINTS": "127.0.0.1:1"}, 4, "127.0.0.1:1"),
        ([], {"MAILSLICE_S3_ENDPOINT": "http://127.0.0.1:1"}, 4, "127.0.0.1:1"),
    ]
    started = [world.worker(*words, **environ) for words, environ, _, _ in cases]
    for number, (process, (words, environ, exit_code, says)) in enumerate(
        zip(started, cases, strict=True)
    ):
        code = process.wait(60)
        log = (world.folder / f"log-{number}").read_text()
        assert code == exit_code, (words, environ, log)
        assert says in log.strip().splitlines()[-1]
        assert "Traceback" not in log


STORES = {
    "MAILSLICE_RABBITMQ_URL": "rabbitmq",
    "MAILSLICE_CASSANDRA_CONTACT_POINTS": "cassandra",
    "MAILSLICE_S3_ENDPOINT": "s3",
}


def behind_proxy(fresh: Fresh, variable: str) -> tuple[Proxy, tuple[str, int], dict[str, str]]:
    """A proxy before one store, the store's own address, and the settings that go through the
    proxy.
    """
    given = fresh.env[variable]
    if variable == "MAILSLICE_CASSANDRA_CONTACT_POINTS":
        target = (given, int(fresh.env["MAILSLICE_CASSANDRA_PORT"]))
        proxy = Proxy(target)
        return proxy, target, {"MAILSLICE_CASSANDRA_PORT": str(proxy.port)}
    url = urlsplit(given)
    target = (url.hostname or "", url.port or 0)
    proxy = Proxy(target)
    return proxy, target, {variable: given.replace(f":{target[1]}", f":{proxy.port}")}


@pytest.mark.parametrize(
    "variable",
    [
        pytest.param(one, id=store, marks=[pytest.mark.soak] if store != "rabbitmq" else [])
        for one, store in STORES.items()
    ],
)
def test_a_store_that_dies_in_the_middle_costs_no_mail_and_cannot_hold_up_a_sigterm(
    world: World, variable: str
) -> None:
    mails = world.enqueue(40)
    proxy, target, environ = behind_proxy(world.fresh, variable)
    worker = world.worker(
        "--concurrency", "4", "--prefetch", "8", "--drain", "2s", seconds=0.1, **environ
    )
    until(lambda: len(world.notes("done")) >= 8, "some handled")
    proxy.cut()
    time.sleep(2)
    assert worker.poll() is None
    assert len(world.notes("done")) < 40
    again = Proxy(target, proxy.port)
    every_mail_once_or_twice(world, mails, twice=4)
    assert "Traceback" not in world.log()

    children = workers_of(worker)
    again.cut()
    world.enqueue(3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert gone(children)
    assert (world.size(), len(world.notes("begun")) - len(world.notes("done"))) == (3, 0)


def test_the_maildir_handler_keeps_every_sample_byte_for_byte(world: World) -> None:
    box = world.folder / "box"
    lines = world.cli("mail", "enqueue", world.queue, str(SAMPLE))
    worker = world.worker(handler="maildir", MAILSLICE_WORKER_MAILDIR=str(box))
    until(lambda: world.size() == 0, "all stored")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    kept = {
        path.name.removesuffix(".mailslice"): path.read_bytes() for path in (box / "new").iterdir()
    }
    assert set(kept) == {line["enqueueId"] for line in lines}
    assert Counter(kept.values()) == Counter(path.read_bytes() for path in SAMPLE.glob("*.eml"))


def test_the_relay_handler_sends_on_and_dead_letters_who_is_refused_for_good(world: World) -> None:
    world.enqueue(3)
    with ExitStack() as stack:
        sink = stack.enter_context(running(Sink()))
        world.worker(handler="relay", MAILSLICE_RELAY_PORT=str(sink.port))
        until(lambda: world.size() == 0, "all sent")
        assert sorted(got[1] for got in sink.got) == [("r@x.example",)] * 3
        sink.refuse["r@x.example"] = "550 5.1.1 unknown"
        world.enqueue(1)
        until(lambda: "refused all recipients for good: 550 for 1" in world.log(), "rejected")
    assert "r@x.example" not in world.log()


@pytest.mark.soak
def test_a_relay_process_holds_a_mail_of_25_mb_with_bare_line_feeds_once(world: World) -> None:
    """By the most memory that the kernel ever gave the process, content and all."""
    large = world.folder / "large.eml"
    line = b"a line of a mail as a Unix disk has it, seventy bytes long or nearly so\n"
    large.write_bytes(b"From: s@x.example\nTo: r@x.example\n\n" + line * 350_000)
    with server_process(0) as (_, (port, _with_pipelining)):
        worker = world.worker("--processes", "1", handler="relay", MAILSLICE_RELAY_PORT=str(port))
        world.enqueue(20)
        until(lambda: world.size() == 0, "what a process needs for any mail", 120)
        (process,) = workers_of(worker)
        before = peak_mib(process)
        world.cli("mail", "enqueue", world.queue, str(large))
        until(lambda: world.size() == 0, "sent", 120)
        added = peak_mib(process) - before
    assert added < large.stat().st_size / (1 << 20) + 8


def peak_mib(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_what_smtp_in_said_250_to_is_in_the_queue_byte_for_byte(world: World) -> None:
    cert, key = certificate(world.folder)
    tls = {"MAILSLICE_SMTP_IN_TLS_CERTIFICATE": str(cert), "MAILSLICE_SMTP_IN_TLS_KEY": str(key)}
    health = free_port()
    words = ["--queue", world.queue, "--port", "0", "--health-port", str(health), "--json"]
    server = world.start([MAILSLICE, "worker", "smtp-in", *words], tls)
    assert server.stdout is not None
    port = json.loads(server.stdout.readline())["port"]
    assert fetch(health, "/livez")[0] == 200
    until(lambda: fetch(health, "/readyz")[0] == 200, "it reaches the stores before any mail")
    content = (
        b"Subject: x\r\n\r\nbare\nlf \xff\r\n.dot\r\n"
        + os.urandom(50_000).replace(b"\r", b"").replace(b"\n", b"")
        + b"\r\n"
    )
    with smtplib.SMTP("127.0.0.1", port, local_hostname="client.example", timeout=20) as client:
        client.starttls(context=ssl.create_default_context(cafile=str(cert)))
        client.ehlo()
        client.mail("s@x.example")
        client.rcpt("r@x.example")
        assert client.data(content)[0] == 250
    assert world.size() == 1
    counted = f'mailslice_smtp_mails_total{{code="250",queue="{world.queue}"}} 1.0'
    assert counted in fetch(health, "/metrics")[1]
    server.kill()  # 250 was said: nothing may be lost by it
    (shown,) = world.cli("worker", "drain", world.queue, "--max", "1", "--outcome", "retry")
    assert (shown["sender"], shown["recipients"]) == ("s@x.example", ["r@x.example"])
    command = Cli(world.fresh.environ).inside()
    raw = command("mail", "show", world.queue, "--id", shown["enqueueId"], "--raw").out
    assert raw.startswith(b"Received: from client.example ([127.0.0.1])\r\n")
    assert raw.endswith(content)
    assert hashlib.sha256(raw).hexdigest() == shown["sha256"]


def test_smtp_in_shows_the_failed_enqueues_that_it_still_takes_back(world: World) -> None:
    proxy, target, environ = behind_proxy(world.fresh, "MAILSLICE_CASSANDRA_CONTACT_POINTS")
    health = free_port()
    words = ["--queue", world.queue, "--port", "0", "--health-port", str(health), "--json"]
    server = world.start([MAILSLICE, "worker", "smtp-in", *words], environ)
    assert server.stdout is not None
    port = json.loads(server.stdout.readline())["port"]

    def undoing() -> float:
        shown = fetch(health, "/metrics")[1].partition("\nmailslice_enqueues_undoing{")[2]
        return float(shown.splitlines()[0].rpartition(" ")[2])

    assert undoing() == 0
    proxy.cut()
    with smtplib.SMTP("127.0.0.1", port, local_hostname="client.example", timeout=60) as client:
        client.ehlo()
        client.mail("s@x.example")
        client.rcpt("r@x.example")
        assert client.data(b"Subject: x\r\n\r\nbody\r\n")[0] == 451
    until(lambda: undoing() == 1, "its mark waits for Cassandra", 20)
    again = Proxy(target, proxy.port)
    until(lambda: undoing() == 0, "it is taken back", 60)
    again.cut()


def test_smtp_in_refuses_to_be_an_open_relay(world: World) -> None:
    server = world.start(
        [
            MAILSLICE,
            "worker",
            "smtp-in",
            "--queue",
            world.queue,
            "--host",
            "0.0.0.0",
            "--port",
            "0",
        ],
        {"MAILSLICE_SMTP_IN_ALLOWED_NETWORKS": "0.0.0.0/0"},
    )
    assert server.wait(60) == 2
    assert "that is an open relay" in world.log()
