"""Names, addresses, places and times as nobody would choose them, and commands that meet each
other.
"""

import json
import shlex
import uuid

import pytest

from mailslice.codec.shown import shown
from tests.acceptance.command import Cli

pytestmark = pytest.mark.new_keyspaces

ENVELOPE = ("--sender", "alice@example.org", "--recipient", "bob@example.net")
NAMES = (
    "with space",
    "ümläut-😀#%2F?c&d",
    "..",
    "-dash",
    "Ü" * 100,
    "\u202egnp.exe",
    "$(x)`y`;'\"*[c]",
)


@pytest.fixture(scope="module")
def cli(fresh_module):
    return Cli(fresh_module.env).inside()


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_may_have_an_odd_name_in_every_command(cli, name):
    def lines(*words, stdin=None):
        last = (
            [name]
            if words[-1] == "--queue"
            else ["--", name, "-"]
            if words[0] == "mail"
            else ["--", name]
        )
        return cli("--json", *words, *last, stdin=stdin).lines

    for _ in range(2):
        [made] = lines("queue", "create")
        assert (made["queue"], made["size"]) == (name, 0)
    assert name in [line["queue"] for line in cli.json("queue", "list")]
    assert "\u202e" not in cli("queue", "list").out.decode()
    [mail] = lines("mail", "enqueue", *ENVELOPE, stdin=b"x")
    said = cli("queue", "audit", "--", name, code=2).err
    assert said.endswith(f": mailslice duty run queue_audit --queue {shown(shlex.quote(name))}\n")
    assert lines("queue", "size") == [{"queue": name, "size": 1}]
    assert [line["enqueueId"] for line in lines("queue", "browse")] == [mail["enqueueId"]]
    assert lines("queue", "delete", "--name", "other", "--yes")[0]["deleted"] == 0
    assert lines("queue", "flush") == [{"queue": name, "flushed": 0}]
    report = lines("duty", "run", "stuck_mails", "--queue")[-1]
    assert (report["queue"], report["failed"]) == (name, 0)
    assert lines("report", "last", "--queue") == [report]
    assert [line["enqueueId"] for line in lines("worker", "drain", "--max", 1)] == [
        mail["enqueueId"]
    ]
    assert lines("queue", "clear", "--yes")[0]["deleted"] == 0


@pytest.mark.parametrize("name", ["a/b", "a\nb", "", "x" * 201, "Ü" * 101])
def test_a_name_that_no_queue_may_have_exits_2_everywhere(cli, name):
    for words in (
        ["queue", "create"],
        ["queue", "size"],
        ["worker", "drain"],
        ["mail", "show", "--name", "x"],
    ):
        answer = cli(*words, "--", name, code=2)
        assert answer.err.startswith("mailslice: queue name ")
        assert len(answer.err.splitlines()) == 1


def test_a_queue_of_another_program_that_looks_like_one_of_ours_is_not_listed(cli):
    import pika

    cli("queue", "create", "spool")
    with pika.BlockingConnection(
        pika.URLParameters(cli.env["MAILSLICE_RABBITMQ_URL"])
    ) as connection:
        channel = connection.channel()
        channel.exchange_declare("JamesMailQueue-exchange-a/b", "direct", durable=True)
        channel.queue_declare("JamesMailQueue-workqueue-a/b", durable=True)
    listed = [line["queue"] for line in cli.json("queue", "list")]
    assert "spool" in listed
    assert "a/b" not in listed


def test_addresses_of_any_script_are_found_without_regard_to_case(cli):
    cli = cli.own_queue()
    cli(
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        "jörg@exämple.org",
        "--recipient",
        "用户@例え.jp",
        "--name",
        "ünï",
        stdin=b"x",
    )
    for words in (
        ["--sender", "JÖRG@EXÄMPLE.org"],
        ["--recipient", "用户@例え.JP"],
        ["--name", "ünï"],
    ):
        assert [line["sender"] for line in cli.json("queue", "browse", "spool", *words)] == [
            "jörg@exämple.org"
        ]
    assert cli.json("queue", "delete", "spool", "--sender", "<>", "--dry-run") == [
        {"queue": "spool", "deleted": 0, "dryRun": True}
    ]


@pytest.mark.parametrize(
    ("age", "found"),
    [("0s", 1), ("PT0S", 1), ("1h", 0), ("P1D", 0), ("99999999d", 0), ("P400000D", 0)],
)
def test_any_age_is_one_of_the_past(cli, age, found):
    cli = cli.own_queue()
    cli("mail", "enqueue", "spool", "-", *ENVELOPE, stdin=b"x")
    assert len(cli.json("queue", "browse", "spool", "--older-than", age)) == found
    (answer,) = cli.json(
        "queue", "delete", "spool", "--sender", "alice@example.org", "--older-than", age, "--yes"
    )
    assert answer["deleted"] == found


def test_what_is_done_is_answered_although_it_cannot_be_recorded(cli, caplog):
    cli = cli.own_queue()
    cli("mail", "enqueue", "spool", "-", *ENVELOPE, stdin=b"x")
    answer = cli.but(MAILSLICE_ARTIFACTS="/proc/nowhere")(
        "queue", "clear", "spool", "--yes", "--reason", "test", "--json"
    )
    assert answer.one["deleted"] == 1
    assert "was done, but not recorded: artifacts /proc/nowhere/" in caplog.text


def test_an_artifacts_location_that_cannot_be_written_is_named(cli):
    cli = cli.own_queue().but(MAILSLICE_ARTIFACTS="/proc/nowhere")
    assert (
        "MAILSLICE_ARTIFACTS must be a folder that can be written"
        in cli("duty", "run", "stuck_mails", "--queue", "spool", code=2).err
    )


def test_a_vhost_that_is_not_there_exits_2(cli):
    elsewhere = cli.but(
        MAILSLICE_RABBITMQ_URL=cli.env["MAILSLICE_RABBITMQ_URL"].rpartition("/")[0] + "/no%20such"
    )
    for words in (
        ["queue", "list"],
        ["queue", "size", "spool"],
        ["mail", "enqueue", "spool", "-", *ENVELOPE],
    ):
        assert "'no such'" in elsewhere(*words, code=2, stdin=b"x").err


def test_a_user_may_be_percent_encoded_in_every_url(cli):
    def encoded(url):
        head, _, partition = url.rpartition("@")
        scheme, _, userinfo = head.partition("://")
        return (
            f"{scheme}://"
            + ":".join("".join(f"%{ord(c):02X}" for c in word) for word in userinfo.split(":"))
            + f"@{partition}"
        )

    keys = f"{cli.env['MAILSLICE_S3_ACCESS_KEY']}:{cli.env['MAILSLICE_S3_SECRET_KEY']}"
    urls = {
        name: encoded(cli.env[name])
        for name in ("MAILSLICE_RABBITMQ_URL", "MAILSLICE_RABBITMQ_MANAGEMENT_URL")
    }
    urls["MAILSLICE_S3_ENDPOINT"] = encoded(
        cli.env["MAILSLICE_S3_ENDPOINT"].replace("://", f"://{keys}@")
    )
    other = cli.own_queue().but(**urls, MAILSLICE_S3_ACCESS_KEY="", MAILSLICE_S3_SECRET_KEY="")
    other("mail", "enqueue", "spool", "-", *ENVELOPE, stdin=b"x")
    assert [line["bytes"] for line in other.json("worker", "drain", "spool", "--max", 1)] == [1]
    assert other.json("queue", "list")


def test_contact_points_may_have_ports_and_brackets(cli):
    port = cli.env["MAILSLICE_CASSANDRA_PORT"]
    many = cli.own_queue().but(
        MAILSLICE_CASSANDRA_CONTACT_POINTS=f"127.0.0.1:{port}, [::1]:{port}",
        MAILSLICE_CASSANDRA_PORT="9",
    )
    assert many.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]


def test_first_commands_that_meet_create_everything_once(fresh):
    cli = Cli(fresh.env)
    running = [
        cli.start("queue", "create", name, "--json") for name in ("spool", "spool", "outgoing")
    ]
    answers = [process.communicate(timeout=100) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], answers
    assert [json.loads(out)["queue"] for out, _ in answers] == ["spool", "spool", "outgoing"]
    assert [err for _, err in answers] == [b"", b"", b""]
    assert cli.inside().json("config", "check")[0]["verdict"] == "same"


def test_two_that_delete_the_same_mails_count_each_once_or_twice_and_leave_none(cli, tmp_path):
    cli = cli.own_queue()
    mbox = tmp_path / "many.mbox"
    mbox.write_bytes(
        b"From a Thu Nov 19 08:12:00 2026\nFrom: a@b.example\nTo: c@d.example\n\nx\n\n" * 300
    )
    cli("mail", "enqueue", "spool", mbox)
    outside = Cli(cli.env)
    running = [
        outside.start("queue", "delete", cli.spool, "--sender", "a@b.example", "--yes", "--json")
        for _ in range(2)
    ]
    counts = [json.loads(process.communicate(timeout=100)[0])["deleted"] for process in running]
    assert 300 <= sum(counts) <= 600
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 0}]


def test_a_param_that_comes_after_the_plan_that_it_would_change_exits_2(cli):
    cli = cli.own_queue()
    about = ("stuck_mails", "--queue", "spool", "--run", f"r-{uuid.uuid4().hex[:8]}")
    cli("duty", "plan", *about, "--mode", "close")
    cli("duty", "check", *about, "--most", 5)
    refused = cli("duty", "apply", *about, "--mode", "shadow", code=2)
    assert "mode='shadow': the plan was made with another value" in refused.err
    cli("duty", "apply", *about, "--mode", "close", "--intensity", 0.5)


def test_a_dry_run_is_applied_with_its_own_params(cli):
    cli = cli.own_queue()
    cleanup = ("queue_cleanup", "--queue", "spool")
    dry = cli.json("duty", "run", *cleanup, "--dry-run", "--grace", "7m", "--sweep")[-1]
    about = (*cleanup, "--run", dry["run"])
    for step in ("apply", "verify"):
        cli("duty", step, *about)
    params = cli("duty", "report", *about, "--json").one["params"]
    assert (params["grace"], params["sweep"], params["dry_run"]) == ("7m", True, False)


def test_a_run_that_nobody_made_exits_2(cli):
    run = uuid.uuid4().hex
    assert run in cli("report", "show", run, code=2).err
    assert (
        run
        in cli.own_queue()(
            "duty", "apply", "stuck_mails", "--queue", "spool", "--run", run, code=3
        ).err
    )
