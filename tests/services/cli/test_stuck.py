"""`mailslice stuck` on real stores: what it lists, what it asks, what a person gets wrong."""

import itertools
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.cli.output import Output
from mailslice.codec import message
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.settings import load_settings
from mailslice.stores import open_stores
from mailslice.stores.cassandra.own.worker_records import InFlightMail, WorkerRecord
from mailslice.stores.own.locks import Locks
from tests.acceptance.command import Cli

pytestmark = pytest.mark.new_keyspaces

FIELDS = {"enqueueId", "name", "stage", "worker", "since", "action"}


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        yield stores


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


def enqueued(cli, *names):
    for name in names:
        cli(
            "mail",
            "enqueue",
            "spool",
            "-",
            "--name",
            name,
            "--sender",
            "a@b.example",
            "--recipient",
            "c@d.example",
            stdin=b"Subject: x\r\n\r\n" + name.encode(),
        )


def set_aside(cli, stores, *names, action="closed"):
    """As stuck_mails does: quarantine, then the mark."""
    enqueued(cli, *names)
    quarantine = Quarantine(stores, cli.spool, system_clock)
    for row in list(MailQueue(stores, cli.spool, system_clock).browse()):
        if row.item.mail.name not in names:
            continue
        holder = Holder(
            "host:1:abc", "loaded", system_clock() - timedelta(hours=1), timedelta(hours=1)
        )
        decided = Decided(action, "held for 1h, allowed are 10m", "tester")
        quarantine.settle(quarantine.keep(row.item, holder, decided))
        stores.tables.deleted.mark_many(cli.spool, [row.enqueue_id])


def test_a_queue_without_stuck_mails_has_none_and_says_so(fresh):
    cli = Cli(fresh.env).inside()
    cli("queue", "create", "spool")
    assert cli.json("stuck", "list", "spool") == []
    assert "no mail of spool is stuck" in cli("stuck", "list", "spool").err
    for words in (("release", "--all"), ("discard", "--all", "--yes")):
        answer = cli("stuck", words[0], "spool", *words[1:])
        assert (answer.out, "no mail of spool is in quarantine" in answer.err) == (b"", True)
    with open_stores(load_settings(fresh.env)) as stores:
        assert (
            stores.cassandra.execute(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = "
                f"'{fresh.env['MAILSLICE_OWN_KEYSPACE']}'"
            )
            == []
        )


def test_list_has_a_line_a_mail_and_a_table_for_people(cli, stores):
    set_aside(cli, stores, "one", 'two "é" \x1b[31m'.replace("\x1b", ""))
    lines = cli.json("stuck", "list", "spool")
    assert all(line.keys() >= FIELDS for line in lines)
    assert {(line["stage"], line["worker"], line["action"], line["content"]) for line in lines} == {
        ("loaded", "host:1:abc", "closed", "kept")
    }
    table = cli("stuck", "list", "spool").out.decode()
    assert all(word in table for word in (*FIELDS, "one", "closed", "host:1:abc"))


@pytest.fixture
def completed(cli, stores):
    """A mail that was set aside, and that its worker completed after all."""
    set_aside(cli, stores, "one")
    quarantine = Quarantine(stores, cli.spool, system_clock)
    for mail in quarantine.mails():
        quarantine.finished(mail, system_clock())


@pytest.mark.usefixtures("completed")
def test_the_table_says_that_a_worker_completed_a_mail_after_all_and_why_it_was_set_aside(cli):
    finished = cli.json("stuck", "list", "spool")[0]["finished"]
    table = cli("stuck", "list", "spool").out.decode()
    words = ("finished", finished, "content", "kept", "why", "held for 1h, allowed are 10m")
    assert [word for word in words if word not in table] == []


def test_release_is_a_new_entry_with_the_same_bytes(cli, stores):
    set_aside(cli, stores, "one", "two")
    (line,) = cli.json("stuck", "release", "spool", "--name", "one", "--reason", "it was a test")
    assert (line["name"], line["newEnqueueId"] != line["enqueueId"]) == ("one", True)
    (row,) = cli.json("queue", "browse", "spool")
    assert (row["enqueueId"], row["name"]) == (line["newEnqueueId"], "one")
    assert cli("mail", "show", "spool", "--name", "one", "--raw").out == b"Subject: x\r\n\r\none"
    assert [each["name"] for each in cli.json("stuck", "list", "spool")] == ["two"]
    drained = cli.json("worker", "drain", "spool", "--idle", "1s")
    assert [each["enqueueId"] for each in drained] == [line["newEnqueueId"]]
    now = system_clock()
    decisions = list(
        stores.own.decisions.list(cli.spool, now - timedelta(days=1), now + timedelta(days=1))
    )
    assert [(each.action, "it was a test" in each.why) for each in decisions] == [
        ("released", True)
    ]
    for time in ((), ("--since", "0001-01-01", "--until", "2099-12-31")):
        listed = cli.json("decisions", "list", "--queue", "spool", *time)
        assert [each["action"] for each in listed if each["by"] != "a person"] == ["released"]


def releases(cli, stores):
    now, day = system_clock(), timedelta(days=1)
    rows = stores.own.decisions.list(cli.spool, now - day, now + day)
    return [row.why for row in rows if row.action == "released"]


@pytest.fixture
def recorded():
    """A release is cut off when the row says that it is done, before its decision."""

    def reached(point):
        if point == "release:recorded":
            crash.arm(None)
            raise KeyboardInterrupt

    crash.arm(reached)
    yield
    crash.arm(None)


def test_a_release_that_was_cut_off_and_is_asked_again_has_its_decision(cli, stores, recorded):
    set_aside(cli, stores, "one")
    cli("stuck", "release", "spool", "--name", "one", code=130)
    assert releases(cli, stores) == []
    (line,) = cli.json("stuck", "release", "spool", "--name", "one")
    assert [line["newEnqueueId"] in why for why in releases(cli, stores)] == [True]
    assert [one["enqueueId"] for one in cli.json("queue", "browse", "spool")] == [
        line["newEnqueueId"]
    ]
    assert cli.json("stuck", "list", "spool") == []


def test_a_mail_that_a_release_brought_to_its_queue_is_not_discarded(cli, stores, recorded):
    set_aside(cli, stores, "one")
    cli("stuck", "release", "spool", "--name", "one", code=130)
    assert (
        "cannot be discarded: it is released"
        in cli("stuck", "discard", "spool", "--all", "--yes", code=1).err
    )
    assert [one["name"] for one in cli.json("queue", "browse", "spool")] == ["one"]


def test_a_release_whose_lock_is_not_given_back_is_done(cli, stores, monkeypatch):
    def away(*_):
        raise StoreUnavailable("no answer")

    set_aside(cli, stores, "one")
    monkeypatch.setattr(Locks, "release", away)
    (line,) = cli.json("stuck", "release", "spool", "--name", "one")
    assert [line["newEnqueueId"] in why for why in releases(cli, stores)] == [True]


def test_what_was_decided_when_a_signal_came_is_recorded(cli, stores, monkeypatch):
    set_aside(cli, stores, "one", "two")

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Output, "line", interrupted)
        cli("stuck", "release", "spool", "--all", code=130)
    listed = cli.json("decisions", "list", "--queue", "spool")
    assert [one["mails"] for one in listed if one["action"] == "stuck release"] == [1]


def test_release_of_all_goes_on_past_those_whose_content_is_lost(cli, stores):
    enqueued(cli, "lost")
    (row,) = MailQueue(stores, cli.spool, system_clock).browse()
    stores.blobs.delete_many([row.item.body_blob_id])
    set_aside(cli, stores, "lost", "whole")
    answer = cli("stuck", "release", "spool", "--all", "--json", code=1)
    assert {
        line["name"]: "error" in line
        for line in answer.lines
        if "error" not in line or line["error"]
    }["whole"] is False
    assert "lost" in answer.err
    assert {line["content"] for line in cli.json("stuck", "list", "spool")} == {"content lost"}
    assert "whole" in {line["name"] for line in cli.json("queue", "browse", "spool")}


@pytest.mark.usefixtures("completed")
def test_release_of_all_leaves_what_its_worker_completed_after_all_and_by_name_does_not(cli):
    (line,) = cli.json("stuck", "release", "spool", "--all")
    assert "completed it after all" in line["skipped"]
    assert cli.json("queue", "browse", "spool") == []
    assert cli.json("stuck", "list", "spool")[0]["finished"] is not None
    assert cli.json("stuck", "release", "spool", "--name", "one")[0]["newEnqueueId"]


def test_discard_removes_for_good(cli, stores):
    set_aside(cli, stores, "one", "two")
    (line,) = cli.json("stuck", "discard", "spool", "--name", "two")
    assert (line["name"], line["discarded"]) == ("two", True)
    assert [each["name"] for each in cli.json("stuck", "list", "spool")] == ["one"]
    assert len(list(stores.own_blobs.list(f"quarantine/{cli.spool}/"))) == 2
    cli("stuck", "discard", "spool", "--all", "--yes", "--reason", "done")
    assert (
        cli.json("stuck", "list", "spool"),
        list(stores.own_blobs.list(f"quarantine/{cli.spool}/")),
    ) == ([], [])
    assert cli.json("queue", "browse", "spool") == []


def test_what_shadow_mode_noted_is_listed_and_neither_released_nor_discarded(cli, stores):
    set_aside(cli, stores, "kept")
    enqueued(cli, "one")
    (row,) = MailQueue(stores, cli.spool, system_clock).browse()
    now = system_clock()
    mail = InFlightMail(
        row.enqueue_id,
        "one",
        timedelta(hours=1),
        "loaded",
        1,
        begun=True,
        message=message.encode(row.item),
    )
    record = WorkerRecord("w1", "h", 1, now, timedelta(seconds=1), 1, (mail,))
    ended = threading.Event()

    def speak():
        for beat in itertools.count(1):
            stores.own.worker_records.save_future(cli.spool, replace(record, beat=beat)).result()
            if ended.wait(0.2):
                return

    speaking = threading.Thread(target=speak)
    speaking.start()
    try:
        report = cli.json("duty", "run", "stuck_mails", "--queue", "spool", "--mode", "shadow")[-1]
    finally:
        ended.set()
        speaking.join()
    kept, noted = cli.json("stuck", "list", "spool")
    assert kept.keys() == noted.keys()
    assert (noted["name"], noted["action"], noted["state"], noted["content"], noted["worker"]) == (
        "one",
        "would close",
        "noted",
        "not copied",
        "w1",
    )
    assert (noted["run"], noted["who"], noted["finished"]) == (report["run"], report["who"], None)
    assert {type(kept[name]) for name in kept if name != "finished"} >= {str, int, float}
    assert all(type(noted[name]) is type(kept[name]) for name in kept)
    assert "would close" in cli("stuck", "list", "spool").out.decode()
    assert "shadow mode" in cli("stuck", "release", "spool", "--name", "one", code=2).err
    discarded = cli.json("stuck", "discard", "spool", "--all", "--yes")
    assert [line["name"] for line in discarded] == ["kept"]
    assert len(cli.json("queue", "browse", "spool")) == 1


@pytest.mark.parametrize("doing", ["release", "discard"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--name"),
        (("--name", "x", "--all"), "--name"),
        (("--name", "nobody"), "'nobody'"),
        (("--all", "--nonsense"), "nonsense"),
    ],
)
def test_wrong_arguments_exit_2_and_change_nothing(cli, stores, doing, words, said):
    set_aside(cli, stores, "one")
    answer = cli("stuck", doing, "spool", *words, "--yes", "--json", code=2)
    assert (answer.out, said in answer.err) == (b"", True)
    assert len(cli.json("stuck", "list", "spool")) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("list", "nowhere"),
        ("release", "nowhere", "--all"),
        ("discard", "nowhere", "--all", "--yes"),
    ],
)
def test_an_unknown_queue_exits_2(cli, words):
    assert "nowhere" in cli("stuck", *words, "--json", code=2).err
