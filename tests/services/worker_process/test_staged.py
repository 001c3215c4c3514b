"""Killed (-9) or stopped at every point between two stages: no recipient's server gets a mail
twice, nobody is dropped in silence. A real sink counts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from mailslice.codec import message
from mailslice.model.mail import Mail, QueuedMail, RecipientHeader
from mailslice.model.settings import Settings
from mailslice.model.stages import Stage
from mailslice.worker import open_worker
from tests.acceptance.proxy import Proxy
from tests.services.worker.conftest import Place4Queue, at
from tests.services.worker_process.sink import Sink, running
from tests.services.worker_process.staging import relaying

SCRIPT = Path(__file__).with_name("staging.py")
A, B, C = "a@next.example", "b@next.example", "c@next.example"
MAIL = Mail(
    "m", "author@home.example", (A, B, C), per_recipient_headers=(RecipientHeader(B, "X-For", "b"),)
)
"""Two transactions: A and C, then B with a header of its own.

C is greylisted: a third one, in the second attempt.
"""
POINTS = [
    *(
        "read#1",
        "loaded#1",
        "sending#1",
        "began#1",
        "dot#1",
        "unanswered#1",
        "answered#1",
        "sent#1",
    ),
    *("sending#2", "began#2", "dot#2", "unanswered#2", "answered#2", "sent#2"),
    *("again#1", "next#1", "publish#1", "published#1", "ack#1", "acked#1"),
    *(
        "read#2",
        "loaded#2",
        "sending#3",
        "began#3",
        "dot#3",
        "unanswered#3",
        "answered#3",
        "sent#3",
    ),
    *("mark#1", "marked#1", "ack#2", "acked#2"),
]
DOUBTFUL = {
    f"{point}#{n}": who
    for n, who in ((1, A), (2, B), (3, C))
    for point in ("began", "dot", "unanswered", "answered")
}
"""Killed here, nobody can know whether that recipient has the mail."""
NEVER_SETTLED = {"read#1", "loaded#1", "read#2", "loaded#2", "acked#1", "acked#2"}
"""Stopped here, the mail is not in a handler's hands, or no more."""


@dataclass
class Greylisting(Sink):
    """Refuses C once."""

    seen: set[str] = field(default_factory=set)

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address == C and C not in self.seen:
            self.seen.add(C)
            return "450 4.2.0 greylisted"
        return await super().handle_RCPT(server, session, envelope, address, options)

    @property
    def counts(self) -> Counter[str]:
        return Counter(recipient for _, recipients, _, _ in self.got for recipient in recipients)


@dataclass
class Round:
    """What came of one mail, and who was told of as failed."""

    counts: Counter[str]
    told: set[str]
    states: dict[str, Stage]
    left: int
    marked: bool
    passed: list[str]


@pytest.fixture(scope="module")
def world(fresh_module: Any) -> Any:
    return fresh_module.but(MAILSLICE_WORKER_RECORD_EVERY="250ms")


def one_round(world: Any, mode: str, point: str) -> Round:
    """`mode`: kill; stop (until another worker is done with the mail); pause (its connection is
    lost, and it goes on at once, beside the other worker).
    """
    name = f"{mode}-{point.replace('#', '-')}"
    world = world.but(MAILSLICE_QUEUE_STAGE_MARKS=name)
    with contextmanager(at)(world.settings, name) as spool, running(Greylisting()) as sink:
        item = asyncio.run(enqueued(spool))
        broker = urlsplit(world.env["MAILSLICE_RABBITMQ_URL"])
        proxy = Proxy((broker.hostname or "", broker.port or 5672))
        url = broker._replace(
            netloc=broker.netloc.replace(f":{broker.port}", f":{proxy.port}")
        ).geturl()
        command = [
            sys.executable,
            str(SCRIPT),
            "kill" if mode == "kill" else "stop",
            point,
            spool.queue,
            str(sink.port),
        ]
        environ = world.but(MAILSLICE_RABBITMQ_URL=url).environ
        environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        with subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            lines = heard(process)
            try:
                until(
                    lambda: process.poll() is not None or is_stopped(process),
                    f"{name} is passed: {lines}",
                    90,
                )
                proxy.cut()
                relay = spool.settings.model_copy(
                    update={
                        "relay": spool.settings.relay.model_copy(
                            update={"host": "127.0.0.1", "port": sink.port}
                        )
                    }
                )
                if mode == "pause":
                    lines.clear()
                    process.send_signal(signal.SIGCONT)
                asyncio.run(finished(spool, relay, item))
                if mode != "kill":
                    lines.clear()
                    process.send_signal(signal.SIGCONT)
                    if mode == "stop" and point in NEVER_SETTLED:
                        time.sleep(2)
                    elif mode == "stop":
                        until(lambda: "settled" in lines, f"{name} goes on: {lines}", 60)
                    process.terminate()
                    assert process.wait(60) == 0
                    asyncio.run(finished(spool, relay, item))
            finally:
                process.kill()
        assert mode != "kill" or process.returncode == -signal.SIGKILL, (process.returncode, lines)
        record = spool.stores.own.mail_stages.get(spool.queue, item.enqueue_id)
        return Round(
            counts=sink.counts,
            told={
                recipient
                for kept in spool.stores.own.quarantine.list(spool.queue)
                for recipient in message.decode(kept.message).mail.recipients
            },
            states=dict(record.recipients) if record else {},
            left=spool.ready(spool.names.work_queue) + spool.ready(spool.names.dead_letter_queue),
            marked=item.enqueue_id in spool.marks(),
            passed=lines,
        )


async def enqueued(spool: Place4Queue) -> QueuedMail:
    async with open_worker(spool.settings, spool.queue) as worker:
        return await worker.enqueue(MAIL, b"Subject: x\r\n\r\nbody\r\n")


async def finished(spool: Place4Queue, settings: Settings, item: QueuedMail) -> None:
    """Another worker: until the mail is marked and the queue has been idle for a moment."""
    stop = asyncio.Event()

    def idle(seconds: float) -> None:
        if seconds > 0.6 and item.enqueue_id in spool.marks():
            stop.set()

    async with asyncio.timeout(90):
        await relaying(settings, spool.queue, stop, idle)


def heard(process: subprocess.Popen[str]) -> list[str]:
    lines: list[str] = []

    def follow() -> None:
        assert process.stdout is not None
        lines.extend(line.strip() for line in process.stdout)

    threading.Thread(target=follow, daemon=True).start()
    return lines


def is_stopped(process: subprocess.Popen[str]) -> bool:
    try:
        return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], object], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def check(mode: str, point: str, found: Round) -> None:
    """Once each, or told; never both in silence. And the queue is done with the mail."""
    words = f"{mode} at {point}: {found}"
    assert max(found.counts.values(), default=0) <= 1, words
    missing = {A, B, C} - set(found.counts)
    assert missing <= found.told, words
    assert (found.marked, found.left) == (True, 0), words
    assert set(found.states) == {A, B, C}, words
    assert Stage.SENDING not in found.states.values(), words
    if mode == "kill":
        assert found.told == ({DOUBTFUL[point]} if point in DOUBTFUL else set()), words
    if mode == "pause":
        assert missing == set(), words


def checked(world: Any, rounds: list[tuple[str, str]]) -> None:
    with ThreadPoolExecutor(3) as threads:
        for (mode, point), found in zip(
            rounds, threads.map(lambda each: one_round(world, *each), rounds), strict=True
        ):
            check(mode, point, found)


def test_killed_or_stopped_around_the_last_step_nobody_is_served_twice_or_dropped_in_silence(
    world: Any,
) -> None:
    checked(
        world,
        [("kill", "unanswered#1"), ("stop", "dot#1"), ("stop", "sending#2"), ("kill", "next#1")],
    )


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["kill", "stop", "pause"])
def test_at_every_point_nobody_gets_a_mail_twice_and_nobody_is_dropped_in_silence(
    world: Any, mode: str
) -> None:
    checked(world, [(mode, point) for point in POINTS])
