"""`mailslice postal quarantine`: what waits for a person, and the ways out, each once."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.testing.postal.databases import FreshPostal
from mailslice.testing.postal.mails import Ended, PostalMail, PostalMails
from mailslice.testing.postal.player import Player
from mailslice.testing.postal.tasks import press_cancel_hold, press_release
from tests.acceptance.command import Cli
from tests.conftest import Fresh
from tests.services.postal.conftest import judged_cli
from tests.services.postal.test_config_check import check, wrong
from tests.services.postal.test_kills import end_lock

FIELDS = {
    *("server", "message", "queuedMessage", "rcptTo", "mailFrom", "domain", "bytes", "sha256"),
    *("lockedBy", "lockedAt", "stage", "closedAt", "run", "reason", "state"),
}


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


def close(cli: Cli) -> None:
    cli("duty", "run", "stuck_mails_postal", "--mode", "close")


def listed(cli: Cli) -> list[dict]:
    return cli.json("postal", "quarantine", "list")


def one(mail: PostalMail) -> tuple[object, ...]:
    return ("--server", mail.server, "--message", mail.message)


def queue(postal: FreshPostal) -> list[dict]:
    return postal.main.rows("SELECT * FROM queued_messages ORDER BY id")


def statuses(postal: FreshPostal, mail: PostalMail) -> list[str]:
    sql = "SELECT status FROM deliveries WHERE message_id = %s ORDER BY id"
    rows = postal.servers[mail.server].session.rows(sql, mail.message)
    return [row["status"] for row in rows]


def message(postal: FreshPostal, mail: PostalMail) -> dict:
    sql = "SELECT * FROM messages WHERE id = %s"
    (row,) = postal.servers[mail.server].session.rows(sql, mail.message)
    return row


def add_stats(mails: PostalMails, postal: FreshPostal, **more: object) -> PostalMail:
    return mails.mail(postal.servers[1], Ended.HEADERS, **more)


def test_the_list_has_all_fields_and_the_state_by_postals_own_rows(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    kept, requeued, finished, cancelled, bounced = (add_stats(mails, postal) for _ in range(5))
    away = mails.mail(postal.servers[2], Ended.LOCKED)
    close(cli)
    press_release(postal, 1, requeued.message)
    mails.delivery(postal.servers[1], finished.message, "Sent", at=postal.now())
    mails.delivery(postal.servers[1], bounced.message, "Bounced", at=postal.now(), time=None)
    press_cancel_hold(postal, 1, cancelled.message)
    postal.main.run(f"DROP DATABASE `{postal.servers[2].database}`")
    lines = listed(cli)
    assert all(set(line) == FIELDS for line in lines)
    assert {(line["server"], line["message"]): line["state"] for line in lines} == {
        (1, kept.message): "kept",
        (1, requeued.message): "requeued",
        (1, finished.message): "finished",
        (1, cancelled.message): "finished",
        (1, bounced.message): "finished",
        (2, away.message): "unknown",
    }
    (line,) = (line for line in lines if line["message"] == kept.message and line["server"] == 1)
    assert line["lockedAt"] == kept.locked_at.isoformat(timespec="microseconds") + "Z"
    assert (line["queuedMessage"], line["bytes"]) == (kept.queued, len(kept.content))


def test_hostile_senders_are_tame_in_the_table_and_in_answers(
    cli: Cli, postal: FreshPostal, mails: PostalMails, tmp_path: Path
) -> None:
    evil = "\x1b[2J\u202e<script>alert(1)</script>"
    mail = add_stats(
        mails, postal, mail_from=f"{evil}@a", rcpt_to=f"{evil}@b", locked_by=f"host:{evil}"
    )
    close(cli)
    words = ("postal", "quarantine")
    export = (*words, "export", tmp_path / "copies")
    for asked in ((*words, "list"), export, (*words, "release", *one(mail))):
        answer = cli(*asked)
        shown = answer.out.decode() + answer.err
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert [file.name for file in (tmp_path / "copies").iterdir()] == [f"1-{mail.message}.eml"]


def test_release_puts_back_what_was_there_and_a_worker_sends_it_once(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mail = add_stats(mails, postal, attempts=4, manual=1, batch_key="outgoing-example.org")
    (before,) = queue(postal)
    close(cli)
    answer = cli("postal", "quarantine", "release", *one(mail), "--reason", "all is well", "--json")
    (row,) = queue(postal)
    assert answer.one == {
        "server": 1,
        "message": mail.message,
        "result": "released",
        "queuedMessage": row["id"],
    }
    same = ("server_id", "message_id", "domain", "attempts", "route_id", "manual", "batch_key")
    assert {name: row[name] for name in same} == {name: before[name] for name in same}
    free = ("locked_by", "locked_at", "retry_after")
    assert [row[name] for name in free] == [None] * 3
    assert row["created_at"] == row["updated_at"]
    assert postal.now() - row["created_at"] < timedelta(minutes=1)
    assert listed(cli) == []
    with Player(postal, threads=2) as player:
        player.wait_until_idle()
    assert dict(player.records.sent) == {(1, mail.message): 1}
    assert statuses(postal, mail) == ["Held", "Sent"]


def test_an_address_that_is_gone_is_left_out(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mail = add_stats(mails, postal, ip_address_id=77)
    close(cli)
    cli("postal", "quarantine", "release", *one(mail))
    assert queue(postal)[0]["ip_address_id"] is None


def test_what_cannot_be_released_is_refused_and_says_why(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    requeued, finished, gone, lost, good = (add_stats(mails, postal) for _ in range(5))
    close(cli)
    press_release(postal, 1, requeued.message)
    mails.delivery(postal.servers[1], finished.message, "Sent", at=postal.now())
    mails.lose_message(postal.servers[1], gone.message)
    mails.lose_header_row(postal.servers[1], lost.message)
    for mail, why in (
        (requeued, "requeued"),
        (finished, "finished"),
        (gone, "message gone"),
        (lost, "content lost"),
    ):
        answer = cli("postal", "quarantine", "release", *one(mail), "--json", code=1)
        assert answer.one["result"] == "refused"
        assert answer.one["why"].startswith(why)
    lines = cli.json("postal", "quarantine", "release", "--all", "--yes")
    assert sorted(line["result"] for line in lines) == ["refused"] * 4 + ["released"]
    assert sorted(row["message_id"] for row in queue(postal)) == [requeued.message, good.message]
    cli("postal", "quarantine", "release", *one(finished), "--accept-duplicates")
    assert finished.message in [row["message_id"] for row in queue(postal)]


def test_all_fails_where_postal_cannot_be_asked(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    away, kept = mails.mail(postal.servers[2], Ended.LOCKED), add_stats(mails, postal)
    close(cli)
    postal.main.run(f"DROP DATABASE `{postal.servers[2].database}`")
    for doing, done in (("release", "released"), ("discard", "discarded")):
        answer = cli("postal", "quarantine", doing, "--all", "--yes", "--json", code=1)
        results = {line["server"]: line["result"] for line in answer.lines}
        assert results == {2: "refused"} | ({1: done} if doing == "release" else {})
        assert "messages, such as: Postal cannot be asked" in answer.err
    assert [(line["server"], line["message"]) for line in listed(cli)] == [(2, away.message)]
    assert [row["message_id"] for row in queue(postal)] == [kept.message]


@pytest.mark.parametrize(
    "words",
    [
        ("release",),
        ("release", "--server", "1"),
        ("release", "--server", "1", "--message", "1", "--all"),
        ("release", "--server", "1", "--message", "999"),
        ("release", "--server", "x", "--message", "1"),
        ("discard",),
        ("discard", "--message", "7"),
        ("discard", "--server", "9", "--message", "9"),
        ("export", "/dev/null"),
    ],
)
def test_wrong_use_is_said(cli: Cli, words: tuple[str, ...]) -> None:
    cli("postal", "quarantine", *words, code=2)


def test_a_message_without_our_record_may_be_another_one(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    """Postal was rebuilt, and counts from 1 again."""
    first, second = add_stats(mails, postal), add_stats(mails, postal)
    close(cli)
    postal.servers[1].session.run("DELETE FROM deliveries")
    assert [line["state"] for line in listed(cli)] == ["unknown", "unknown"]
    assert "no record of this closing" in cli("postal", "quarantine", "list").err
    for doing in ("release", "discard"):
        lines = cli.json("postal", "quarantine", doing, "--all", "--yes")
        assert [line["result"] for line in lines] == ["refused", "refused"]
    assert (queue(postal), len(files(postal_env))) == ([], 2)
    cli("postal", "quarantine", "release", *one(first), "--accept-duplicates", "--yes")
    cli("postal", "quarantine", "discard", *one(second), "--yes")
    assert [row["message_id"] for row in queue(postal)] == [first.message]
    assert (listed(cli), files(postal_env)) == ([], [])


def test_another_postal_with_the_same_own_tables_is_refused(
    make_postal: Callable[..., FreshPostal], tmp_path: Path
) -> None:
    first, second = make_postal(), make_postal()
    mails = [
        PostalMails(one).mail(one.servers[1], Ended.HEADERS, body=one.name.encode())
        for one in (first, second)
    ]
    assert mails[0].message == mails[1].message
    artifacts = {"MAILSLICE_ARTIFACTS": str(tmp_path / "artifacts")}
    cli = Cli({**first.settings(first.login), **artifacts}).inside()
    url, prefix = second.login.url(second.name), second.prefix
    other = cli.but(MAILSLICE_POSTAL_URL=url, MAILSLICE_POSTAL_MESSAGE_PREFIX=prefix)
    close(cli)
    duty, quarantined = ("duty", "run", "stuck_mails_postal"), ("postal", "quarantine")
    for words in (
        (*duty, "--mode", "close"),
        duty,
        (*quarantined, "list"),
        (*quarantined, "release", "--all", "--yes"),
        (*quarantined, "discard", *one(mails[1]), "--yes"),
    ):
        told = other(*words, code=3).err
        assert f"{first.name} at " in told
        assert f"{second.name} at " in told
        assert "MAILSLICE_OWN_URL" in told
    assert first.name in wrong(check(other, code=1))["own tables: Postal"]
    assert [row["id"] for row in queue(second)] == [mails[1].queued]
    assert statuses(second, mails[1]) == []
    other(*quarantined, "export", tmp_path / "copies")
    assert (tmp_path / "copies" / f"1-{mails[0].message}.eml").read_bytes() == mails[0].content
    cli(*quarantined, "release", "--all", "--yes")
    assert len(queue(first)) == 1


def test_a_postal_that_moved_to_another_mariadb_is_known_by_its_records(
    postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    beside = Cli(postal_env.env).inside()
    own = postal_env.env["MAILSLICE_OWN_URL"].replace("127.0.0.1", "localhost")
    elsewhere = beside.but(MAILSLICE_OWN_URL=own)
    mail = add_stats(mails, postal)
    close(elsewhere)
    moved = f"UPDATE `{postal.own}`.locks SET owner = %s WHERE name = 'postal identity'"
    assert postal.main.run(moved, f"{postal.name} at the-old-one:3306") == 1
    assert [line["state"] for line in listed(elsewhere)] == ["kept"]
    postal.servers[1].session.run("DELETE FROM deliveries")
    told = elsewhere("postal", "quarantine", "list", code=3).err
    assert "the-old-one" in told
    mails.delivery(postal.servers[1], mail.message, "Held", at=postal.now())
    assert "the-old-one" in elsewhere("duty", "run", "stuck_mails_postal", code=3).err
    assert [line["state"] for line in listed(beside)] == ["unknown"]
    (way_out,) = re.findall("DELETE FROM locks WHERE name = '[^']+'", told)
    assert postal.main.run(way_out.replace("locks", f"`{postal.own}`.locks")) == 1
    close(elsewhere)
    assert [line["state"] for line in listed(elsewhere)] == ["unknown"]


def test_discard_cancels_postals_hold_and_removes_the_copy(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    held, requeued = add_stats(mails, postal), add_stats(mails, postal)
    close(cli)
    press_release(postal, 1, requeued.message)
    lines = cli.json("postal", "quarantine", "discard", "--all", "--yes", "--reason", "spam")
    assert [line["result"] for line in lines] == ["discarded", "discarded"]
    assert statuses(postal, held) == ["Held", "HoldCancelled"]
    row = message(postal, held)
    assert (row["status"], row["held"], row["hold_expiry"]) == ("HoldCancelled", 0, None)
    assert listed(cli) == []
    assert files(postal_env) == []
    assert [row["message_id"] for row in queue(postal)] == [requeued.message]
    assert statuses(postal, requeued) == ["Held"]


def test_discard_of_all_takes_what_is_finished_or_in_the_queue_again(
    cli: Cli, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    requeued, finished = add_stats(mails, postal), add_stats(mails, postal)
    close(cli)
    press_release(postal, 1, requeued.message)
    mails.delivery(postal.servers[1], finished.message, "Sent", at=postal.now())
    lines = cli.json("postal", "quarantine", "discard", "--all", "--yes")
    assert [line["result"] for line in lines] == ["discarded", "discarded"]
    assert (listed(cli), files(postal_env)) == ([], [])
    assert [row["message_id"] for row in queue(postal)] == [requeued.message]
    assert statuses(postal, finished) == ["Held", "Sent"]


def test_what_may_not_be_looked_at_is_not_called_empty(
    cli: Cli, postal: FreshPostal, mails: PostalMails, tmp_path: Path
) -> None:
    add_stats(mails, postal)
    close(cli)
    blind = cli.but(**postal.settings(postal.guest(own=False)))
    listing, export = ("list",), ("export", tmp_path / "copies")
    for words in (listing, ("release", "--all"), ("discard", "--all"), export):
        answer = blind("postal", "quarantine", *words, code=3)
        assert f"`{postal.own}`.`postal_quarantine`" in answer.err
    assert "`runs`" in blind("postal", "health", code=3).err
    assert len(listed(cli)) == 1


def test_discard_leaves_what_a_worker_has_finished(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mail = add_stats(mails, postal)
    close(cli)
    mails.delivery(postal.servers[1], mail.message, "Sent", at=postal.now())
    cli("postal", "quarantine", "discard", *one(mail), "--yes")
    assert statuses(postal, mail) == ["Held", "Sent"]
    assert message(postal, mail)["status"] == "Sent"


def test_a_hold_that_was_cancelled_in_postal_is_not_released_by_all(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mail = add_stats(mails, postal)
    close(cli)
    press_cancel_hold(postal, 1, mail.message)
    cli("postal", "quarantine", "release", "--all", "--yes")
    answer = cli("postal", "quarantine", "release", *one(mail), "--json", code=1)
    assert answer.one["why"].startswith("finished")
    assert queue(postal) == []
    cli("postal", "quarantine", "discard", *one(mail), "--yes")
    assert (statuses(postal, mail), listed(cli)) == (["Held", "HoldCancelled"], [])


def test_export_gives_the_bytes_also_when_postal_has_dropped_them(
    cli: Cli, postal: FreshPostal, mails: PostalMails, tmp_path
) -> None:
    odd = add_stats(mails, postal, body=b"\xff\x00 line\nno end")
    empty = add_stats(mails, postal, body=None)
    close(cli)
    mails.lose_message(postal.servers[1], odd.message)
    folder = tmp_path / "copies"
    cli("postal", "quarantine", "export", folder)
    assert (folder / f"1-{odd.message}.eml").read_bytes() == odd.content
    assert (folder / f"1-{empty.message}.eml").read_bytes() == empty.content
    cli("postal", "quarantine", "export", folder)
    (folder / f"1-{odd.message}.eml").write_bytes(b"mine")
    answer = cli("postal", "quarantine", "export", folder, *one(odd), "--json", code=1)
    assert "exists with other content" in answer.one["error"]
    assert (folder / f"1-{odd.message}.eml").read_bytes() == b"mine"


@pytest.mark.parametrize("point", ["postal:release-noted", "postal:release-queued"])
def test_a_release_that_is_killed_is_finished_once(
    postal: FreshPostal, mails: PostalMails, postal_env: Fresh, point: str
) -> None:
    mail = add_stats(mails, postal)
    outside = Cli(postal_env.env)
    close(outside.inside())
    words = ("postal", "quarantine", "release", *one(mail))
    killed = outside.but(MAILSLICE_TEST_CRASH_AT=point)
    killed(*words, code=-signal.SIGKILL)
    end_lock(postal)
    assert len(queue(postal)) == (point == "postal:release-queued")
    with Player(postal, threads=1) as player:
        player.wait_until_idle()
        outside(*words)
        player.wait_until_idle()
    assert dict(player.records.sent) == {(1, mail.message): 1}
    assert queue(postal) == []
    assert listed(outside) == []
    assert files(postal_env) == []


@pytest.mark.parametrize(
    "point",
    [
        "postal:taken",
        "postal:committed",
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("postal:kept", "postal:recorded")),
    ],
)
def test_a_closing_that_is_killed_is_finished_once(
    postal: FreshPostal, mails: PostalMails, postal_env: Fresh, point: str
) -> None:
    mail = add_stats(mails, postal)
    # Once with all that a user's command loads.
    outside = Cli(postal_env.env) if point == "postal:taken" else judged_cli(postal_env)
    run = ("duty", "run", "stuck_mails_postal", "--mode", "close")
    outside.but(MAILSLICE_TEST_CRASH_AT=point)(*run, code=-signal.SIGKILL)
    end_lock(postal)
    assert len(queue(postal)) == (point != "postal:committed")
    outside(*run)
    assert queue(postal) == []
    assert statuses(postal, mail) == ["Held"]
    held = postal.servers[1].session.rows("SELECT held FROM stats_daily")
    assert held == [{"held": 1}]
    (line,) = listed(outside)
    assert (line["message"], line["state"]) == (mail.message, "kept")
    assert len(files(postal_env)) == 1


def files(env: Fresh) -> list[str]:
    folder = Path(env.env["MAILSLICE_ARTIFACTS"], "postal", "quarantine")
    return [file.name for file in folder.glob("*")]
