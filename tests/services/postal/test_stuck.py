"""`mailslice postal stuck`: every state and stage, and what it says when something is away."""

from __future__ import annotations

import re
import socket
import time
from datetime import timedelta

import pytest

from mailslice.stores.postal.rows import PAGE
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin
from mailslice.testing.postal.mails import INCOMING, OWN_HEADER, Ended, PostalMails
from mailslice.testing.postal.schema import Version
from tests.acceptance.command import Cli
from tests.conftest import Fresh

FIELDS = [
    *("queuedMessage", "server", "message", "lockedBy", "lockedAt", "age", "attempts"),
    *("rcptTo", "domain", "state", "stage"),
]
HOSTILE = "\x1b[31m\u202e<script>alert(1)</script>\r\n"


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


def stuck(cli: Cli, *words: str) -> list[dict]:
    return cli.json("postal", "stuck", *words)


def test_every_state_and_stage_is_named(cli: Cli, postal: FreshPostal, mails: PostalMails) -> None:
    first, second = postal.servers[1], postal.servers[2]
    stages = {
        mails.mail(first, Ended.LOCKED).queued: "before sending",
        mails.mail(first, Ended.LOCKED, scope=INCOMING).queued: "before sending",
        mails.mail(first, Ended.INSPECTED, scope=INCOMING).queued: "maybe sent",
        mails.mail(first, Ended.HEADERS).queued: "maybe sent",
        mails.mail(first, Ended.RECORDED).queued: "answered",
        mails.mail(second, Ended.SENT).queued: "answered",
        mails.mail(second, Ended.HARD_FAIL).queued: "answered",
        mails.mail(second, Ended.HELD).queued: "answered",
        mails.mail(second, Ended.PROCESSED, scope=INCOMING).queued: "answered",
        mails.mail(second, Ended.SOFT_FAIL).queued: "deferred",
        mails.mail(second, Ended.ERROR).queued: "deferred",
    }
    gone, free, header, table = (
        mails.mail(first, Ended.LOCKED),
        mails.mail(first, Ended.NOT_YET),
        mails.mail(first, Ended.LOCKED),
        mails.mail(second, Ended.LOCKED, locked_for=timedelta(days=40)),
    )
    mails.lose_message(first, gone.message)
    mails.lose_message(first, free.message)
    mails.lose_header_row(first, header.message)
    (row,) = second.session.rows("SELECT raw_table FROM messages WHERE id = %s", table.message)
    mails.lose_raw_table(second, row["raw_table"], noted=False)
    mails.mail(first, Ended.NOT_YET)
    mails.mail(first, Ended.LOCKED, locked_for=timedelta(minutes=9))
    mails.mail(first, Ended.LOCKED, locked_for=timedelta(days=-1))
    lines = stuck(cli)
    assert [list(line) for line in lines] == [FIELDS] * 15
    found = {line["queuedMessage"]: (line["state"], line["stage"]) for line in lines}
    assert found == {
        **{queued: ("stuck", stage) for queued, stage in stages.items()},
        gone.queued: ("message gone", None),
        free.queued: ("message gone", None),
        header.queued: ("content lost", None),
        table.queued: ("content lost", None),
    }
    assert lines[0]["queuedMessage"] == table.queued
    assert lines[-1]["queuedMessage"] == free.queued
    assert (lines[-1]["age"], lines[-1]["lockedAt"], lines[-1]["rcptTo"]) == (None, None, None)


def test_a_line_says_who_locked_it_since_when(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mail = mails.mail(postal.servers[2], Ended.LOCKED, attempts=3)
    (line,) = stuck(cli)
    assert line["lockedAt"] == mail.locked_at.isoformat(timespec="microseconds") + "Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["lockedAt"])
    assert 7200 <= line["age"] < 7260
    del line["age"], line["lockedAt"]
    assert line == {
        "queuedMessage": mail.queued,
        "server": 2,
        "message": mail.message,
        "lockedBy": mail.locked_by,
        "attempts": 3,
        "rcptTo": "user@example.org",
        "domain": "example.org",
        "state": "stuck",
        "stage": "before sending",
    }


@pytest.mark.parametrize(
    ("headers", "stage"),
    [
        (b"From: a@b\r\n%s: token", "maybe sent"),
        (b"%s: token\r\nFrom: a@b", "maybe sent"),
        (b"From: a@b\n%s: token", "maybe sent"),
        (b"Subject: %s: token", "before sending"),
        (b"From: a@b\r\nX-Other-%s: token", "before sending"),
    ],
)
@pytest.mark.parametrize("spelling", [str, str.upper, str.lower])
def test_the_own_header_counts_in_every_spelling_at_the_start_of_a_line(
    cli: Cli, postal: FreshPostal, mails: PostalMails, headers: bytes, stage: str, spelling
) -> None:
    name = spelling(OWN_HEADER).encode()
    mails.mail(postal.servers[1], Ended.LOCKED, headers=headers % name)
    assert [line["stage"] for line in stuck(cli)] == [stage]


def test_the_own_header_in_the_body_says_nothing(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mails.mail(postal.servers[1], Ended.LOCKED, body=f"{OWN_HEADER}: token\r\n".encode())
    assert [line["stage"] for line in stuck(cli)] == ["before sending"]


def test_the_time_out_follows_the_p99_and_the_option(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    slow = mails.mail(postal.servers[1], Ended.LOCKED, locked_for=timedelta(minutes=15))
    sent = mails.message(postal.servers[2])
    for _ in range(3):
        mails.delivery(postal.servers[2], sent, "Sent", at=postal.now(), time=120)
    assert stuck(cli) == []
    assert [line["queuedMessage"] for line in stuck(cli, "--lock-timeout", "14m")] == [slow.queued]
    answer = cli("postal", "stuck", "--lock-timeout", "612300ms")
    assert "the lock time-out is 612s, the p99 of sendings is 120s" in answer.err
    cli("postal", "stuck", "--lock-timeout", "0s", code=2)
    cli("postal", "stuck", "--lock-timeout", "soon", code=2)


def test_a_server_that_cannot_be_read_is_said_and_the_others_go_on(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    away, free = (
        mails.mail(postal.servers[1], Ended.LOCKED),
        mails.mail(postal.servers[1], Ended.NOT_YET),
    )
    there = mails.mail(postal.servers[2], Ended.LOCKED)
    postal.main.run(f"DROP DATABASE `{postal.servers[1].database}`")
    answer = cli("postal", "stuck", "--json")
    assert {line["queuedMessage"]: line["state"] for line in answer.lines} == {
        away.queued: "unknown",
        there.queued: "stuck",
    }
    assert "server 1 cannot be read" in answer.err
    assert "no sending was measured" in cli("postal", "stuck").err
    mails.lose_server(postal.servers[1], row_only=True)
    states = {line["queuedMessage"]: line["state"] for line in stuck(cli)}
    assert states[away.queued] == states[free.queued] == "message gone"


def test_no_message_is_gone_while_postal_has_no_server_at_all(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    """A restore has created `servers` and has not filled it; the databases come later."""
    first, second = postal.servers[1], postal.servers[2]
    locked, free = mails.mail(first, Ended.LOCKED), mails.mail(second, Ended.NOT_YET)
    mails.lose_server(first)
    assert [line["state"] for line in stuck(cli)] == ["message gone"]
    mails.lose_server(second)
    answer = cli("postal", "stuck", "--json")
    assert [(line["queuedMessage"], line["state"]) for line in answer.lines] == [
        (locked.queued, "unknown")
    ]
    assert "server 1 cannot be read in full: Postal has no mail server at all" in answer.err
    assert "server 2 cannot be read in full: Postal has no mail server at all" in answer.err
    cli("duty", "run", "stuck_mails_postal", "--mode", "close")
    ids = [row["id"] for row in postal.main.rows("SELECT id FROM queued_messages ORDER BY id")]
    assert ids == [locked.queued, free.queued]


def test_hostile_texts_are_tame_in_the_table_and_escaped_in_json(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mails.mail(
        postal.servers[1],
        Ended.LOCKED,
        rcpt_to=f"{HOSTILE}@example.org",
        locked_by=f"host:{HOSTILE}",
    )
    table = cli("postal", "stuck").out
    assert b" 2h " in table  # 7204 s say nothing to a person
    assert b"\x1b" not in table
    assert "\u202e".encode() not in table
    raw = cli("postal", "stuck", "--json").out
    assert raw.isascii()
    assert raw.count(b"\n") == 1


def test_another_schema_is_refused_by_the_name_of_what_is_missing(
    cli: Cli, postal: FreshPostal
) -> None:
    postal.main.run("ALTER TABLE queued_messages DROP COLUMN locked_at")
    assert "locked_at" in cli("postal", "stuck", code=3).err


def test_lists_of_ids_are_short_enough_to_be_looked_up_by_key(postal: FreshPostal) -> None:
    assert postal.main.one("SELECT @@in_predicate_conversion_threshold") > PAGE


@pytest.mark.parametrize("database", ["no-such", "information_schema", "n" * 70])
def test_a_database_that_is_no_postal_is_refused(
    mariadb: MariaDbLogin, postal_env: Fresh, database: str
) -> None:
    env = {**postal_env.env, "MAILSLICE_POSTAL_URL": mariadb.url(database)}
    assert "queued_messages" in Cli(env).inside()("postal", "stuck", code=3).err


@pytest.mark.parametrize("column", ["messages.raw_table", "stats_yearly.spam"])
def test_a_message_database_of_another_schema_is_refused(
    cli: Cli, postal: FreshPostal, column: str
) -> None:
    table, _, name = column.partition(".")
    postal.servers[2].session.run(f"ALTER TABLE {table} DROP COLUMN {name}")
    error = cli("postal", "stuck", code=3).err
    assert column in error
    assert postal.servers[2].database in error


def test_postal_2_is_read_as_well(make_postal, tmp_path) -> None:
    postal = make_postal(Version.V2_3)
    mail = PostalMails(postal).mail(postal.servers[1], Ended.HEADERS)
    cli = Cli({**postal.settings(postal.guest()), "MAILSLICE_ARTIFACTS": str(tmp_path)}).inside()
    (line,) = stuck(cli)
    assert (line["queuedMessage"], line["stage"]) == (mail.queued, "maybe sent")


def test_a_guest_with_the_rights_of_shadow_mode_may_look(
    postal: FreshPostal, mails: PostalMails, tmp_path
) -> None:
    mails.mail(postal.servers[1], Ended.LOCKED)
    guest = postal.guest(writes=False)
    env = {**postal.settings(guest), "MAILSLICE_ARTIFACTS": str(tmp_path)}
    assert len(stuck(Cli(env).inside())) == 1


def test_a_wrong_password_is_wrong_use_and_is_never_shown(
    postal: FreshPostal, guest: MariaDbLogin, postal_env: Fresh
) -> None:
    url = postal_env.env["MAILSLICE_POSTAL_URL"]
    secret = "not-the-password"
    wrong = re.sub(r":[^:@/]*@", f":{secret}@", url, count=1)
    answer = Cli({**postal_env.env, "MAILSLICE_POSTAL_URL": wrong}).inside()(
        "postal", "stuck", code=2
    )
    assert "MAILSLICE_POSTAL_URL" in answer.err
    assert guest.user in answer.err
    assert secret not in answer.err + answer.out.decode()


@pytest.mark.parametrize(
    "url", ["", "http://a/b", "mysql://h", "mysql://u:p@h:x/postal", "mysql://u:p@a..b/postal"]
)
def test_a_url_that_is_none_is_wrong_use(postal_env: Fresh, url: str) -> None:
    cli = Cli({**postal_env.env, "MAILSLICE_POSTAL_URL": url}).inside()
    assert "MAILSLICE_POSTAL_URL" in cli("postal", "stuck", code=2).err


def test_without_its_server_it_ends_soon_and_names_the_address(postal_env: Fresh) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    url = f"mysql://u:p@127.0.0.1:{port}/postal"
    began = time.monotonic()
    cli = Cli({**postal_env.env, "MAILSLICE_POSTAL_URL": url, "MAILSLICE_OWN_URL": url}).inside()
    assert f"127.0.0.1:{port}" in cli("postal", "stuck", code=4).err
    shown = cli("postal", "health", "--json", code=4)
    assert shown.one["health"] == "UNKNOWN"
    assert f"127.0.0.1:{port}" in shown.err
    assert time.monotonic() - began < 30


def test_a_server_that_never_answers_ends_soon(postal_env: Fresh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"mysql://u:p@127.0.0.1:{port}/postal"
        began = time.monotonic()
        env = {**postal_env.env, "MAILSLICE_POSTAL_URL": url, "MAILSLICE_POSTAL_TIMEOUT": "2s"}
        Cli(env).inside()("postal", "stuck", code=4)
        assert time.monotonic() - began < 30
