"""What the parent leaves behind, and what a process that is still being built says of itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import MutableSequence
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mailslice.model.errors import BadInput, BadSetting, MailsliceError
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.settings import Settings
from mailslice.worker.dequeue.strikes import InHandlers, StrikeState
from mailslice.worker.process import child, supervisor
from mailslice.worker.process.child import ParentLink
from mailslice.worker.process.consumer_task import ConsumerTask, drain_for


def test_a_number_below_one_is_named_by_its_option() -> None:
    with pytest.raises(BadInput, match=r"^--prefetch 0: allowed are whole numbers from 1$"):
        supervisor.run_worker(Settings(), QueueName("spool"), "maildir", prefetch=0)


def test_a_health_port_that_is_taken_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: Any) -> None:
        assert os.environ["PROMETHEUS_MULTIPROC_DIR"].startswith(str(tmp_path))
        raise BadSetting("health port 127.0.0.1:1 cannot be opened")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    monkeypatch.setattr(supervisor, "HealthServer", taken)
    (tmp_path / "mailslice-metrics.killed" / "figures").mkdir(parents=True)
    before = signal.getsignal(signal.SIGTERM)
    task = ConsumerTask(Settings(), QueueName("spool"), "maildir", prefetch=1, concurrency=1)
    with pytest.raises(BadSetting, match="cannot be opened"):
        supervisor.Supervisor(task, 1, "127.0.0.1", 1).run()
    assert (list(tmp_path.iterdir()), os.environ.get("PROMETHEUS_MULTIPROC_DIR")) == ([], None)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_that_cannot_be_started_is_tried_again_and_ends_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(_: SpawnProcess) -> None:
        tries.append(time.monotonic())
        raise OSError(12, "Cannot allocate memory")

    tries: list[float] = []
    monkeypatch.setattr(SpawnProcess, "start", no_memory)
    task = ConsumerTask(Settings(), QueueName("spool"), "maildir", prefetch=1, concurrency=1)
    words = r"worker process 0 cannot be started: .*Cannot allocate memory, 3 times"
    with pytest.raises(MailsliceError, match=words):
        supervisor.Supervisor(task, 1, "127.0.0.1", 0).run()
    assert tries[2] - tries[1] > tries[1] - tries[0] > 0.9


def forks_and_dies(task: ConsumerTask, *_: Any) -> None:
    """The first one leaves a process behind that has its pipes; the second one ends the parent."""
    with Path(task.handler).open("a+") as starts:
        starts.write(f"{time.monotonic()}\n")
        starts.seek(0)
        if len(starts.readlines()) > 1:
            os.kill(os.getppid(), signal.SIGTERM)
    if os.fork():
        os._exit(3)
    time.sleep(4)
    os._exit(0)


def test_a_process_that_died_is_started_again_while_one_that_it_forked_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forking)
    monkeypatch.setattr(child, "main", forks_and_dies)
    starts = tmp_path / "starts"
    task = ConsumerTask(Settings(), QueueName("spool"), str(starts), prefetch=1, concurrency=1)
    supervisor.Supervisor(task, 1, "127.0.0.1", 0).run()
    first, second = map(float, starts.read_text().split())
    assert second - first < 3


def reads_late_or_says_much(
    task: ConsumerTask, pipe: Connection, cells: MutableSequence[int], struck: StrikeState
) -> None:
    """The first one reads after 6 s. The second one dies with 900 mails, then buries others."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    newest, suspects = struck, Path(task.handler)
    if task.number == 0:
        time.sleep(6)
        while pipe.poll(1):
            newest = pipe.recv()
        suspects.write_text(str(len(newest.suspects)))
        time.sleep(60)
    if not struck.suspects:
        in_handlers = InHandlers(cells)
        for _ in range(task.concurrency):
            in_handlers.enter(EnqueueId(uuid4()))
        os._exit(1)
    began = time.monotonic()
    for enqueue_id in (*(uuid4() for _ in range(50)), min(struck.suspects)):
        pipe.send(enqueue_id)
    while len(newest.suspects) == task.concurrency:
        newest = pipe.recv()
    suspects.with_suffix(".seconds").write_text(str(time.monotonic() - began))
    while not suspects.exists():
        time.sleep(0.1)
    os.kill(os.getppid(), signal.SIGTERM)
    os._exit(0)


def test_a_process_that_reads_nothing_stops_no_other_and_gets_the_newest_strikes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forking = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forking)
    monkeypatch.setattr(child, "main", reads_late_or_says_much)
    suspects = tmp_path / "suspects"
    spool, drain = QueueName("spool"), timedelta(0)
    task = ConsumerTask(Settings(), spool, str(suspects), 1, concurrency=900, drain=drain)
    supervisor.Supervisor(task, 2, "127.0.0.1", 0).run()
    assert float(suspects.with_suffix(".seconds").read_text()) < 3.5
    assert suspects.read_text() == "899"


HANDLER = """
import threading
from mailslice.model.errors import Refused

class Unlicensed(Refused):
    exit_code = 7

    def __init__(self, product, *, until):
        super().__init__(f"{{product}} has no licence since {{until}}")
        self.session = {session}

class Handler:
    def __init__(self, settings):
        raise Unlicensed("scanner", until=2026)
"""


@pytest.mark.parametrize("session", ["None", "threading.Lock()"])
def test_a_handlers_own_class_of_error_does_not_hide_why_it_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, session: str
) -> None:
    """The class takes more than a text. A lock cannot be sent to another process."""
    (tmp_path / "unlicensed.py").write_text(HANDLER.format(session=session))
    monkeypatch.chdir(tmp_path)
    task = ConsumerTask(Settings(), QueueName("spool"), "unlicensed:Handler", 1, 1)
    with pytest.raises(MailsliceError, match="scanner has no licence") as raised:
        supervisor.Supervisor(task, 1, "127.0.0.1", 0).run()
    assert (str(raised.value), raised.value.exit_code) == ("scanner has no licence since 2026", 7)
    assert "process 0 cannot start: scanner has no licence since 2026" in caplog.text
    assert "starting it again" not in caplog.text


def test_a_process_whose_handler_is_still_being_built_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = ParentLink(None, 30.0)  # type: ignore[arg-type]
    now = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: now + 100)
        assert link.lag == 0
        link.turned = now + 80
        assert link.lag == pytest.approx(20)


@pytest.mark.parametrize(
    ("handler", "answer", "drain"),
    [
        ("maildir", "8m", timedelta(seconds=30)),
        ("relay", "8m", timedelta(minutes=8)),
        ("relay", "2s", timedelta(seconds=30)),
        ("relay", "2h", timedelta(minutes=10)),
    ],
)
def test_a_relay_is_drained_for_as_long_as_it_waits_for_an_answer(
    handler: str, answer: str, drain: timedelta
) -> None:
    settings = Settings.model_validate({"relay": {"answer_timeout": answer}})
    assert drain_for(settings, handler) == drain


def test_a_process_that_is_started_again_goes_on_in_its_files_of_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    task = ConsumerTask(Settings(), QueueName("spool"), "no.such:handler", 1, 1)
    spawning = multiprocessing.get_context("spawn")
    files = []
    for _ in range(2):
        ours, theirs = spawning.Pipe()
        args = (task, theirs, spawning.RawArray("B", 16), StrikeState())
        process = spawning.Process(target=child.main, args=args)
        process.start()
        process.join(60)
        assert process.exitcode == 1, "it counts from before it knows that there is no handler"
        files.append(sorted(one.name for one in tmp_path.iterdir()))
        assert ours.poll()
    assert files[0]
    assert files[1] == files[0]
