"""`mailslice queue hold`, `release`, `holds`, and what `queue list` says of them."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.admin import holds
from mailslice.admin.moves import Moves
from mailslice.model.clock import system_clock
from mailslice.model.errors import ClockSkew, StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.stores import open_stores
from mailslice.stores.cassandra.own import WorkerRecord, WorkerRecords
from tests.acceptance.command import Cli
from tests.services.cli.test_queue import add
from tests.services.hop_queue import consumed


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


def why(cli):
    """As `queue list` says it; RabbitMQ's figures of a new queue are seconds behind."""
    return next(line["why"] for line in cli.json("queue", "list") if line["queue"] == "spool")


def test_a_held_queue_says_so_until_it_is_released(cli):
    add(cli, 2)
    words = ("queue", "hold", "spool", "--for", "2h", "--reason", "a storm of bounces")
    (held,) = cli.json(*words)
    left = datetime.fromisoformat(held["until"]) - datetime.now(UTC)
    assert timedelta(minutes=119) < left <= timedelta(hours=2)
    assert (held["queue"], held["domain"], held["reason"]) == ("spool", None, "a storm of bounces")
    assert "@" in held["who"]
    assert held["appliesTo"] == "mailslice's workers; James' consumers are not affected"
    assert cli.json("queue", "holds", "spool") == [held]
    assert held in cli.json("queue", "holds")
    assert cli.json("queue", "holds", "other") == []
    assert "held: the whole queue since" in why(cli)
    assert "a storm of bounces (James' consumers are not affected)" in why(cli)
    assert cli.json("queue", "release", "spool", "--reason", "over")[0]["released"] == 1
    assert cli.json("queue", "release", "spool")[0]["released"] == 0
    assert held not in cli.json("queue", "holds")
    assert "held" not in why(cli)
    did = cli.json("decisions", "list", "--queue", "spool", "--since", "1h")
    assert [line["action"] for line in did][:3] == ["queue release", "queue release", "queue hold"]
    assert (did[1]["reason"], did[2]["reason"]) == ("over", "a storm of bounces")
    assert did[2]["facts"]["until"] == held["until"]


def test_domains_are_held_and_released_one_by_one(cli):
    words = ("queue", "hold", "spool", "--reason", "they block us")
    held = cli.json(*words, "--domain", "B.example.", "--domain", "bücher.example")
    assert [one["domain"] for one in held] == ["b.example", "xn--bcher-kva.example"]
    assert [one["until"] for one in held] == [None, None]
    assert "; and 1 more: mailslice queue holds" in why(cli)
    answer = cli("queue", "release", "spool")
    assert "still held: domain b.example since" in answer.err
    assert len(cli.json("queue", "holds", "spool")) == 2
    released = cli.json(
        "queue", "release", "spool", "--domain", "b.EXAMPLE", "--domain", "c.example"
    )
    assert (released[0]["released"], released[0]["domains"]) == (1, ["b.example"])
    assert [one["domain"] for one in cli.json("queue", "holds", "spool")] == [
        "xn--bcher-kva.example"
    ]


def test_held_again_it_began_when_it_did_and_ends_when_it_is_said(cli):
    (first,) = cli.json("queue", "hold", "spool", "--for", "1h", "--reason", "one")
    (second,) = cli.json("queue", "hold", "spool", "--for", "3h", "--reason", "two")
    assert (second["since"], second["reason"]) == (first["since"], "two")
    assert second["until"] > first["until"]
    assert cli.json("queue", "holds", "spool") == [second]


def test_a_hold_ends_by_itself(cli):
    cli.json("queue", "hold", "spool", "--for", "1s", "--reason", "short")
    cli.json("queue", "hold", "spool", "--domain", "b.example", "--for", "1s", "--reason", "short")
    for _ in range(20):
        if not (held := cli.json("queue", "holds", "spool")):
            break
        time.sleep(0.2)  # twenty look-ups alone may take less than the second of the hold
    assert held == []


def test_what_is_refused(cli):
    for words, text in (
        (("--reason", " "), "needs a reason"),
        ((), "needs a reason"),
        (("--reason", "r", "--domain", "a@b.example"), "--domain: 'a@b.example' is not allowed"),
        (("--reason", "r", "--domain", "*.example"), "--domain: '*.example' is not allowed"),
        (("--reason", "r", "--for", "0s"), "at least 1s"),
    ):
        assert text in cli("queue", "hold", "spool", *words, code=2).err
    assert "no mail queue 'other'" in cli("queue", "hold", "other", "--reason", "r", code=2).err
    assert cli.json("queue", "holds", "spool") == []


def test_by_a_clock_that_is_off_nothing_is_held_released_or_delayed(cli, fresh_module):
    """Workers would take the end of the hold for past, and the delayed mail for due. A release from
    a machine that is ahead would hide later holds.
    """
    with open_stores(fresh_module.settings) as stores:
        queue = QueueName(cli.spool)

        def behind():
            return datetime.now(UTC) - timedelta(hours=1)

        about = {"who": "me", "reason": "r", "lasts": timedelta(minutes=30)}
        with pytest.raises(ClockSkew, match=r"3\d{3}\.\d+ s ahead of this machine's"):
            holds.hold(stores, queue, behind, **about)
        assert holds.active_holds(stores, behind, queue) == {}
        with pytest.raises(ClockSkew):
            holds.release(stores, queue, behind)
        due = behind() + timedelta(minutes=30)
        with consumed(stores, queue), pytest.raises(ClockSkew):
            Moves(stores, queue, behind).move((), queue, why="", who="me", due=due)


def test_a_hold_and_a_release_that_a_later_clock_hides_are_not_said_to_be_done(cli, fresh_module):
    """Each operator's machine gives its writes its own time."""
    with open_stores(fresh_module.settings) as stores:
        queue, table = QueueName(cli.spool), stores.own.holds.TABLE
        name = f"{stores.settings.own.keyspace}.{table}"
        soon = int((time.time() + 20) * 1_000_000)
        stores.cassandra.execute(
            f"INSERT INTO {name} (queuename, domain, since, held_by, reason, change) VALUES "
            f"('{queue}', '', 0, 'other', 'r', 'c') USING TIMESTAMP {soon}"
        )
        with pytest.raises(StoreUnavailable, match="a clock that is ahead"):
            holds.release(stores, queue, system_clock)
        stores.cassandra.execute(
            f"DELETE FROM {name} USING TIMESTAMP {soon} WHERE queuename = '{queue}'"
        )
        with pytest.raises(StoreUnavailable, match="a clock that is ahead"):
            holds.hold(stores, queue, system_clock, who="me", reason="r")
        assert holds.active_holds(stores, system_clock, queue) == {}


def test_workers_that_know_a_hold_are_counted(cli, fresh_module):
    (held,) = cli.json("queue", "hold", "spool", "--reason", "r")
    assert (held["seenBy"], held["workers"]) == (0, 0)
    with open_stores(fresh_module.settings) as stores:
        (row,) = stores.own.holds.list(QueueName(cli.spool))
        table = WorkerRecords.created(stores.cassandra, stores.settings)
        one = WorkerRecord("w", "h", 1, datetime.now(UTC), timedelta(seconds=5), 1)
        for number, known in enumerate(((row.change,), ("earlier",), ())):
            table.save_future(
                QueueName(cli.spool), replace(one, worker=f"w{number}", holds=known)
            ).result()
        table.save_future(QueueName(cli.spool), replace(one, worker="ended", ended=True)).result()
    (shown,) = cli.json("queue", "holds", "spool")
    assert (shown["seenBy"], shown["workers"]) == (1, 3)
