"""`mail enqueue` against a worker double: envelopes, failures, and what is held in memory."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from mailslice.cli import bulk_enqueue
from mailslice.cli.bulk_enqueue import BulkEnqueue, EnvelopeOptions
from mailslice.cli.output import NoRoomError, Output, StdoutClosedError
from mailslice.codec.mime import envelope
from mailslice.model.errors import BadInput, BadSetting, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, QueuedMail

DATA = Path(__file__).parents[2] / "data"
MIB = 1024 * 1024


class FakeWorker:
    def __init__(self, delay=0.0):
        self.mails, self.contents, self.delays = [], [], []
        self.now = self.most = self.bytes_now = self.most_bytes = 0
        self.wait = delay
        self.error = lambda number: None

    async def enqueue(self, mail, content, *, delay=None):
        self.now, self.bytes_now = self.now + 1, self.bytes_now + len(content)
        self.most, self.most_bytes = max(self.most, self.now), max(self.most_bytes, self.bytes_now)
        await asyncio.sleep(self.wait)
        self.now, self.bytes_now = self.now - 1, self.bytes_now - len(content)
        error = self.error(len(self.mails))
        if error:
            raise error
        self.mails.append(mail)
        self.contents.append(bytes(content))
        self.delays.append(delay)
        return QueuedMail(EnqueueId(uuid4()), mail, BlobId("h"), BlobId("b"))


def given(**changes):
    return EnvelopeOptions(
        **{
            "sender": None,
            "recipients": (),
            "name": None,
            "state": "root",
            "delay": None,
            "max_bytes": 100 * MIB,
            **changes,
        }
    )


async def enqueue(worker, *paths, **changes):
    run = BulkEnqueue(worker, given(**changes), Output(as_json=True))
    await run.run([str(path) for path in paths])
    return run


async def test_every_sample_mail_is_enqueued_byte_for_byte_with_the_envelope_of_its_headers(capsys):
    worker = FakeWorker()
    run = await enqueue(worker, DATA / "sample")
    files = sorted((DATA / "sample").glob("*.eml"))
    assert (run.done, run.failures) == (len(files), [])
    assert sorted(worker.contents) == sorted(file.read_bytes() for file in files)
    lines = {
        Path(line["path"]).name: line
        for line in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert lines["15-null-sender-bounce.eml"]["sender"] is None
    assert lines["15-null-sender-bounce.eml"]["recipients"] == ["jon@mills.example"]
    assert lines["16-unicode-addresses.eml"]["sender"] == "πέτρος@λιμάνι.example"
    assert lines["16-unicode-addresses.eml"]["recipients"] == [
        "дарина@пошта.example",
        "山田@例え.example",
    ]
    assert lines["08-folded-headers.eml"]["recipients"] == [
        "jon@mills.example",
        "ada@mills.example",
        "comma@mills.example",
    ]
    assert len(lines["09-many-recipients.eml"]["recipients"]) == 60
    assert lines["25-list-mail.eml"]["sender"] == "rivers-bounces+jon=mills.example@lists.example"
    assert (
        lines["01-plain.eml"]["sha256"]
        == hashlib.sha256((DATA / "sample/01-plain.eml").read_bytes()).hexdigest()
    )
    assert len({line["name"] for line in lines.values()}) == len(files)


async def test_mbox_and_maildir_samples():
    worker = FakeWorker()
    run = await enqueue(worker, DATA / "sample.mbox", DATA / "maildir")
    assert (run.done, run.failures) == (6, [])
    assert [mail.sender for mail in worker.mails][:3] == [
        "mira@harbour.example",
        None,
        "ada@mills.example",
    ]


async def test_given_sender_and_recipients_win_over_the_headers():
    worker = FakeWorker()
    await enqueue(
        worker,
        DATA / "empty.eml",
        DATA / "sample/01-plain.eml",
        sender="<>",
        recipients=("x@y.example",),
        state="transport",
        delay=timedelta(minutes=1),
    )
    assert {(mail.sender, mail.recipients, mail.state) for mail in worker.mails} == {
        (None, ("x@y.example",), "transport")
    }
    assert worker.delays == [timedelta(minutes=1)] * 2


async def test_what_fails_is_listed_and_the_rest_goes_on(tmp_path):
    large, bare = tmp_path / "large.eml", tmp_path / "bare.eml"
    large.write_bytes(b"To: a@b.example\r\n\r\n" + b"x" * 2000)
    bare.write_bytes(b"Subject: to nobody\r\n\r\n")
    worker = FakeWorker()
    run = await enqueue(
        worker, tmp_path / "nothing.eml", large, bare, DATA / "sample/01-plain.eml", max_bytes=1000
    )
    assert run.done == 1
    failures = {Path(failure["path"]).name: failure["error"] for failure in run.failures}
    assert failures.keys() == {"nothing.eml", "large.eml", "bare.eml"}
    assert "1000 bytes (MAILSLICE_QUEUE_MAX_MAIL_BYTES)" in failures["large.eml"]
    assert failures["bare.eml"] == "the headers name no recipient; give --recipient"


async def test_one_mail_that_the_worker_refuses_stops_no_other(tmp_path):
    worker = FakeWorker()
    worker.refused = False

    def once(number):
        if number == 3 and not worker.refused:
            worker.refused = True
            return BadInput("not this one")
        return None

    worker.error = once
    run = await enqueue(worker, DATA / "sample")
    assert (run.done, [failure["error"] for failure in run.failures]) == (24, ["not this one"])


@pytest.mark.parametrize("deep", [b"(" * 600, b"(" * 3000 + b")" * 3000])
async def test_a_mail_with_deeply_nested_comments_is_a_mail_as_others(tmp_path, deep):
    (tmp_path / "0.eml").write_bytes(
        b"From: " + deep + b" <a@b.example>\r\nTo: " + deep + b" <c@d.example>\r\n\r\n"
    )
    worker = FakeWorker()
    run = await enqueue(worker, tmp_path, DATA / "sample")
    assert (run.done, run.failures) == (26, [])
    assert worker.mails[0].recipients == ("c@d.example",)


async def test_a_mail_whose_headers_cannot_be_read_is_listed_and_the_rest_goes_on(monkeypatch):
    def unexpected(content):
        if b"comma@mills.example" in content:
            raise RecursionError
        return envelope(content)

    monkeypatch.setattr(bulk_enqueue, "envelope", unexpected)
    worker = FakeWorker()
    run = await enqueue(worker, DATA / "sample")
    assert run.done == 24
    assert [(Path(failure["path"]).name, failure["error"]) for failure in run.failures] == [
        (
            "08-folded-headers.eml",
            "its headers cannot be read (RecursionError); give --sender and --recipient",
        )
    ]
    run = await enqueue(worker, DATA / "sample", sender="<>", recipients=("x@y.example",))
    assert (run.done, run.failures) == (25, [])


async def test_an_mbox_on_standard_input_is_many_mails_each_to_its_own_recipients(monkeypatch):
    with (DATA / "sample.mbox").open("rb") as file:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=file))
        worker = FakeWorker()
        run = await enqueue(worker, "-")
    other = FakeWorker()
    assert (await enqueue(other, DATA / "sample.mbox")).done == run.done > 1
    mails, others = (
        sorted(zip(each.contents, [mail.recipients for mail in each.mails], strict=True))
        for each in (worker, other)
    )
    assert mails == others


@pytest.mark.parametrize("kind", [StoreUnavailable, BadSetting])
async def test_a_store_that_goes_away_or_refuses_us_stops_the_reading_and_is_raised(capsys, kind):
    worker = FakeWorker()
    worker.error = lambda number: kind("S3 at 127.0.0.1:9 does not answer") if number >= 5 else None
    run = BulkEnqueue(worker, given(), Output(as_json=True))
    with pytest.raises(kind):
        await run.run([str(DATA / "sample")])
    assert run.done == 5
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert {failure["error"] for failure in run.failures} == {"S3 at 127.0.0.1:9 does not answer"}


class Full:
    """An output that fails from the second line on."""

    def __init__(self, error):
        self.error, self.lines = error, 0

    def line(self, _item, _sentence):
        self.lines += 1
        if self.lines > 1:
            raise self.error


async def test_a_mail_whose_line_finds_no_room_is_enqueued_not_failed():
    worker = FakeWorker(delay=0.01)
    run = BulkEnqueue(
        worker, given(), Full(NoRoomError("stdout cannot be written to: No space left on device"))
    )
    with pytest.raises(
        NoRoomError,
        match=(
            r"^stdout cannot be written to: No space left on device; \d+ mails were enqueued, "
            r"listed or not$"
        ),
    ) as raised:
        await run.run([str(DATA / "sample")])
    assert run.failures == []
    assert f"; {len(worker.mails)} mails" in str(raised.value)


@pytest.mark.parametrize("error", [StdoutClosedError(), ZeroDivisionError("a bug")])
async def test_the_error_that_stopped_it_is_raised_itself_also_when_it_was_long_ago(
    tmp_path, error
):
    for number in range(150):
        (tmp_path / f"{number:03}.eml").write_bytes(b"To: a@b.example\r\n\r\n%d" % number)
    worker = FakeWorker()
    run = BulkEnqueue(worker, given(), Full(error))
    with pytest.raises(type(error)) as raised:
        await run.run([str(tmp_path)])
    assert raised.value is error
    assert run.failures == []
    assert len(worker.mails) < 150


BOX = b"From a@b.example Sat Nov 21 10:00:00 2026\nTo: a@b.example\n\nx\n\n"


async def test_a_store_that_goes_away_while_standard_input_is_silent_ends_it(monkeypatch):
    reader, writer = os.pipe()
    try:
        os.write(writer, BOX * 2)
        with os.fdopen(reader, "rb") as stream:
            monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
            worker = FakeWorker(delay=0.2)
            worker.error = lambda _: StoreUnavailable("S3 at 127.0.0.1:9 does not answer")
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(
                    BulkEnqueue(worker, given(), Output(as_json=True)).run(["-"]), 60
                )
    finally:
        os.close(writer)


WITH_A_DOUBLE = """
import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
import mailslice.worker
from mailslice.cli import main

class Worker:
    async def enqueue(self, mail, content, *, delay=None):
        return SimpleNamespace(enqueue_id=1)

@asynccontextmanager
async def open_worker(settings, queue):
    yield Worker()

mailslice.worker.open_worker = open_worker
main.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_while_standard_input_stays_open_and_silent(number, code):
    words = [sys.executable, "-c", WITH_A_DOUBLE, "mail", "enqueue", "spool", "-", "--json"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            process.stdin.write(BOX * 2)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["path"] == "-#1", (
                "the first mail is whole when the next begins; now it waits"
            )
            process.send_signal(number)
            assert process.wait(60) == code
        finally:
            process.kill()


async def test_at_most_64_mails_are_in_flight(tmp_path):
    for number in range(200):
        (tmp_path / f"{number:03}.eml").write_bytes(b"To: a@b.example\r\n\r\n%d" % number)
    worker = FakeWorker(delay=0.2)
    run = await enqueue(worker, tmp_path)
    assert run.done == 200
    assert 32 < worker.most <= 64


async def test_bytes_in_flight_are_bounded_and_a_larger_mail_goes_alone(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}.eml").write_bytes(b"To: a@b.example\r\n\r\n" + b"x" * MIB)
    (tmp_path / "99.eml").write_bytes(b"To: a@b.example\r\n\r\n" + b"x" * 6 * MIB)
    worker = FakeWorker(delay=0.01)
    run = BulkEnqueue(worker, given(), Output(as_json=True), bytes_in_flight=4 * MIB)
    await run.run([str(tmp_path)])
    assert run.done == 21
    assert worker.most_bytes <= 6 * MIB + 100


async def test_names_are_unique_and_carry_the_time():
    worker = FakeWorker()
    await enqueue(worker, DATA / "sample")
    assert all(mail.name.startswith("Mail1") for mail in worker.mails)
    assert len({mail.name for mail in worker.mails}) == 25
