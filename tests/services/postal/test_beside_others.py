"""Beside others: message databases on another MariaDB, row locks of others, live workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin
from mailslice.testing.postal.mails import Ended, PostalMail, PostalMails
from mailslice.testing.postal.player import Player
from tests.acceptance.command import Cli
from tests.conftest import Fresh

CLOSE = ("duty", "run", "stuck_mails_postal", "--mode", "close")


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


def queue(postal: FreshPostal) -> list[int]:
    return [row["id"] for row in postal.main.rows("SELECT id FROM queued_messages ORDER BY id")]


def statuses(postal: FreshPostal, mail: PostalMail) -> list[str]:
    sql = "SELECT status FROM deliveries WHERE message_id = %s ORDER BY id"
    rows = postal.servers[mail.server].session.rows(sql, mail.message)
    return [row["status"] for row in rows]


@pytest.fixture
def apart(make_postal: Callable[..., FreshPostal], second_mariadb: MariaDbLogin) -> FreshPostal:
    """A Postal whose message databases are on another MariaDB."""
    return make_postal(message_login=second_mariadb)


@pytest.fixture
def apart_cli(apart: FreshPostal, tmp_path) -> Cli:
    return Cli({**apart.settings(apart.guest()), "MAILSLICE_ARTIFACTS": str(tmp_path)})


def test_two_mariadbs_are_closed_and_released_as_one(apart: FreshPostal, apart_cli: Cli) -> None:
    cli, mails = apart_cli.inside(), PostalMails(apart)
    stuck, sent, lost = (
        mails.mail(apart.servers[1], Ended.HEADERS),
        mails.mail(apart.servers[1], Ended.SENT),
        mails.mail(apart.servers[2], Ended.LOCKED),
    )
    mails.lose_header_row(apart.servers[2], lost.message)
    report = cli(*CLOSE, "--json").lines[-1]
    assert (report["closed"], report["completed"], report["lost"]) == (1, 1, 1)
    assert queue(apart) == []
    assert statuses(apart, stuck) == ["Held"]
    assert statuses(apart, sent) == ["Sent"]
    assert statuses(apart, lost) == ["HardFail"]
    cli("postal", "quarantine", "release", "--server", 1, "--message", stuck.message)
    assert len(queue(apart)) == 1


def test_a_short_row_lock_is_waited_for(cli: Cli, postal: FreshPostal, mails: PostalMails) -> None:
    mail = mails.mail(postal.servers[1], Ended.HEADERS)
    is_locked = threading.Event()

    def hold() -> None:
        with postal.login.connect(postal.name) as other, other.cursor() as cursor:
            other.begin()
            sql = "SELECT id FROM queued_messages WHERE id = %s FOR UPDATE"
            cursor.execute(sql, (mail.queued,))
            is_locked.set()
            time.sleep(5)
            other.rollback()

    holder = threading.Thread(target=hold)
    run = cli("duty", "plan", "stuck_mails_postal", "--mode", "close", "--json").one["run"]
    cli("duty", "check", "stuck_mails_postal", "--run", run)
    holder.start()
    is_locked.wait(10)
    report = cli("duty", "apply", "stuck_mails_postal", "--run", run, "--json").one
    holder.join()
    assert report["closed"] == 1


def test_no_worker_waits_where_somebody_has_locked_the_tables_of_a_server(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    """A dump, or DDL: the queue row is given back at once, and the next run closes the message."""
    first, second = postal.servers[1], postal.servers[2]
    busy, free = mails.mail(first, Ended.HEADERS), mails.mail(second, Ended.HEADERS)
    run = cli("duty", "plan", "stuck_mails_postal", "--mode", "close", "--json").one["run"]
    cli("duty", "check", "stuck_mails_postal", "--run", run)
    waits, ended = [], threading.Event()

    def poll() -> None:
        with postal.login.connect(postal.name) as worker, worker.cursor() as cursor:
            while not ended.is_set():
                began = time.monotonic()
                cursor.execute(
                    "UPDATE queued_messages SET locked_by = 'a', locked_at = UTC_TIMESTAMP(6) "
                    "WHERE locked_by IS NULL AND locked_at IS NULL LIMIT 1"
                )
                waits.append(time.monotonic() - began)
                time.sleep(0.02)

    poller = threading.Thread(target=poll)
    first.session.run("LOCK TABLES deliveries READ, messages READ")
    poller.start()
    try:
        report = cli("duty", "apply", "stuck_mails_postal", "--run", run, "--json").one
    finally:
        ended.set()
        poller.join()
        first.session.run("UNLOCK TABLES")
    assert (report["closed"], report["failed"]) == (1, 0)
    assert queue(postal) == [busy.queued]
    assert (statuses(postal, busy), statuses(postal, free)) == ([], ["Held"])
    assert max(waits) < 2, "3 s is what a statement waits for a lock"
    assert cli(*CLOSE, "--json").lines[-1]["closed"] == 1


def test_live_workers_send_each_mail_once_and_none_of_them_waits_long(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    zombies = [mails.mail(postal.servers[1 + n % 2], Ended.HEADERS) for n in range(20)]
    waiting = [mails.mail(postal.servers[1 + n % 2], rcpt_to="user@example.net") for n in range(60)]
    with Player(postal, threads=3) as player:
        report = cli(*CLOSE, "--json").lines[-1]
        player.wait_until_idle()
    assert report["closed"] == 20
    assert dict(player.records.sent) == {(mail.server, mail.message): 1 for mail in waiting}
    assert player.records.errors == []
    assert [statuses(postal, mail) for mail in zombies] == [["Held"]] * 20
    assert queue(postal) == []
