"""The player leaves what Postal's workers leave, and notes what a guest does to it."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest

from mailslice.testing.postal.databases import FreshPostal, SqlSession
from mailslice.testing.postal.mails import INCOMING, OWN_HEADER, Ended, PostalMails
from mailslice.testing.postal.player import Player
from mailslice.testing.postal.records import Step, die, hang, slow
from mailslice.testing.postal.tasks import press_cancel_hold, press_release, tidy

WAITING_FOR_A_LOCK = """SELECT COUNT(*) FROM information_schema.innodb_trx
JOIN information_schema.processlist ON id = trx_mysql_thread_id
WHERE trx_state = 'LOCK WAIT' AND db = %s"""


def locked(postal: FreshPostal) -> list[dict]:
    return postal.main.rows("SELECT * FROM queued_messages WHERE locked_at IS NOT NULL ORDER BY id")


def statuses(postal: FreshPostal, server: int) -> list[str]:
    rows = postal.servers[server].session.rows("SELECT status FROM messages ORDER BY id")
    return [row["status"] for row in rows]


def wait_for(condition, seconds: float = 10, pause: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


@pytest.mark.parametrize("version", ["postal", "postal_2"])
def test_each_mail_is_sent_once_and_leaves_the_queue(
    version: str, request: pytest.FixtureRequest
) -> None:
    postal: FreshPostal = request.getfixturevalue(version)
    mails = PostalMails(postal)
    sent = [mails.mail(postal.servers[number % 2 + 1]) for number in range(12)]
    incoming = mails.mail(postal.servers[1], scope=INCOMING, batch_key="incoming-rt:1-ep:1")
    with Player(postal, threads=3) as player:
        player.wait_until_idle()
    assert dict(player.records.sent) == {(m.server, m.message): 1 for m in (*sent, incoming)}
    assert postal.main.one("SELECT COUNT(*) FROM queued_messages") == 0
    assert set(statuses(postal, 1) + statuses(postal, 2)) == {"Sent"}
    assert player.records.errors == []
    assert player.records.longest_wait > 0


def test_a_batch_is_locked_by_one_name_at_one_time_across_servers(
    postal: FreshPostal, mails: PostalMails
) -> None:
    rows = [mails.mail(postal.servers[number % 2 + 1]) for number in range(5)]
    with Player(postal, threads=1, hook=die(Step.BATCHED)) as player:
        wait_for(lambda: player.records.deaths)
    leader, *friends = locked(postal)
    assert len(friends) == len(rows) - 1
    assert len({(row["locked_by"], row["locked_at"]) for row in friends}) == 1
    assert leader["locked_by"].startswith(friends[0]["locked_by"] + " ")
    assert len(leader["locked_by"].split()[-1]) == 16
    assert {row["server_id"] for row in friends} == {1, 2}
    assert player.records.sent == {}


@pytest.mark.parametrize(
    ("step", "sent", "own_header", "deliveries", "status"),
    [
        (Step.LOCKED, 0, False, 0, "Pending"),
        (Step.HEADERS, 0, True, 0, "Pending"),
        (Step.SENT, 1, True, 0, "Pending"),
        (Step.DELIVERED, 1, True, 1, "Pending"),
        (Step.RECORDED, 1, True, 1, "Sent"),
    ],
)
def test_a_thread_that_dies_leaves_what_the_builders_make(
    postal: FreshPostal,
    mails: PostalMails,
    step: Step,
    sent: int,
    own_header: bool,
    deliveries: int,
    status: str,
) -> None:
    mails.mail(postal.servers[1])
    with Player(postal, threads=1, hook=die(step)) as player:
        wait_for(lambda: player.records.deaths)
    session = postal.servers[1].session
    (message,) = session.rows("SELECT * FROM messages")
    headers = session.one(
        f"SELECT data FROM `{message['raw_table']}` WHERE id = %s", message["raw_headers_id"]
    )
    assert sum(player.records.sent.values()) == sent
    assert (f"{OWN_HEADER}:".encode() in headers) is own_header
    assert session.one("SELECT COUNT(*) FROM deliveries") == deliveries
    assert message["status"] == status
    assert len(locked(postal)) == 1


def test_a_soft_fail_is_tried_later_and_an_error_is_recorded(
    postal: FreshPostal, mails: PostalMails
) -> None:
    first, second = (mails.mail(postal.servers[1], batch_key=None) for _ in range(2))

    def outcome(row: dict) -> str:
        if row["message_id"] == second.message:
            raise OSError("endpoint away")
        return "SoftFail"

    with Player(postal, threads=1, outcome=outcome) as player:
        player.wait_until_idle()
    rows = postal.main.rows("SELECT * FROM queued_messages ORDER BY id")
    assert [(row["attempts"], row["locked_by"]) for row in rows] == [(1, None), (1, None)]
    assert all(
        timedelta(minutes=4.9) < row["retry_after"] - postal.now() < timedelta(minutes=5.1)
        for row in rows
    )
    assert statuses(postal, 1) == ["SoftFail", "Error"]
    assert player.records.sent == {}
    assert first.message == 1


def test_lost_messages_and_contents_end_as_postal_ends_them(
    postal: FreshPostal, mails: PostalMails
) -> None:
    server = postal.servers[1]
    gone, bare = mails.mail(server, batch_key=None), mails.mail(server, batch_key=None)
    mails.lose_message(server, gone.message)
    mails.lose_header_row(server, bare.message)
    with Player(postal, threads=1) as player:
        player.wait_until_idle()
    assert postal.main.one("SELECT COUNT(*) FROM queued_messages") == 0
    assert statuses(postal, 1) == ["HardFail"]
    held = "SELECT SUM(bounces) FROM stats_daily"
    assert server.session.one(held) == 1
    assert player.records.sent == {}


def test_a_row_whose_server_is_gone_stays_locked(postal: FreshPostal, mails: PostalMails) -> None:
    mails.mail(postal.servers[2])
    mails.lose_server(postal.servers[2])
    with Player(postal, threads=1) as player:
        wait_for(lambda: player.records.errors)
    assert len(locked(postal)) == 1


def test_a_lock_of_somebody_else_is_noticed(postal: FreshPostal, mails: PostalMails) -> None:
    mails.mail(postal.servers[1], Ended.LOCKED)
    mails.mail(postal.servers[1])
    guest = SqlSession(postal.login.connect(postal.name))
    guest.connection.begin()
    guest.run("UPDATE queued_messages SET attempts = attempts + 1 WHERE id = 1")
    with Player(postal, threads=1) as player:
        try:
            wait_for(lambda: postal.main.one(WAITING_FOR_A_LOCK, postal.name), pause=0.2)
            time.sleep(0.6)
        finally:  # else the player's end waits for this lock
            guest.connection.rollback()
        player.wait_until_idle()
    assert player.records.longest_wait > 0.5
    guest.close()


def test_a_deadlock_is_noted(postal: FreshPostal, mails: PostalMails) -> None:
    first, second = (mails.mail(postal.servers[1], Ended.LOCKED) for _ in range(2))
    guest = SqlSession(postal.login.connect(postal.name, read_timeout=20))
    guest.connection.begin()
    lock = "UPDATE queued_messages SET attempts = attempts + 1 WHERE id = %s"
    guest.run(lock, second.queued)
    with Player(postal, threads=1) as player:
        try:
            # InnoDB reads its transactions anew only after 0.1 s without a question for them.
            wait_for(lambda: postal.main.one(WAITING_FOR_A_LOCK, postal.name), pause=0.2)
            guest.run(lock, first.queued)  # the poll has this row, and waits for the second
            wait_for(lambda: player.records.lock_errors)
        finally:  # else the poll waits for this lock, and the player's end for the poll
            guest.connection.rollback()
    assert player.records.lock_errors[0] == "lock: 1213"
    guest.close()


def test_the_tidy_task_deletes_old_locks_by_their_ids_alone(
    postal: FreshPostal, mails: PostalMails
) -> None:
    mails.mail(postal.servers[1], Ended.HEADERS, locked_for=timedelta(hours=30))
    young = mails.mail(postal.servers[1], Ended.HEADERS, locked_for=timedelta(hours=20))
    assert tidy(postal) == 1
    assert [row["id"] for row in locked(postal)] == [young.queued]
    assert statuses(postal, 1) == ["Pending", "Pending"]


def test_the_buttons_add_a_manual_row_or_cancel_the_hold(
    postal: FreshPostal, mails: PostalMails
) -> None:
    server = postal.servers[1]
    held = mails.mail(server, Ended.HELD)
    postal.main.run("DELETE FROM queued_messages")
    first = press_release(postal, 1, held.message)
    assert press_release(postal, 1, held.message) == first
    (row,) = postal.main.rows("SELECT * FROM queued_messages")
    assert (row["manual"], row["locked_by"], row["domain"]) == (1, None, "example.org")
    press_cancel_hold(postal, 1, held.message)
    press_cancel_hold(postal, 1, held.message)
    assert statuses(postal, 1) == ["HoldCancelled"]
    assert server.session.one("SELECT COUNT(*) FROM deliveries WHERE status = 'HoldCancelled'") == 1


def test_a_thread_that_hangs_goes_on_later(postal: FreshPostal, mails: PostalMails) -> None:
    mail = mails.mail(postal.servers[1])
    event = threading.Event()
    with Player(postal, threads=1, hook=hang(event, Step.SENDING)) as player:
        wait_for(lambda: locked(postal))
        postal.main.run("DELETE FROM queued_messages WHERE id = %s", mail.queued)
        event.set()
        wait_for(lambda: statuses(postal, 1) == ["Sent"])
    assert player.records.sent == {(1, mail.message): 1}
    assert player.records.errors == []


def test_a_slow_thread_takes_its_time(postal: FreshPostal, mails: PostalMails) -> None:
    mails.batch(postal.servers[1], 3, Ended.NOT_YET)
    began = time.monotonic()
    with Player(postal, threads=1, hook=slow(Step.SENDING, 0.2)) as player:
        player.wait_until_idle()
    assert time.monotonic() - began > 0.6
    assert sum(player.records.sent.values()) == 3
