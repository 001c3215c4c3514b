"""Which mails `queue delete`, `queue browse` and `queue export` are about, on real stores."""

import json
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from mailslice.maintenance.decision_files import write_decision
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.stores import open_stores
from mailslice.worker.enqueue.delayed_mails import Delays
from tests.acceptance.command import Cli
from tests.services.cli.test_queue import add


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


def names(cli, *words):
    return [line["name"] for line in cli.json("queue", "browse", "spool", *words)]


def test_delete_by_ids_on_stdin_takes_these_alone(cli):
    mails = add(cli, 4)
    ids = [mail["enqueueId"] for mail in mails]
    stdin = f"{ids[0]}\n\n{ids[2]}\n{uuid4()}\n".encode()
    words = ("queue", "delete", "spool", "--id", "-", "--yes")
    assert cli.json(*words, stdin=stdin)[0]["deleted"] == 2
    left = {line["enqueueId"] for line in cli.json("queue", "browse", "spool")}
    assert left == {ids[1], ids[3]}


def test_one_bad_line_on_stdin_deletes_nothing(cli):
    (mail,) = add(cli)
    stdin = f"{mail['enqueueId']}\nspool\n".encode()
    answer = cli("queue", "delete", "spool", "--id", "-", "--yes", stdin=stdin, code=2)
    assert "--id -: line 2: 'spool' is not an enqueue id" in answer.err
    assert len(names(cli)) == 1


def test_ids_on_stdin_need_yes_for_nobody_can_be_asked(cli):
    (mail,) = add(cli)
    stdin = mail["enqueueId"].encode()
    assert "--yes" in cli("queue", "delete", "spool", "--id", "-", stdin=stdin, code=2).err


def test_no_id_on_stdin_deletes_no_mail(cli):
    add(cli, 2)
    assert cli.json("queue", "delete", "spool", "--id", "-", "--yes")[0]["deleted"] == 0
    assert len(names(cli)) == 2


def test_delete_by_domain_and_by_patterns(cli):
    add(cli, recipient="ann@sub.example.net", name="one")
    add(cli, recipient="ann@EXAMPLE.net", name="two")
    add(cli, sender="bulk-7@lists.example.org", name="three")
    assert sorted(names(cli, "--domain", "example.net")) == ["three", "two"]
    assert names(cli, "--domain", "*.example.net") == ["one"]
    assert names(cli, "--sender", "bulk-?@LISTS.*") == ["three"]
    assert sorted(names(cli, "--name", "t*")) == ["three", "two"]
    deleted = cli.json("queue", "delete", "spool", "--name", "t*", "--domain", "*.net", "--yes")
    assert deleted[0]["deleted"] == 2
    assert names(cli) == ["one"]


def test_browse_goes_through_a_queue_by_pages(cli):
    ids = [mail["enqueueId"] for mail in add(cli, 5)]
    seen, after = [], ()
    while page := cli.json("queue", "browse", "spool", "--limit", 2, *after):
        seen += [line["enqueueId"] for line in page]
        after = ("--after", page[-1]["enqueueId"])
        cli("queue", "delete", "spool", "--id", page[-1]["enqueueId"], "--yes")
    assert seen == ids
    answer = cli("queue", "browse", "spool", "--after", uuid4(), code=2)
    assert "no row of mail" in answer.err


def test_browse_shows_what_is_due_before_a_time(cli):
    add(cli, name="now")
    for name, delay in (("soon", "1h"), ("late", "10h")):
        cli.json(
            *("mail", "enqueue", "spool", "-", "--sender", "a@example.org"),
            *("--recipient", "b@example.net", "--name", name, "--delay", delay),
            stdin=b"Subject: x\r\n\r\nbody",
        )
    assert names(cli, "--due-before", "2h") == ["soon"]
    assert names(cli, "--due-before", "2d", "--limit", 1) == ["soon"]
    assert names(cli, "--due-before", "2000-01-01") == []
    assert "--due-before" in cli("queue", "browse", "spool", "--due-before", "x", code=2).err


def test_retry_brings_delayed_mails_that_match_to_the_queue(cli):
    for name, recipient in (("one", "a@down.example"), ("two", "b@example.net")):
        cli.json(
            *("mail", "enqueue", "spool", "-", "--sender", "a@example.org"),
            *("--recipient", recipient, "--name", name, "--delay", "5h"),
            stdin=b"Subject: x\r\n\r\nbody",
        )
    add(cli, name="three", recipient="c@down.example")
    words = ("queue", "retry", "spool", "--domain", "DOWN.example", "--reason", "it is up")
    assert cli.json(*words, "--dry-run")[0]["retried"] == 1
    (answer,) = cli.json(*words)
    assert (answer["retried"], answer["pending"]) == (1, 0)
    due = {line["name"]: line["nextDelivery"] for line in cli.json("queue", "browse", "spool")}
    assert (due["one"], due["three"]) == (None, None)
    assert due["two"] is not None
    assert cli.json("queue", "retry", "spool", "--id", uuid4())[0]["retried"] == 0
    (newest, *_) = cli.json("decisions", "list", "--queue", "spool", "--since", "1h")[1:]
    assert (newest["action"], newest["mails"], newest["reason"]) == ("queue retry", 1, "it is up")
    assert newest["facts"]["filter"] == {"domain": "DOWN.example"}


def test_a_retry_fails_for_mails_that_are_overdue(cli, fresh_module):
    cli.json(
        *("mail", "enqueue", "spool", "-", "--sender", "a@example.org"),
        *("--recipient", "b@example.net", "--delay", "5h"),
        stdin=b"Subject: x\r\n\r\nbody",
    )
    with open_stores(fresh_module.settings) as stores:
        table = stores.own.delayed_mails
        (row,) = table.rows(cli.spool)
        past = system_clock() - timedelta(minutes=2)
        table.save(cli.spool, replace(row, due=past))
    answer = cli("queue", "retry", "spool", "--json", code=1)
    assert (answer.one["overdue"], answer.one["soon"]) == (1, 0)
    assert "`mailslice queue flush spool` delivers them" in answer.err
    assert cli.json("queue", "retry", "spool", "--dry-run")[0]["overdue"] == 1
    assert cli.json("queue", "flush", "spool")[0]["flushed"] == 1
    assert cli.json("queue", "retry", "spool")[0]["overdue"] == 0


def test_a_retry_that_fails_half_way_is_recorded(cli, monkeypatch):
    for _ in range(2):
        cli.json(
            *("mail", "enqueue", "spool", "-", "--sender", "a@example.org"),
            *("--recipient", "b@example.net", "--delay", "5h"),
            stdin=b"Subject: x\r\n\r\nbody",
        )
    calls = []

    async def second_fails(_, row, _right):
        calls.append(row)
        if len(calls) > 1:
            raise StoreUnavailable("away")
        return True

    monkeypatch.setattr(Delays, "bring_forward", second_fails)
    assert "away" in cli("queue", "retry", "spool", code=StoreUnavailable.exit_code).err
    (newest, *_) = cli.json("decisions", "list", "--queue", "spool", "--since", "1h")
    assert (newest["action"], newest["facts"]["retried"]) == ("queue retry", 1)


def test_what_was_done_to_which_mails_and_why_is_listed(cli):
    add(cli, 2, sender="bulk@example.org")
    cli("queue", "delete", "spool", "--sender", "bulk@*", "--yes", "--reason", "spam wave")
    cli("queue", "clear", "spool", "--yes")
    listed = cli.json("decisions", "list", "--queue", "spool", "--since", "1h")
    did = [line["action"] for line in listed]
    assert did == ["queue clear", "queue delete", "queue create"]
    assert (listed[1]["reason"], listed[1]["mails"]) == ("spam wave", 2)
    assert listed[1]["facts"]["filter"] == {"sender": "bulk@*"}
    assert "@" in listed[1]["who"]
    assert cli.json("decisions", "list", "--queue", "spool", "--until", "1h") == []
    assert cli.json("decisions", "list", "--queue", "other") == []
    assert cli("decisions", "list", "--since", "1h", "--until", "2h", code=2).err


def test_mails_are_counted_as_runs_of_airflow_write_them(cli, fresh_module):
    for action, facts in (
        ("queue republish", {"republished": 3, "mayBeDelivered": 0}),
        ("queue hold", {"held": 1}),
        ("queue release", {"released": 1}),
        ("queue release_stuck", {"released": 2, "gone": 0}),
    ):
        about = {"who": "ada", "queue": cli.spool, "reason": None, "facts": facts}
        write_decision(fresh_module.settings, system_clock(), action=action, **about)
    listed = cli.json("decisions", "list", "--queue", "spool", "--since", "1h")
    counts = {line["action"]: line["mails"] for line in listed}
    del counts["queue create"]
    assert counts == {
        "queue republish": 3,
        "queue hold": None,
        "queue release": None,
        "queue release_stuck": 2,
    }


def test_a_setting_makes_the_reason_required(cli):
    add(cli)
    strict = cli.but(MAILSLICE_ADMIN_REASON_REQUIRED="true")
    for words in (("queue", "clear", "spool", "--yes"), ("queue", "flush", "spool")):
        answer = strict(*words, "--reason", " ", code=2)
        assert "--reason TEXT" in answer.err
        assert "MAILSLICE_ADMIN_REASON_REQUIRED" in answer.err
    assert json.loads(strict("queue", "size", "spool", "--json").out)["size"] == 1
    assert strict("queue", "clear", "spool", "--dry-run", "--json").one["deleted"] == 1
    assert strict("queue", "clear", "spool", "--yes", "--reason", "done", "--json").one
