"""Runs of stuck_mails_postal that are killed, and what meets them: the same end, once.

The lock of a killed run ends by its time in test_quarantine.py; here its end is set to now.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from mailslice.model import crash
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin, SqlSession
from mailslice.testing.postal.mails import Ended, PostalMail, PostalMails
from mailslice.testing.postal.player import Player
from mailslice.testing.postal.records import Died, Step
from tests.acceptance.command import Cli
from tests.conftest import Fresh
from tests.services.postal.conftest import judged_cli

POINTS = ("postal:kept", "postal:taken", "postal:recorded", "postal:committed")
DUTY = ("duty", "run", "stuck_mails_postal")

ONE_AND_THE_LONG_RUN = [
    pytest.param(point, marks=[] if point == "postal:recorded" else [pytest.mark.soak])
    for point in POINTS
]
"""`make test` kills at one point, `make soak` at all; test_quarantine.py has all on one MariaDB."""


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


def kill_at(point: str, env: Fresh, postal: FreshPostal, *words: str) -> None:
    outside = judged_cli(env).but(MAILSLICE_TEST_CRASH_AT=point)
    outside(*DUTY, *words, code=-signal.SIGKILL)
    end_lock(postal)


def end_lock(postal: FreshPostal) -> None:
    """As if its 60 s were over."""
    postal.main.run(f"DELETE FROM `{postal.own}`.locks")


def entry_versions(postal: FreshPostal) -> dict[str, str]:
    """State by version: a version is of one write."""
    rows = postal.main.rows(f"SELECT version, state FROM `{postal.own}`.postal_quarantine")
    return {row["version"]: row["state"] for row in rows}


def run(cli: Cli, *words: str) -> dict:
    return cli(*DUTY, *words, "--json").lines[-1]


def queue(postal: FreshPostal) -> list[int]:
    return [row["id"] for row in postal.main.rows("SELECT id FROM queued_messages ORDER BY id")]


def statuses(postal: FreshPostal, mail: PostalMail) -> list[str]:
    sql = "SELECT status FROM deliveries WHERE message_id = %s ORDER BY id"
    rows = postal.servers[mail.server].session.rows(sql, mail.message)
    return [row["status"] for row in rows]


def held(postal: FreshPostal, server: int = 1) -> int:
    return int(postal.servers[server].session.one("SELECT SUM(held) FROM stats_daily") or 0)


def listed(cli: Cli) -> list[dict]:
    return cli.json("postal", "quarantine", "list")


def copies(env: Fresh) -> list[bytes]:
    folder = Path(env.env["MAILSLICE_ARTIFACTS"], "postal", "quarantine")
    return [file.read_bytes() for file in folder.glob("*")]


@pytest.mark.parametrize("point", ONE_AND_THE_LONG_RUN)
def test_a_closing_on_two_mariadbs_that_is_killed_is_finished_once(
    make_postal: Callable[..., FreshPostal],
    second_mariadb: MariaDbLogin,
    tmp_path: Path,
    point: str,
) -> None:
    postal = make_postal(message_login=second_mariadb)
    env = Fresh({**postal.settings(postal.guest()), "MAILSLICE_ARTIFACTS": str(tmp_path)})
    mail = PostalMails(postal).mail(postal.servers[1], Ended.HEADERS)
    kill_at(point, env, postal, "--mode", "close")
    run(Cli(env.env).inside(), "--mode", "close")
    assert (queue(postal), statuses(postal, mail), held(postal)) == ([], ["Held"], 1)
    assert copies(env) == [mail.content]


def test_a_kill_between_two_commits_is_finished_by_the_record(
    make_postal: Callable[..., FreshPostal], second_mariadb: MariaDbLogin, tmp_path: Path
) -> None:
    postal = make_postal(message_login=second_mariadb)
    env = Fresh({**postal.settings(postal.guest()), "MAILSLICE_ARTIFACTS": str(tmp_path)})
    mail = PostalMails(postal).mail(postal.servers[1], Ended.HEADERS)
    kill_at("postal:recorded", env, postal, "--mode", "close")
    assert statuses(postal, mail) == []
    postal.main.run("DELETE FROM queued_messages")  # the commit that came first
    cli = Cli(env.env).inside()
    run(cli, "--mode", "close")
    assert (statuses(postal, mail), held(postal)) == (["Held"], 1)
    (line,) = listed(cli)
    assert line["state"] == "kept"
    assert copies(env) == [mail.content]


@pytest.mark.parametrize("point", ONE_AND_THE_LONG_RUN[1:])
@pytest.mark.parametrize(
    ("ended", "words", "left", "last"),
    [
        (Ended.LOCKED, ("--mode", "retry", "--accept-duplicates"), 1, ["Error"]),
        (Ended.SENT, ("--mode", "close"), 0, ["Sent"]),
    ],
)
def test_a_change_without_a_copy_that_is_killed_happens_once(
    cli: Cli,
    postal: FreshPostal,
    mails: PostalMails,
    postal_env: Fresh,
    point: str,
    ended: Ended,
    words: tuple[str, ...],
    left: int,
    last: list[str],
) -> None:
    mail = mails.mail(postal.servers[1], ended)
    kill_at(point, postal_env, postal, *words)
    run(cli, *words)
    assert (len(queue(postal)), statuses(postal, mail)) == (left, last)
    if left:
        assert postal.main.one("SELECT attempts FROM queued_messages") == 1
    assert (listed(cli), copies(postal_env)) == ([], [])


def test_no_copy_stays_of_what_the_next_run_leaves_alone(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    mail = mails.mail(postal.servers[1], Ended.LOCKED)
    kill_at("postal:kept", postal_env, postal, "--mode", "close")
    assert copies(postal_env) == [mail.content]
    assert run(cli, "--mode", "retry")["skippedBy"] == {"holder may live": 1}
    assert queue(postal) == [mail.queued]
    assert copies(postal_env) == []


def test_no_copy_stays_of_what_a_worker_answered_after_the_kill(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    mail = mails.mail(postal.servers[1], Ended.HEADERS)
    kill_at("postal:kept", postal_env, postal, "--mode", "close")
    mails.delivery(postal.servers[1], mail.message, "Sent", at=postal.now())
    assert run(cli, "--mode", "close")["completed"] == 1
    assert (queue(postal), statuses(postal, mail)) == ([], ["Sent"])
    assert (listed(cli), copies(postal_env)) == ([], [])


def test_no_copy_stays_of_what_a_worker_finished_after_the_kill(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    mail = mails.mail(postal.servers[1], Ended.HEADERS)
    kill_at("postal:kept", postal_env, postal, "--mode", "close")
    mails.delivery(postal.servers[1], mail.message, "Sent", at=postal.now())
    postal.main.run("DELETE FROM queued_messages WHERE id = %s", mail.queued)
    run(cli, "--mode", "close")
    assert statuses(postal, mail) == ["Sent"]
    assert (listed(cli), copies(postal_env)) == ([], [])


def test_the_copy_of_a_killed_closing_is_the_last_where_postal_lost_the_content(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    mail = mails.mail(postal.servers[1], Ended.HEADERS)
    kill_at("postal:kept", postal_env, postal, "--mode", "close")
    mails.lose_header_row(postal.servers[1], mail.message)
    run(cli, "--mode", "shadow")
    assert copies(postal_env) == [mail.content]
    report = run(cli, "--mode", "close")
    assert (report["closed"], report["lost"]) == (1, 0)
    assert cli("postal", "health", "--json").one["health"] == "HELD"
    assert queue(postal) == []
    assert statuses(postal, mail) == ["Held"]
    assert [line["state"] for line in listed(cli)] == ["kept"]
    assert copies(postal_env) == [mail.content]


def test_two_rows_of_one_message_are_not_both_given_back(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mail = mails.mail(postal.servers[1], Ended.LOCKED)
    mails.queue_row(
        1,
        mail.message,
        domain="example.org",
        locked_by="host:other pid:9 thread:1 0123456789abcdef",
        locked_at=postal.now() - timedelta(hours=1),
    )
    since = postal.now().isoformat() + "Z"
    report = run(cli, "--mode", "retry", "--restarted", since)
    assert (report["found"], report["retried"]) == (2, 0)
    assert (report["closed"], report["completed"]) == (1, 1)
    assert queue(postal) == []
    (line,) = listed(cli)
    assert (line["message"], line["state"]) == (mail.message, "kept")


def test_a_row_that_somebody_holds_is_left_to_the_next_run(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    busy = mails.mail(postal.servers[1], Ended.HEADERS)
    free = mails.mail(postal.servers[2], Ended.HEADERS)
    holder = SqlSession(postal.login.connect(postal.name, autocommit=False))
    holder.rows("SELECT id FROM queued_messages WHERE id = %s FOR UPDATE", busy.queued)
    report = run(cli, "--mode", "close")
    holder.connection.rollback()
    holder.close()
    assert (report["closed"], report["failed"]) == (1, 0)
    assert queue(postal) == [busy.queued]
    assert (statuses(postal, busy), statuses(postal, free)) == ([], ["Held"])
    assert copies(postal_env) == [free.content]
    assert run(cli, "--mode", "close")["closed"] == 1
    assert queue(postal) == []


def test_a_worker_that_finishes_while_its_message_is_closed_is_not_sent_again(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    """A hung thread wakes up after the closing: it sends, records, deletes nothing."""
    mail = mails.mail(postal.servers[1], Ended.NOT_YET)
    wakes, hangs = threading.Event(), threading.Event()

    def hang(step: Step, _row: object) -> None:
        if step is Step.SENDING:
            hangs.set()
            assert wakes.wait(60)

    with Player(postal, threads=1, hook=hang) as player:
        assert hangs.wait(30)
        report = run(cli, "--mode", "close", "--lock-timeout", "1ms")
        assert report["closed"] == 1
        wakes.set()
    assert dict(player.records.sent) == {(1, mail.message): 1}
    assert statuses(postal, mail) == ["Held", "Sent"]
    (line,) = listed(cli)
    assert line["state"] == "finished"
    refused = cli("postal", "quarantine", "release", "--server", 1, "--message", mail.message,
                  "--yes", "--json", code=1)  # fmt: skip
    assert refused.one["result"] == "refused"
    assert queue(postal) == []


def test_without_its_url_the_duty_names_it(tmp_path: Path) -> None:
    cli = Cli({"MAILSLICE_ARTIFACTS": str(tmp_path), "HOME": str(tmp_path)}).inside()
    for words in (DUTY, ("duty", "plan", "stuck_mails_postal")):
        assert "MAILSLICE_POSTAL_URL" in cli(*words, code=2).err


def test_hostile_names_and_addresses_stay_data(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    evil = "x'; DROP TABLE queued_messages; -- \x1b[2J`%s\u202e"
    mail = mails.mail(
        postal.servers[1], Ended.HEADERS, locked_by=evil, rcpt_to=f"{evil}@example.org"
    )
    answer = cli(*DUTY, "--mode", "close")
    assert "\x1b" not in answer.out.decode() + answer.err
    assert (queue(postal), statuses(postal, mail)) == ([], ["Held"])
    details = postal.servers[1].session.one("SELECT details FROM deliveries")
    assert "\x1b" not in details
    assert "\u202e" not in details


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_random_kills_beside_live_workers(
    postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    """Workers die with their locks; runs are killed anywhere. No mail is lost or sent twice."""
    chance = random.Random(15)
    dead = [
        mails.mail(postal.servers[1 + number % 2], chance.choice([Ended.LOCKED, Ended.HEADERS]))
        for number in range(240)
    ]
    outside = Cli(postal_env.env)

    def die(step: Step, _row: object) -> None:
        if step is Step.SENDING and chance.random() < 0.02:
            raise Died

    words = (*DUTY, "--mode", "close", "--lock-timeout", "20s")
    outside(*words, "--limit", "1")  # makes the own tables
    live: list[PostalMail] = []
    in_apply = begun = 0
    with Player(postal, threads=4, hook=die) as player:
        for _ in range(15):
            live += [mails.mail(postal.servers[1 + n % 2]) for n in range(10)]
            before = entry_versions(postal)
            process = outside.start(*words)
            while process.poll() is None and entry_versions(postal) == before:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.4))
            process.kill()
            process.communicate()
            in_apply += process.returncode == -signal.SIGKILL and entry_versions(postal) != before
            begun += any(state != "kept" for state in entry_versions(postal).values())
            end_lock(postal)
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            outside(*words)
            locks = "SELECT COUNT(*) FROM queued_messages WHERE locked_at IS NOT NULL"
            if not postal.main.one(locks):
                break
            time.sleep(5)
    kept = {(line["server"], line["message"]) for line in listed(outside)}
    for mail in [*dead, *live]:
        key, records = (mail.server, mail.message), statuses(postal, mail)
        assert player.records.sent[key] <= 1, key
        assert records in (["Held"], ["Sent"], []), (key, records)
        assert (key in kept) == (records == ["Held"]), (key, records)
        waits = postal.main.one(
            "SELECT COUNT(*) FROM queued_messages WHERE server_id = %s AND message_id = %s", *key
        )
        assert bool(waits) == (records == []), (key, records)
    assert {(mail.server, mail.message) for mail in dead} <= kept
    total = sum(held(postal, server) for server in (1, 2))
    assert total == len(kept) == len(copies(postal_env))
    assert player.records.lock_errors == []
    assert in_apply >= 3, "kills before apply, or after it, prove nothing"
    assert begun > 0, "no kill met a closing that was begun"


@pytest.mark.parametrize("point", ["postal:kept", "postal:taken"])
def test_a_mariadb_that_freezes_in_the_middle_ends_the_run_soon(
    second_mariadb: MariaDbLogin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    postal = FreshPostal(second_mariadb, f"t{uuid.uuid4().hex[:12]}")
    postal.install()
    postal.add_server()
    env = Fresh({**postal.settings(postal.guest()), "MAILSLICE_ARTIFACTS": str(tmp_path)})
    mail = PostalMails(postal).mail(postal.servers[1], Ended.HEADERS)
    (server,) = (
        one
        for one in psutil.Process().children()
        if f"--port={second_mariadb.port}" in one.cmdline()
    )
    frozen: list[float] = []

    def freeze(name: str) -> None:
        if name == point and not frozen:
            server.suspend()
            frozen.append(time.monotonic())

    monkeypatch.setattr(crash, "point", freeze)
    cli = Cli(env.env).inside()
    try:
        assert f":{second_mariadb.port}" in cli(*DUTY, "--mode", "close", code=4).err
        assert time.monotonic() - frozen[0] < 30
    finally:
        server.resume()
    end_lock(postal)
    run(cli, "--mode", "close")
    assert (queue(postal), statuses(postal, mail), held(postal)) == ([], ["Held"], 1)
