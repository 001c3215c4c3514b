"""`mailslice worker run --handler relay` on a queue with stage marks, killed (-9) while the next
hop thinks: from outside, with nothing but MAILSLICE_*.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.acceptance.test_worker_run import World, fetch, until, workers_of
from tests.conftest import Fresh
from tests.ports import free_port
from tests.services.worker_process.sink import Sink, running

pytestmark = pytest.mark.new_keyspaces


@dataclass
class Slow(Sink):
    """Takes a mail and answers only when it may."""

    answers: threading.Event = field(default_factory=threading.Event)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        import asyncio

        said = await super().handle_DATA(server, session, envelope)
        await asyncio.to_thread(self.answers.wait, 60)
        return said


@pytest.fixture
def world(fresh: Fresh, tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / "work"
    folder.mkdir()
    marked = fresh.but(
        MAILSLICE_QUEUE_STAGE_MARKS="out",
        MAILSLICE_WORKER_RECORD_EVERY="300ms",
        MAILSLICE_WORKER_BOUNCE_QUEUE="reports",
    )
    made = World(marked, folder, "out")
    for name in ("out", "reports"):
        made.cli("queue", "create", name)
    yield made
    for process in made.started:
        for child in workers_of(process) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_a_relay_killed_before_the_answer_sends_nothing_twice_and_says_who_is_in_doubt(
    world: World,
) -> None:
    names = world.enqueue(6)
    port = free_port()
    with running(Slow()) as sink:
        worker = world.worker(
            "--concurrency",
            "2",
            "--health-port",
            str(port),
            handler="relay",
            MAILSLICE_RELAY_PORT=str(sink.port),
        )
        until(lambda: len(sink.got) == 2, "two mails are sent and not answered")
        (process,) = workers_of(worker)
        os.kill(process.pid, signal.SIGKILL)
        sink.answers.set()
        until(
            lambda: world.size() == 0, "the parent has started another worker, and it is done", 90
        )
        in_doubt = 'mailslice_recipients_failed_in_doubt_total{queue="out"} 2.0'
        until(lambda: in_doubt in fetch(port, "/metrics")[1], "the figures are shown", 5)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
    assert Counter(content for _, _, content, _ in sink.got) == Counter(
        {content: 1 for _, _, content, _ in sink.got}
    )
    assert len(sink.got) == 6
    stuck = world.cli("stuck", "list", "out")
    assert len(stuck) == 2
    assert {str(line["name"]) for line in stuck} <= set(names)
    assert {(line["stage"], line["action"]) for line in stuck} == {("sending", "failed")}
    assert world.log().count("1 recipients failed in attempt 1") == 2
    assert "consuming out with relay and stage marks" in world.log()
    reports = world.cli("queue", "browse", "reports")
    assert [line["recipients"] for line in reports] == [["s@x.example"]] * 2
    assert "r@x.example" not in world.log()
