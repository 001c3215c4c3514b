"""`mailslice duty` and `mailslice report`: a whole run, and one step at a time, without Airflow."""

import time
from pathlib import Path

import pytest

from tests.acceptance.command import Cli

pytestmark = pytest.mark.new_keyspaces

DATA = Path(__file__).parents[1] / "data"
REPORT_KEYS = {
    "run",
    "dagRun",
    "duty",
    "queue",
    "planned",
    "applied",
    "skipped",
    "failed",
    "skippedBy",
    "before",
    "after",
}


@pytest.fixture
def cli(fresh):
    cli = Cli(
        {**fresh.env, "MAILSLICE_QUEUE_SLICE_WINDOW": "1s", "MAILSLICE_QUEUE_SHARED": "false"}
    )
    inside = cli.inside()
    inside("queue", "create", "spool")
    inside("mail", "enqueue", "spool", DATA / "sample.mbox")
    time.sleep(1.1)
    inside("mail", "enqueue", "spool", DATA / "sample")
    # One at a time, so that the oldest are drained: mails are handed out as they become ready.
    inside("worker", "drain", "spool", "--max", 20, "--prefetch", 1)
    time.sleep(4)
    return cli


def test_list_names_the_duties_and_their_params(stack):
    duties = {line["duty"]: line for line in Cli(stack).json("duty", "list")}
    assert {"queue_cleanup", "queue_size"} <= duties.keys()
    assert {"grace", "reason", "dry_run", "max_share"} <= duties["queue_cleanup"]["params"].keys()


def test_a_run_ends_with_the_report_that_report_last_and_show_give(cli):
    dry = cli.inside().json(
        "duty", "run", "queue_cleanup", "--queue", "spool", "--grace", "2s", "--dry-run"
    )[-1]
    assert (dry["status"], dry["applied"]) == ("dry run", 0)
    assert dry["planned"] > 0
    report = cli.json(
        "duty",
        "run",
        "queue_cleanup",
        "--queue",
        "spool",
        "--grace",
        "2s",
        "--reason",
        "test",
        timeout=300,
    )[-1]
    assert report.keys() >= REPORT_KEYS
    assert (report["duty"], report["queue"], report["dagRun"], report["reason"]) == (
        "queue_cleanup",
        "spool",
        None,
        "test",
    )
    assert (report["planned"], report["applied"], report["skipped"], report["failed"]) == (
        dry["planned"],
        dry["planned"],
        0,
        0,
    )
    for key in ("before", "after"):
        assert report[key].keys() == {"browseStart", "contentStart", "live", "dead"}
    assert report["before"]["live"] == report["after"]["live"] == 8
    assert (
        cli("report", "last", "--duty", "queue_cleanup", "--queue", "spool", "--json").one == report
    )
    cli = cli.inside()
    assert cli("report", "show", report["run"], "--json").one == report
    assert [line["run"] for line in cli.json("report", "list", "--queue", "spool")] == [
        report["run"],
        dry["run"],
    ]
    assert cli.json("report", "list", "--limit", 1)[0]["run"] == report["run"]
    assert cli.json("queue", "size", "spool") == [{"queue": "spool", "size": 8}]


def test_one_step_at_a_time_goes_on_with_the_newest_run_that_waits(cli):
    inside = cli.inside()
    plan = inside(
        "duty",
        "plan",
        "queue_cleanup",
        "--queue",
        "spool",
        "--grace",
        "2s",
        "--reason",
        "by hand",
        "--json",
    ).one
    assert "duty plan" in inside("duty", "apply", "queue_cleanup", "--queue", "spool", code=2).err
    for step, by in (
        ("check", cli),
        ("apply", inside),
        ("verify", inside),
    ):  # one of another process: what they share is on disk and in the stores
        summary = by("duty", step, "queue_cleanup", "--queue", "spool", "--json", timeout=300).one
        assert (summary["run"], summary["step"]) == (plan["run"], step)
    report = inside("duty", "report", "queue_cleanup", "--queue", "spool", "--json").one
    assert (report["run"], report["reason"], report["params"]["grace"], report["applied"]) == (
        plan["run"],
        "by hand",
        "2s",
        plan["planned"],
    )
    assert inside("report", "last", "--json").one == report


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["duty", "run", "nope", "--queue", "spool"], "queue_cleanup"),
        (["duty", "run", "queue_cleanup"], "--queue"),
        (
            ["duty", "run", "queue_cleanup", "--queue", "spool", "--grace", "soon"],
            "'soon' is not a duration",
        ),
        (
            ["duty", "run", "queue_cleanup", "--queue", "spool", "--param", "colour=red"],
            "colour is not a param; allowed: ",
        ),
        (["duty", "run", "queue_cleanup", "--queue", "spool", "--param", "colour"], "NAME=VALUE"),
        (["duty", "verify", "queue_cleanup", "--queue", "spool"], "waits for verify"),
        (["report", "show", "nope"], "'nope' is not in the ledger"),
        (["report", "last", "--duty", "nope"], "queue_cleanup"),
        (["report", "last"], "there is no run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_exits_2(fresh_module, words, said):
    cli = Cli(fresh_module.env).inside()
    cli("queue", "create", "spool")
    answer = cli(*words, code=2)
    assert said in answer.err
    assert answer.out == b""
