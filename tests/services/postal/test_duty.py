"""The duty stuck_mails_postal on a real MariaDB: what each mode does with each row."""

from __future__ import annotations

import hashlib
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mailslice.model import crash
from mailslice.stores import open_stores
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.postal.changes import PostalChanges
from mailslice.stores.postal.rows import PostalQueue
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin
from mailslice.testing.postal.mails import INCOMING, Ended, PostalMail, PostalMails
from mailslice.testing.postal.tasks import tidy
from tests.acceptance.command import Cli
from tests.conftest import Fresh
from tests.ports import free_port

KINDS = ("closed", "retried", "completed", "lost", "failed", "skipped", "left")


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


def duty(cli: Cli, *words: str, code: int = 0) -> dict:
    return cli("duty", "run", "stuck_mails_postal", *words, "--json", code=code).lines[-1]


def counts(report: dict) -> dict[str, int]:
    return {kind: report[kind] for kind in KINDS if report[kind]}


def queue(postal: FreshPostal) -> dict[int, dict]:
    rows = postal.main.rows("SELECT * FROM queued_messages ORDER BY id")
    return {row["id"]: row for row in rows}


def entries(env: Fresh) -> list[PostalEntry]:
    with open_stores(env.settings) as stores:
        return list(stores.records.postal_quarantine.list())


def message(postal: FreshPostal, mail: PostalMail) -> dict:
    session = postal.servers[mail.server].session
    (row,) = session.rows("SELECT * FROM messages WHERE id = %s", mail.message)
    return row


def records(postal: FreshPostal, mail: PostalMail) -> list[dict]:
    sql = "SELECT * FROM deliveries WHERE message_id = %s ORDER BY id"
    return postal.servers[mail.server].session.rows(sql, mail.message)


def test_shadow_says_what_is_stuck_and_changes_nothing(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    stuck = mails.mail(postal.servers[1], Ended.LOCKED)
    mails.mail(postal.servers[2], Ended.NOT_YET)
    mails.mail(postal.servers[2], Ended.LOCKED, locked_for=timedelta(minutes=5))
    before = queue(postal)
    report = duty(cli)
    assert (report["mode"], report["found"], report["status"]) == ("shadow", 1, "nothing to do")
    assert counts(report) == {}
    assert report["remaining"] == 0
    assert report["lockTimeoutSeconds"] == 600
    assert report["p99Seconds"] is None
    assert queue(postal) == before
    assert records(postal, stuck) == []
    assert entries(postal_env) == []


def test_where_there_are_no_queues_of_james_one_that_is_named_is_ignored(cli: Cli) -> None:
    answer = cli("duty", "run", "stuck_mails_postal", "--queue", "spool", "--json")
    words = "duty stuck_mails_postal is about all queues: --queue spool is ignored"
    assert words in answer.err.splitlines()
    assert answer.lines[-1]["status"] == "nothing to do"


def test_shadow_says_what_close_and_retry_would_do_with_each_row(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    rows = {
        mails.mail(postal.servers[1], Ended.LOCKED).queued: ("closed", "holder may live"),
        mails.mail(postal.servers[1], Ended.HEADERS).queued: ("closed", "closed"),
        mails.mail(postal.servers[1], Ended.SENT).queued: ("completed", "completed"),
        mails.mail(postal.servers[2], Ended.LOCKED).queued: ("server unreadable",) * 2,
    }
    gone = mails.mail(postal.servers[1], Ended.LOCKED)
    mails.lose_message(postal.servers[1], gone.message)
    postal.main.run(f"DROP DATABASE `{postal.servers[2].database}`")
    report = duty(cli)
    told = {row["queuedMessage"]: (row["close"], row["retry"]) for row in report["rows"]}
    assert told == {**rows, gone.queued: ("lost", "lost")}
    since = postal.now().isoformat() + "Z"
    (row, *_) = duty(cli, "--restarted", since)["rows"]
    assert (row["close"], row["retry"]) == ("closed", "retried")


def test_workers_that_were_restarted_in_the_future_are_wrong_use(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    """A local time that is given for UTC would call living holders dead."""
    mails.mail(postal.servers[1], Ended.LOCKED)
    late = (postal.now() + timedelta(hours=2)).isoformat() + "Z"
    words = ("duty", "run", "stuck_mails_postal", "--mode", "retry", "--restarted")
    assert "is in the future" in cli(*words, late, code=2).err
    assert len(queue(postal)) == 1


@pytest.mark.usefixtures("real_gate")
def test_close_sets_a_message_aside_and_postal_says_held(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    mail = mails.mail(postal.servers[1], Ended.HEADERS, attempts=2)
    report = duty(cli, "--mode", "close", "--reason", "the worker's host is gone")
    assert counts(report) == {"closed": 1}
    assert report["status"] == "done"
    assert queue(postal) == {}
    row = message(postal, mail)
    assert (row["status"], row["held"], row["hold_expiry"]) == ("Held", 1, None)
    (record,) = records(postal, mail)
    assert (record["status"], record["time"]) == ("Held", None)
    assert "may have been sent" in record["details"]
    assert row["last_delivery_attempt"] == record["timestamp"]
    for period in ("hourly", "daily", "monthly", "yearly"):
        sql = f"SELECT held, bounces FROM stats_{period}"
        assert postal.servers[1].session.rows(sql) == [{"held": 1, "bounces": 0}]
    (entry,) = entries(postal_env)
    assert (entry.server, entry.message, entry.state) == (1, mail.message, EntryState.KEPT)
    assert entry.sha256 == hashlib.sha256(mail.content).hexdigest()
    assert (entry.size, entry.reason) == (len(mail.content), "the worker's host is gone")
    copies = Path(postal_env.env["MAILSLICE_ARTIFACTS"]).glob("postal/quarantine/*")
    assert [copy.read_bytes() for copy in copies] == [mail.content]
    again = duty(cli, "--mode", "close")
    assert (again["found"], counts(again)) == (0, {})
    assert len(records(postal, mail)) == 1


def test_an_answered_message_is_only_taken_out_of_the_queue(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    sent = mails.mail(postal.servers[1], Ended.SENT)
    bounced = mails.mail(postal.servers[2], Ended.HARD_FAIL)
    report = duty(cli, "--mode", "close")
    assert counts(report) == {"completed": 2}
    assert queue(postal) == {}
    assert [row["status"] for row in records(postal, sent)] == ["Sent"]
    assert [row["status"] for row in records(postal, bounced)] == ["HardFail"]
    assert entries(postal_env) == []


def test_what_is_gone_is_lost_and_stops_nothing(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    gone, unlocked, removed, stuck = (
        mails.mail(postal.servers[1], Ended.LOCKED),
        mails.mail(postal.servers[1], Ended.NOT_YET, locked_for=timedelta(hours=3)),
        mails.mail(postal.servers[1], Ended.LOCKED),
        mails.mail(postal.servers[2], Ended.LOCKED),
    )
    mails.lose_message(postal.servers[1], gone.message)
    mails.lose_message(postal.servers[1], unlocked.message)
    mails.lose_header_row(postal.servers[1], removed.message)
    report = duty(cli, "--mode", "close")
    assert counts(report) == {"lost": 3, "closed": 1}
    assert queue(postal) == {}
    (record,) = records(postal, removed)
    assert record["status"] == "HardFail"
    assert record["details"] == "Raw message has been removed. Cannot send message."
    assert message(postal, removed)["status"] == "HardFail"
    assert message(postal, stuck)["status"] == "Held"


def test_retry_gives_back_what_was_not_sent_where_the_holder_is_dead(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    fresh = mails.mail(postal.servers[1], Ended.LOCKED, attempts=3)
    incoming = mails.mail(postal.servers[1], Ended.LOCKED, scope=INCOMING)
    deferred = mails.mail(postal.servers[2], Ended.SOFT_FAIL, attempts=1)
    maybe = mails.mail(postal.servers[2], Ended.HEADERS)
    living = mails.mail(postal.servers[2], Ended.LOCKED, locked_for=timedelta(minutes=30))
    since = (postal.now() - timedelta(hours=1)).isoformat() + "Z"
    report = duty(cli, "--mode", "retry", "--restarted", since)
    assert counts(report) == {"retried": 3, "closed": 1, "skipped": 1}
    assert report["skippedBy"] == {"holder may live": 1}
    rows = queue(postal)
    assert set(rows) == {fresh.queued, incoming.queued, deferred.queued, living.queued}
    assert rows[fresh.queued]["attempts"] == 4
    assert rows[fresh.queued]["locked_by"] is None
    wait = rows[fresh.queued]["retry_after"] - postal.now()
    assert timedelta(seconds=600) < wait < timedelta(seconds=660)  # 1.3^3 x 5 min
    assert rows[deferred.queued]["attempts"] == 2
    assert [row["status"] for row in records(postal, fresh)] == ["Error"]
    assert [row["status"] for row in records(postal, deferred)] == ["SoftFail"]
    assert message(postal, fresh)["status"] == "Error"
    assert message(postal, maybe)["status"] == "Held"


@pytest.mark.parametrize("locked_by", ["'host:h pid:1 thread:1'", "NULL"])
@pytest.mark.parametrize("locked_at", ["'0000-00-00 00:00:00'", "'2026-00-10 00:00:00'", "NULL"])
def test_a_lock_without_a_valid_time_is_closed_and_what_was_before_it_proves_nothing(
    cli: Cli,
    postal: FreshPostal,
    mails: PostalMails,
    postal_env: Fresh,
    locked_by: str,
    locked_at: str,
) -> None:
    mail = mails.mail(postal.servers[1], Ended.LOCKED)
    mails.delivery(postal.servers[1], mail.message, "HardFail", at=postal.now())
    postal.main.run("SET sql_mode = ''")
    postal.main.run(f"UPDATE queued_messages SET locked_by = {locked_by}, locked_at = {locked_at}")
    stuck = cli.json("postal", "stuck")
    if locked_by == locked_at:
        assert stuck == []
        return
    (line,) = stuck
    assert (line["state"], line["stage"]) == ("stuck", "before sending")
    assert line["lockedAt"] == "0001-01-01T00:00:00.000000Z"
    now = datetime.now(UTC).isoformat()
    assert duty(cli, "--mode", "retry", "--restarted", now)["skippedBy"] == {"holder may live": 1}
    with open_stores(postal_env.settings) as stores:
        changes, rows = PostalChanges(stores.postal), PostalQueue(stores.postal.main)
        (row,) = rows.by_id([mail.queued]).values()
        assert changes.is_there(row)
        postal.main.run("UPDATE queued_messages SET locked_by = NULL, locked_at = NULL")
        assert not changes.is_there(row)
        postal.main.run(
            f"UPDATE queued_messages SET locked_by = {locked_by}, locked_at = {locked_at}"
        )
    assert counts(duty(cli, "--mode", "close")) == {"closed": 1}
    assert (queue(postal), message(postal, mail)["status"]) == ({}, "Held")


@pytest.mark.parametrize(
    ("table", "change", "done"),
    [
        ("messages", "raw_table = ''", "lost"),
        ("messages", "raw_table = REPEAT('x', 200)", "lost"),
        ("messages", "raw_table = 'x`; DROP TABLE messages; -- '", "lost"),
        ("messages", "raw_table = 'raw-50%'", "lost"),
        ("queued_messages", "updated_at = 0, retry_after = 0, created_at = 0", "closed"),
        ("queued_messages", "domain = NULL, attempts = NULL, batch_key = NULL", "closed"),
    ],
)
def test_a_row_as_nobody_writes_it_stops_no_other(
    cli: Cli, postal: FreshPostal, mails: PostalMails, table: str, change: str, done: str
) -> None:
    odd, _ = (mails.mail(postal.servers[1], Ended.LOCKED) for _ in range(2))
    is_message = table == "messages"
    session = postal.servers[1].session if is_message else postal.main
    session.run("SET sql_mode = ''")
    session.run(
        f"UPDATE {table} SET {change} WHERE id = {odd.message if is_message else odd.queued}"
    )
    expected = {"closed": 2} if done == "closed" else {"closed": 1, done: 1}
    assert counts(duty(cli, "--mode", "close")) == expected
    assert queue(postal) == {}


def test_retry_without_a_restart_leaves_everybody_alone(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mail = mails.mail(postal.servers[1], Ended.LOCKED)
    report = duty(cli, "--mode", "retry")
    assert report["skippedBy"] == {"holder may live": 1}
    accepted = duty(cli, "--mode", "retry", "--accept-duplicates")
    assert counts(accepted) == {"retried": 1}
    ((details,),) = [(row["details"],) for row in records(postal, mail)]
    assert details.startswith("Its worker may live, duplicates are accepted: ")
    assert "It was not sent." not in details


def test_the_limit_takes_the_oldest_locks_first(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    young, old = (
        mails.mail(postal.servers[1], Ended.LOCKED, locked_for=timedelta(hours=hours))
        for hours in (2, 3)
    )
    report = duty(cli, "--mode", "close", "--limit", "1")
    assert counts(report) == {"closed": 1, "left": 1}
    assert set(queue(postal)) == {young.queued}
    assert message(postal, old)["status"] == "Held"


@pytest.mark.parametrize("half", [False, True])
def test_a_server_that_is_left_out_uses_up_no_limit(
    cli: Cli, postal: FreshPostal, mails: PostalMails, guest: MariaDbLogin, half: bool
) -> None:
    """Its database is gone; or the grants of a new server are half there."""
    away = mails.batch(postal.servers[1], 3, locked_for=timedelta(hours=5))
    there = mails.mail(postal.servers[2], Ended.LOCKED)
    database = postal.servers[1].database
    if half:
        postal.main.run(f"REVOKE INSERT ON `{database}`.deliveries FROM '{guest.user}'@'%'")
    else:
        postal.main.run(f"DROP DATABASE `{database}`")
    report = duty(cli, "--mode", "close", "--limit", "1")
    assert (report["closed"], report["skippedBy"]) == (1, {"server unreadable": 3})
    assert set(queue(postal)) == {mail.queued for mail in away}
    assert message(postal, there)["status"] == "Held"


def test_a_lock_that_was_renewed_since_the_plan_is_left_alone(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    renewed = mails.mail(postal.servers[1], Ended.LOCKED)
    unlocked = mails.mail(postal.servers[1], Ended.LOCKED)
    run = planned(cli, "--mode", "close")
    postal.main.run(
        "UPDATE queued_messages SET locked_at = UTC_TIMESTAMP(6) WHERE id = %s", renewed.queued
    )
    postal.main.run(
        "UPDATE queued_messages SET locked_at = NULL, locked_by = NULL WHERE id = %s",
        unlocked.queued,
    )
    before = queue(postal)
    report = rest(cli, run)
    assert (report["skippedBy"], counts(report)) == ({"lock changed": 2}, {"skipped": 2})
    assert queue(postal) == before
    assert entries(postal_env) == []


def test_a_batch_that_shrinks_is_left_alone_as_a_whole(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    first, *others = mails.batch(postal.servers[1], 4)
    alone = mails.mail(postal.servers[2], Ended.LOCKED)
    run = planned(cli, "--mode", "close")
    postal.main.run("DELETE FROM queued_messages WHERE id = %s", first.queued)
    report = rest(cli, run)
    assert report["skippedBy"] == {"lock changed": 1, "batch in progress": 3}
    assert set(queue(postal)) == {mail.queued for mail in others}
    assert message(postal, alone)["status"] == "Held"


def test_a_batch_of_the_dead_is_closed_as_a_whole(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mails.batch(postal.servers[1], 70)
    assert counts(duty(cli, "--mode", "close")) == {"closed": 70}
    assert queue(postal) == {}


def test_a_server_without_its_database_is_left_out_and_the_others_go_on(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    away = mails.mail(postal.servers[1], Ended.LOCKED)
    mails.mail(postal.servers[2], Ended.LOCKED)
    postal.main.run(f"DROP DATABASE `{postal.servers[1].database}`")
    report = duty(cli, "--mode", "close")
    assert report["skippedBy"] == {"server unreadable": 1}
    assert counts(report) == {"closed": 1, "skipped": 1}
    assert set(queue(postal)) == {away.queued}
    assert "1" in report["message"]


def test_a_server_that_may_be_read_alone_is_left_out_and_nothing_of_it_changes(
    cli: Cli, postal: FreshPostal, mails: PostalMails, guest: MariaDbLogin, postal_env: Fresh
) -> None:
    """The grants of a new mail server are half there."""
    away, there = (mails.mail(postal.servers[n], Ended.HEADERS) for n in (1, 2))
    table = f"`{postal.servers[1].database}`.stats_yearly"
    postal.main.run(f"REVOKE UPDATE ON {table} FROM '{guest.user}'@'%'")
    before = queue(postal)
    report = duty(cli, "--mode", "close")
    assert (report["skippedBy"], report["closed"]) == ({"server unreadable": 1}, 1)
    assert queue(postal) == {away.queued: before[away.queued]}
    assert (records(postal, away), message(postal, there)["status"]) == ([], "Held")
    assert [entry.server for entry in entries(postal_env)] == [2]


def test_message_databases_whose_mariadb_is_away_are_left_out(
    postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    mails.mail(postal.servers[1], Ended.HEADERS)
    mails.mail(postal.servers[2], Ended.NOT_YET, locked_for=timedelta(hours=3))
    elsewhere = f"mysql://nobody:x@127.0.0.1:{free_port()}/"
    cli = Cli({**postal_env.env, "MAILSLICE_POSTAL_MESSAGE_URL": elsewhere}).inside()
    assert [line["state"] for line in cli.json("postal", "stuck")] == ["unknown"]
    before = queue(postal)
    report = duty(cli, "--mode", "close")
    assert counts(report) == {"skipped": 1}
    assert report["skippedBy"] == {"server unreadable": 1}
    assert queue(postal) == before


def test_a_message_that_is_answered_since_the_plan_is_only_completed(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    mail = mails.mail(postal.servers[1], Ended.HEADERS)
    run = planned(cli, "--mode", "close")
    mails.delivery(postal.servers[1], mail.message, "Sent", at=postal.now())
    assert counts(rest(cli, run)) == {"completed": 1}
    assert [row["status"] for row in records(postal, mail)] == ["Sent"]
    assert entries(postal_env) == []


def test_rows_of_a_server_that_is_gone_are_lost_once_they_are_old(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mails.mail(postal.servers[1], Ended.LOCKED)
    mails.mail(postal.servers[1], Ended.NOT_YET, locked_for=timedelta(hours=1))
    young = mails.mail(postal.servers[1], Ended.NOT_YET, locked_for=timedelta(minutes=1))
    mails.lose_server(postal.servers[1])
    report = duty(cli, "--mode", "close")
    assert (counts(report), report["unreadable"]) == ({"lost": 2}, {})
    assert set(queue(postal)) == {young.queued}


def test_messages_that_an_older_database_never_had_are_not_gone(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    """One server's database was put back to an old backup, is another's, or is being loaded: a dump
    names AUTO_INCREMENT before the rows.
    """
    old, server = mails.mail(postal.servers[1], Ended.HEADERS), postal.servers[1]
    for ended in (Ended.HEADERS, Ended.NOT_YET):
        mails.mail(server, ended)
    other = mails.mail(postal.servers[2], Ended.HEADERS)
    server.session.run("DELETE FROM messages WHERE id > %s", old.message)
    server.session.run("ALTER TABLE messages AUTO_INCREMENT = 2")
    before = queue(postal)
    answer = cli("postal", "stuck", "--json")
    assert [(line["server"], line["state"]) for line in answer.lines] == [
        (1, "stuck"),
        (1, "unknown"),
        (2, "stuck"),
    ]
    none_yet = f"is none yet in {server.database}, whose newest one is {old.message}"
    assert none_yet in answer.err
    server.session.run("ALTER TABLE messages AUTO_INCREMENT = 100")
    report = duty(cli, "--mode", "close")
    assert counts(report) == {"closed": 2, "skipped": 1}
    assert none_yet in report["unreadable"]["1"]
    del before[old.queued], before[other.queued]
    assert queue(postal) == before
    assert [row["status"] for row in records(postal, old)] == ["Held"]
    mails.message(server)
    assert counts(duty(cli, "--mode", "close")) == {"lost": 2}
    assert queue(postal) == {}


def test_rows_of_a_server_whose_row_alone_is_missing_are_not_gone(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    """The main database is being restored: `servers` comes after `queued_messages`."""
    mails.mail(postal.servers[1], Ended.LOCKED)
    mails.mail(postal.servers[1], Ended.NOT_YET, locked_for=timedelta(hours=1))
    before = queue(postal)
    mails.lose_server(postal.servers[1], row_only=True)
    report = duty(cli, "--mode", "close")
    assert (counts(report), report["skippedBy"]) == ({"skipped": 1}, {"server unreadable": 1})
    assert "Postal has no row of it" in report["unreadable"]["1"]
    assert queue(postal) == before


def test_each_decision_is_a_row_and_a_line_without_addresses(
    cli: Cli,
    postal: FreshPostal,
    mails: PostalMails,
    postal_env: Fresh,
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = mails.mail(postal.servers[1], Ended.HEADERS)
    gone = mails.mail(postal.servers[2], Ended.LOCKED)
    mails.lose_message(postal.servers[2], gone.message)
    with caplog.at_level(logging.INFO, "mailslice"):
        report = duty(cli, "--mode", "close", "--reason", "night shift")
    now = datetime.now(UTC)
    with open_stores(postal_env.settings) as stores:
        rows = list(stores.records.postal_decisions.list(now - timedelta(hours=1), now))
    told = {
        (row.server, row.message): (row.queued_message, row.holder, row.stage, row.verdict)
        for row in rows
    }
    assert told == {
        (1, closed.message): (closed.queued, closed.locked_by, "maybe sent", "stuck"),
        (2, gone.message): (gone.queued, gone.locked_by, "", "message gone"),
    }
    assert {row.action for row in rows} == {"closed", "lost"}
    assert all(row.run == report["run"] and "night shift" in row.why for row in rows)
    assert all(timedelta(hours=2) <= row.age < timedelta(hours=3) for row in rows)
    lines = [one.getMessage() for one in caplog.records if "queue row" in one.getMessage()]
    assert sorted(line.split(":")[0] for line in lines) == ["closed", "lost"]
    assert "@" not in "".join(lines)


def test_a_row_that_postals_tidy_task_takes_during_the_close_is_closed(
    cli: Cli,
    postal: FreshPostal,
    mails: PostalMails,
    postal_env: Fresh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It destroys the row and leaves no record: the message would be lost in silence."""
    mail = mails.mail(postal.servers[1], Ended.HEADERS, locked_for=timedelta(days=2))

    def tidied(point: str) -> None:
        if point == "postal:kept":
            assert tidy(postal) == 1

    monkeypatch.setattr(crash, "point", tidied)
    assert counts(duty(cli, "--mode", "close")) == {"closed": 1}
    assert [row["status"] for row in records(postal, mail)] == ["Held"]
    assert message(postal, mail)["status"] == "Held"
    assert [one.state for one in entries(postal_env)] == [EntryState.KEPT]


def planned(cli: Cli, *words: str) -> str:
    answer = cli("duty", "plan", "stuck_mails_postal", *words, "--json").one
    cli("duty", "check", "stuck_mails_postal", "--run", answer["run"])
    return answer["run"]


def rest(cli: Cli, run: str) -> dict:
    for step in ("apply", "verify"):
        cli("duty", step, "stuck_mails_postal", "--run", run)
    return cli("duty", "report", "stuck_mails_postal", "--run", run, "--json").lines[-1]


@pytest.mark.parametrize("ended", [Ended.HEADERS, Ended.SENT])
def test_a_row_that_is_in_the_queue_as_it_was_fails_verify(
    cli: Cli, postal: FreshPostal, mails: PostalMails, ended: Ended
) -> None:
    """Closed, or answered: Postal's database was put back to before apply."""
    mails.mail(postal.servers[1], ended)
    ((_, row),) = queue(postal).items()
    run = planned(cli, "--mode", "close")
    cli("duty", "apply", "stuck_mails_postal", "--run", run)
    names, places = ", ".join(f"`{name}`" for name in row), ", ".join(["%s"] * len(row))
    sql = f"INSERT INTO queued_messages ({names}) VALUES ({places})"
    postal.main.run(sql, *row.values())
    refused = cli("duty", "verify", "stuck_mails_postal", "--run", run, code=3)
    assert "as it was" in refused.err
