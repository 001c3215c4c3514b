"""Mail events: one line of JSON each, without addresses, written by nobody's event loop."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.names import queue_name
from mailslice.worker.events import EventLog, MailEvents, message_id_of, redacted

QUEUE = queue_name("spool")
MAIL = Mail("Mail1", "from@a.example", ("one@b.example", "two@b.example"))
ITEM = QueuedMail(EnqueueId(UUID(int=7)), MAIL, BlobId("h"), BlobId("b"))
NOW = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)


class Pipe:
    """An EventLog on a pipe."""

    def __init__(self, **options: Any) -> None:
        self.end, write_end = os.pipe()
        self._write_end = write_end
        self.log = EventLog(write_end, **options)

    def lines(self) -> list[dict[str, Any]]:
        self.log.close()
        os.close(self._write_end)
        with os.fdopen(self.end, "rb") as stream:
            return [json.loads(line) for line in stream]


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def events(pipe: Pipe, **options: Any) -> MailEvents:
    return MailEvents(QUEUE, "host:1:abc", pipe.log, clock=lambda: NOW, **options)


def test_an_event_is_one_line_with_stable_ids_and_no_address(pipe: Pipe) -> None:
    events(pipe).emit(
        "delivered",
        ITEM,
        attempt=2,
        messageId="<x@y>",
        answer="250 2.1.5 <one@b.example> OK\nqueued",
        why=None,
        seconds=0.0,
    )
    (line,) = pipe.lines()
    assert line == {
        "time": "2026-11-23T06:00:00Z",
        "event": "delivered",
        "queue": "spool",
        "worker": "host:1:abc",
        "enqueueId": str(ITEM.enqueue_id),
        "name": "Mail1",
        "recipients": 2,
        "attempt": 2,
        "messageId": "<x@y>",
        "answer": "250 2.1.5 <***> OK queued",
        "seconds": 0.0,
    }
    assert list(line)[:2] == ["time", "event"]


def test_addresses_are_written_where_the_setting_allows_it(pipe: Pipe) -> None:
    many = replace(ITEM, mail=replace(MAIL, recipients=tuple(f"r{n}@b.c" for n in range(60))))
    allowed = events(pipe, addresses=True)
    allowed.emit("accepted", ITEM)
    allowed.emit("accepted", many)
    first, second = pipe.lines()
    assert (first["from"], first["to"]) == ("from@a.example", list(MAIL.recipients))
    assert (second["recipients"], len(second["to"])) == (60, 50)


def test_a_line_is_never_longer_than_a_pipe_takes_whole(pipe: Pipe) -> None:
    """Several processes may write to one pipe: a longer line would be mixed with theirs."""
    long = tuple(f"{n}{'r' * 200}@b.example" for n in range(60))
    many = replace(ITEM, mail=replace(MAIL, recipients=long))
    emitting = events(pipe, addresses=True)
    emitting.emit("deferred", many, why="\u20ac" * 500)
    emitting.emit("accepted", replace(ITEM, mail=replace(MAIL, name="n" * 9000)))
    emitting.emit("dead_letter", replace(ITEM, mail=replace(MAIL, name="half \ud800" * 900)))
    pipe.log.close()
    os.close(pipe._write_end)
    with os.fdopen(pipe.end, "rb") as stream:
        raw = stream.readlines()
    assert max(map(len, raw)) <= 4096
    first, second, third = map(json.loads, raw)
    assert first["to"] == list(long[: len(first["to"])])
    assert (len(first["to"]), len(first["why"]), first["recipients"]) == (6, 500, 60)
    assert (second["name"], second["to"]) == ("n" * 2250, list(MAIL.recipients))
    assert third["enqueueId"] == str(ITEM.enqueue_id)


def test_that_lines_were_dropped_is_told_in_a_piece_of_its_own() -> None:
    """Added to a piece that is full it would make one longer than a pipe takes whole."""
    write_end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with write_end, end:
        end.settimeout(10)
        event_log = EventLog(write_end.fileno(), limit=4)
        for _ in range(20):
            event_log.put(b'{"text":"%s"}' % (b"x" * 1010))
        event_log.close()
        full, told = end.recv(1 << 16), end.recv(1 << 16)
    assert (len(full), json.loads(told)["lines"]) == (4 * 1022, 16)


def test_an_odd_mail_has_its_line_and_a_message_that_is_no_mail_too(pipe: Pipe) -> None:
    odd = replace(ITEM, mail=replace(MAIL, name="half \ud800 of a pair"))
    events(pipe).emit("attempt", odd)
    events(pipe).emit("dead_letter", None, why="not a mail")
    first, second = pipe.lines()
    assert first["name"] == "half \ud800 of a pair"
    assert (second["why"], "enqueueId" in second) == ("not a mail", False)


def test_a_field_that_cannot_be_shown_raises_nothing(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    class Unspeakable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    events(pipe).emit("deferred", ITEM, why=Unspeakable())
    assert pipe.lines() == []
    assert "an event was not written" in caplog.text


@pytest.mark.parametrize("blocking", [True, False])
def test_a_log_that_nobody_reads_holds_nobody_up_and_says_what_is_missing(
    *, blocking: bool
) -> None:
    """A full disc answers as a full pipe does that does not block: with an error."""
    pipe = Pipe(limit=2000)
    os.set_blocking(pipe._write_end, blocking)
    emitting = events(pipe)
    began = time.monotonic()
    for _ in range(10_000):  # a pipe takes 64 KiB, which are about 300 of them
        emitting.emit("delivered", ITEM, answer="250 " + "x" * 100)
    assert time.monotonic() - began < 5
    assert pipe.log.dropped > 5000
    lines: list[dict[str, Any]] = []

    def read() -> None:
        with os.fdopen(pipe.end, "rb") as stream:
            lines.extend(json.loads(line) for line in stream)

    reader = threading.Thread(target=read)
    reader.start()
    pipe.log.close(10)
    os.close(pipe._write_end)
    reader.join(10)
    lost = sum(line["lines"] for line in lines if line["event"] == "dropped_lines")
    kept = sum(line["event"] == "delivered" for line in lines)
    assert (kept + lost, lost) == (10_000, pipe.log.dropped)


def test_a_log_whose_reader_is_gone_ends_without_the_time_out() -> None:
    end, write_end = os.pipe()
    os.close(end)
    event_log = EventLog(write_end)
    for _ in range(20):  # of one write each
        event_log.put(b"x" * 4000)
    began = time.monotonic()
    event_log.close(timeout=30)
    os.close(write_end)
    assert time.monotonic() - began < 15


def test_without_a_log_nothing_is_done() -> None:
    assert not MailEvents(QUEUE, "", None).enabled
    MailEvents(QUEUE, "", None).emit("delivered", None, why=object())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("550 5.1.1 <joe.doe+x@b.example>: unknown", "550 5.1.1 <***>: unknown"),
        ("to:a@b,c@d.e;", "to:***,***;"),
        ("用户@例子.example is full", "*** is full"),
        (r'550 <"joe \"d\" doe"@b.example> is "full" a@b', '550 <***> is "full" ***'),
        ("no address\r\n here", "no address here"),
        ("x" * 600, "x" * 500),
    ],
)
def test_what_looks_like_an_address_is_redacted(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_long_text_without_blanks_is_redacted_at_once() -> None:
    """On the event loop: a handler's reason may be what it could not read."""
    began = time.thread_time()
    assert redacted("x" * 40_000 + " a@b.example") == "x" * 500
    assert redacted("x" * 400 + "@b.example") == "***"
    assert redacted('"\\' * 20_000 + "@b.example") == '"\\' * 250
    assert time.thread_time() - began < 0.5


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"Subject: x\r\nMessage-ID: <a@b>\r\n\r\nbody", "<a@b>"),
        (b"MESSAGE-id:\r\n <a@b>\r\n\r\nbody", "<a@b>"),
        (b"Message-Id: <a@b>\nX: y\n\nMessage-ID: <c@d>", "<a@b>"),
        (b"Subject: x\r\n\r\nMessage-ID: <c@d>\r\n", None),
        (b"Subject: x\n\nMessage-ID: <c@d>\n", None),
        (b"Message-ID: none\r\n\r\n", None),
        (b"", None),
        (memoryview(b"Message-ID: <a@b>\r\n"), "<a@b>"),
        (b"X: y\r\nMessage-Importance: high\r\nMessage-ID: <a@b>\r\n\r\n", "<a@b>"),
        (b"X: y\nMessage-Info: <i>\n\nMessage-ID: <c@d>", None),
    ],
)
def test_the_message_id_is_the_headers(content: bytes, expected: str | None) -> None:
    assert message_id_of(content) == expected
