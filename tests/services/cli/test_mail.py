"""`mailslice mail enqueue` and `mailslice worker drain` on real stores: content byte for byte,
envelopes, failures, outcomes.
"""

import hashlib
import json
import time
from pathlib import Path

import pytest

from tests.acceptance.command import Cli

DATA = Path(__file__).parents[2] / "data"
ENVELOPE = ("--sender", "alice@example.org", "--recipient", "bob@example.net")


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


def sha(content):
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"MAILSLICE_QUEUE_TABLE": "v3"},
        {"MAILSLICE_BLOB_STRATEGY": "deduplication", "MAILSLICE_BLOB_ID": "generation-aware"},
        {"MAILSLICE_QUEUE_BUCKET_COUNT": "3", "MAILSLICE_QUEUE_SLICE_WINDOW": "1s"},
    ],
    ids=["default", "v3", "deduplication", "buckets"],
)
def test_what_was_enqueued_is_drained_byte_for_byte(fresh, settings):
    cli = Cli(fresh.env).inside().but(**settings)
    cli("queue", "create", "spool")
    enqueued = {
        line["enqueueId"]: line
        for line in cli.json(
            "mail", "enqueue", "spool", DATA / "sample", DATA / "sample.mbox", DATA / "maildir"
        )
    }
    assert len(enqueued) == 31
    drained = {
        line["enqueueId"]: line for line in cli.json("worker", "drain", "spool", "--max", 31)
    }
    keys = ("name", "sender", "recipients", "state", "sha256", "bytes")
    assert {key: tuple(line[k] for k in keys) for key, line in drained.items()} == {
        key: tuple(map(line.get, keys)) for key, line in enqueued.items()
    }
    files = {sha(path.read_bytes()) for path in (DATA / "sample").glob("*.eml")}
    assert files <= {line["sha256"] for line in drained.values()}
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]
    assert cli.json("worker", "drain", "spool", "--idle", "500ms") == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\r\n",
        b"\x00\xff",
        b"no header and no line end",
        b"A: b\r\n\r\n" + bytes(range(256)) * 5000,
    ],
    ids=len,
)
def test_any_bytes_on_stdin_are_a_mail(cli, content):
    [line] = cli.json("mail", "enqueue", "spool", "-", *ENVELOPE, stdin=content)
    assert (line["sender"], line["recipients"], line["sha256"], line["bytes"]) == (
        "alice@example.org",
        ["bob@example.net"],
        sha(content),
        len(content),
    )
    assert cli("mail", "show", "spool", "--id", line["enqueueId"], "--raw").out == content
    assert [line["sha256"] for line in cli.json("worker", "drain", "spool", "--max", 1)] == [
        sha(content)
    ]


def test_an_mbox_on_stdin_is_many_mails_each_to_its_own_recipients(cli):
    box = (DATA / "sample.mbox").read_bytes()
    piped, read = (
        cli.json("mail", "enqueue", "spool", path, stdin=box)
        for path in ("-", DATA / "sample.mbox")
    )
    told = [
        {
            line["path"].rpartition("#")[2]: (line["sender"], line["recipients"], line["sha256"])
            for line in lines
        }
        for lines in (piped, read)
    ]
    assert told[0] == told[1]
    assert {line["path"] for line in piped} == {f"-#{number + 1}" for number in range(len(piped))}
    assert len(piped) > 1
    assert len(cli.json("worker", "drain", "spool", "--max", 2 * len(piped))) == 2 * len(piped)


def test_all_of_two_thousand_recipients_with_quoted_names_are_drained(cli):
    recipients = [f"user{number:04}@example.org" for number in range(2000)]
    header = "To: " + ",\r\n ".join(f'"Last, First" <{recipient}>' for recipient in recipients)
    [line] = cli.json(
        "mail", "enqueue", "spool", "-", stdin=header.encode() + b"\r\nFrom: a@x.y\r\n\r\n"
    )
    [drained] = cli.json("worker", "drain", "spool", "--max", 1)
    assert (line["recipients"], drained["recipients"]) == (recipients, recipients)


@pytest.mark.parametrize("null", ["", "<>"])
def test_the_null_sender_is_null_everywhere(cli, null):
    [line] = cli.json(
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        null,
        "--recipient",
        "bob@example.net",
        stdin=b"x",
    )
    assert line["sender"] is None
    assert cli.json("queue", "browse", "spool", "--sender", null)[0]["sender"] is None
    assert cli.json("worker", "drain", "spool", "--max", 1)[0]["sender"] is None


def test_several_recipients_state_and_name(cli):
    words = [
        "--recipient",
        "дарина@пошта.example",
        "--recipient",
        "b@example.net",
        "--recipient",
        "b@example.net",
        "--state",
        "transport",
        "--name",
        "n 1",
    ]
    [line] = cli.json(
        "mail", "enqueue", "spool", "-", "--sender", "a@example.org", *words, stdin=b"x"
    )
    assert (line["recipients"], line["state"], line["name"]) == (
        ["дарина@пошта.example", "b@example.net"],
        "transport",
        "n 1",
    )
    [drained] = cli.json("worker", "drain", "spool", "--max", 1)
    assert (drained["recipients"], drained["state"], drained["name"]) == (
        ["дарина@пошта.example", "b@example.net"],
        "transport",
        "n 1",
    )


def test_failures_come_last_with_their_paths_and_the_rest_is_enqueued(cli, tmp_path):
    (tmp_path / "a-broken.mbox").write_bytes(b"this is no mbox\n")
    (tmp_path / "b-large.eml").write_bytes(b"To: a@b.example\r\n\r\n" + b"x" * 5000)
    (tmp_path / "c-nobody.eml").write_bytes(b"Subject: x\r\n\r\n")
    paths = [
        tmp_path / "a-broken.mbox",
        tmp_path / "b-large.eml",
        tmp_path / "c-nobody.eml",
        tmp_path / "nothing",
        DATA / "sample/01-plain.eml",
    ]
    lines = cli.but(MAILSLICE_QUEUE_MAX_MAIL_BYTES="4000").json(
        "mail", "enqueue", "spool", *paths, code=1
    )
    assert ["error" in line for line in lines] == [False, True, True, True, True]
    errors = {Path(line["path"]).name: line["error"] for line in lines[1:]}
    assert errors.keys() == {"a-broken.mbox", "b-large.eml", "nothing", "c-nobody.eml"}
    assert "not an mbox" in errors["a-broken.mbox"]
    assert "4000 bytes (MAILSLICE_QUEUE_MAX_MAIL_BYTES)" in errors["b-large.eml"]
    assert errors["c-nobody.eml"] == "the headers name no recipient; give --recipient"
    assert errors["nothing"] == "no such file or folder"
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 1}]


def test_failures_for_people_are_on_stderr(cli, tmp_path):
    answer = cli("mail", "enqueue", "spool", tmp_path / "nothing", code=1)
    assert answer.out == b""
    assert f"failed: {tmp_path}/nothing: no such file or folder\n" in answer.err
    assert answer.err.splitlines()[-1].startswith("mailslice: 1 of 1 mails were not enqueued")


def test_a_name_that_draws_on_terminals_is_shown_escaped(cli, tmp_path):
    evil = tmp_path / "\x1b[31mred\u202e.eml"
    evil.write_bytes(b"To: a@b.example\r\n\r\n")
    answer = cli("mail", "enqueue", "spool", evil)
    assert b"\x1b" not in answer.out
    assert b"\\x1b[31mred\\u202e.eml" in answer.out
    assert json.loads(cli("mail", "enqueue", "spool", evil, "--json").out)["path"] == str(evil)


def test_drain_takes_at_most_n_and_leaves_the_rest(cli):
    cli("mail", "enqueue", "spool", DATA / "sample")
    first = cli.json("worker", "drain", "spool", "--max", 7)
    assert len({line["enqueueId"] for line in first}) == 7
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 18}]
    rest = cli.json("worker", "drain", "spool")
    assert len({line["enqueueId"] for line in first + rest}) == 25
    assert {line["outcome"] for line in first} == {"success"}


def test_drain_of_an_empty_queue_ends_after_idle(cli):
    begun = time.monotonic()
    assert cli.json("worker", "drain", "spool", "--max", 3, "--idle", "1s") == []
    assert time.monotonic() - begun >= 1


def test_retried_mails_stay_and_come_again(cli):
    cli("mail", "enqueue", "spool", DATA / "sample")
    retried = cli.json("worker", "drain", "spool", "--max", 25, "--outcome", "retry")
    assert len({line["enqueueId"] for line in retried}) == 25
    assert {line["outcome"] for line in retried} == {"retry"}
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 25}]
    assert {line["enqueueId"] for line in cli.json("worker", "drain", "spool", "--max", 25)} == {
        line["enqueueId"] for line in retried
    }


def test_retry_without_a_number_ends(cli):
    cli("mail", "enqueue", "spool", DATA / "sample.mbox")
    assert len(cli.json("worker", "drain", "spool", "--outcome", "retry", "--idle", "1s")) == 3
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 3}]


def test_rejected_mails_are_dead_letters(cli):
    cli("mail", "enqueue", "spool", DATA / "sample.mbox")
    assert (
        len(
            cli.json(
                "worker", "drain", "spool", "--max", 2, "--outcome", "reject", "--reason", "spam"
            )
        )
        == 2
    )
    deadline = time.monotonic() + 30
    while (shown := cli("queue", "show", "spool", "--json").one)[
        "deadLetters"
    ] != 2 and time.monotonic() < deadline:
        time.sleep(1)
    assert shown["deadLetters"] == 2
    assert len(cli.json("worker", "drain", "spool")) == 1


def test_dropped_mails_do_not_count(cli):
    cli("mail", "enqueue", "spool", DATA / "sample.mbox", "--name", "gone")
    cli("queue", "delete", "spool", "--name", "gone", "--yes")
    [kept] = cli.json("mail", "enqueue", "spool", "-", *ENVELOPE, stdin=b"kept")
    assert [line["enqueueId"] for line in cli.json("worker", "drain", "spool", "--max", 1)] == [
        kept["enqueueId"]
    ]


def test_a_mail_whose_content_is_gone_is_a_dead_letter_and_the_next_goes_on(cli, s3):
    cli("mail", "enqueue", "spool", "-", *ENVELOPE, stdin=b"lost")
    row = cli.json("queue", "browse", "spool")[0]
    s3.delete_object(Bucket=cli.env["MAILSLICE_S3_BUCKET"], Key=row["bodyBlobId"])
    s3.delete_object(Bucket=cli.env["MAILSLICE_S3_BUCKET"], Key=row["headerBlobId"])
    [kept] = cli.json("mail", "enqueue", "spool", "-", *ENVELOPE, stdin=b"kept")
    assert [line["enqueueId"] for line in cli.json("worker", "drain", "spool", "--max", 1)] == [
        kept["enqueueId"]
    ]
