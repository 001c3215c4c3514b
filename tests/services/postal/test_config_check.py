"""`mailslice config check` of a deployment of Postal: what is missing is named, by grant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailslice.testing.postal import grants
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin
from tests.acceptance.command import Cli
from tests.conftest import Fresh


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


def check(cli: Cli, code: int = 0) -> dict[str, Any]:
    return cli("config", "check", "--json", code=code).one["postal"]


def wrong(found: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["detail"] for one in found["checks"] if one["ok"] is False}


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in found["checks"] if one["check"] == name)


def test_the_grants_of_the_page_are_enough_for_every_mode(cli: Cli, postal: FreshPostal) -> None:
    for mode in ("shadow", "close", "retry"):
        found = check(cli.but(MAILSLICE_POSTAL_MODE=mode))
        assert (found["mode"], found["ok"], wrong(found)) == (mode, True, {})
    assert named(found, "own tables")["detail"].endswith("the first run makes it")
    assert named(found, "stale locks")["ok"] is None
    assert "queued_message_lock_stale_days" in named(found, "stale locks")["detail"]
    assert named(found, "servers")["detail"] == "2 mail servers"
    assert postal.main.rows("SHOW DATABASES LIKE %s", postal.own) == []
    cli("duty", "run", "stuck_mails_postal")
    assert named(check(cli), "own tables")["detail"].startswith(f"database {postal.own} at ")


def test_a_binary_log_of_statements_is_named_before_a_run_is_refused(
    make_mariadb: Callable[..., MariaDbLogin],
    mariadb: MariaDbLogin,
    make_postal: Callable[..., FreshPostal],
    tmp_path: Path,
) -> None:
    logging = make_mariadb("--log-bin=bin", "--binlog-format=STATEMENT")
    postal = make_postal()
    settings = {**postal.settings(postal.guest()), "MAILSLICE_ARTIFACTS": str(tmp_path)}
    cli = Cli({**settings, "MAILSLICE_OWN_URL": logging.url("own")}).inside()
    assert "MIXED or ROW" in wrong(check(cli, code=1))["own tables"]
    assert "MIXED or ROW" in cli("duty", "run", "stuck_mails_postal", code=3).err
    elsewhere = cli.but(
        MAILSLICE_OWN_URL=settings["MAILSLICE_OWN_URL"], MAILSLICE_POSTAL_MESSAGE_URL=logging.url()
    )
    assert "message databases: binlog" in wrong(check(elsewhere, code=1))


def test_a_person_reads_a_table(cli: Cli) -> None:
    text = cli("config", "check").out.decode()
    assert "rights for close and retry" in text
    assert "not encrypted" in text


def test_who_may_only_look_has_what_shadow_needs(cli: Cli, postal: FreshPostal) -> None:
    looking = cli.but(**postal.settings(postal.guest(writes=False)))
    found = check(looking)
    assert found["ok"] is True
    assert sorted(wrong(found)) == [
        "rights for close and retry",
        "server 1: rights for close and retry",
        "server 2: rights for close and retry",
    ]
    assert check(looking.but(MAILSLICE_POSTAL_MODE="close"), code=1)["ok"] is False


def every_grant() -> list[tuple[int, str]]:
    """Each grant of the page by its place, and what `config check` calls it."""
    writes = grants.server_writes("M-server-1", "U")
    lines = [*grants.main_reads("M", "U"), *grants.main_writes("M", "U")]
    lines += [*grants.server_reads("M-server-1", "U"), *writes]
    return list(enumerate(lines))


@pytest.mark.parametrize(("place", "grant"), every_grant(), ids=lambda one: str(one)[:60])
def test_each_grant_that_is_missing_is_named(
    cli: Cli, postal: FreshPostal, guest: MariaDbLogin, place: int, grant: str
) -> None:
    user, database = f"'{guest.user}'@'%%'", postal.servers[1].database
    all_ = [*grants.main_reads(postal.name, user), *grants.main_writes(postal.name, user)]
    all_ += [*grants.server_reads(database, user), *grants.server_writes(database, user)]
    revoked = all_[place].replace("GRANT ", "REVOKE ", 1).replace(f" TO {user}", f" FROM {user}")
    postal.main.run(revoked.replace("%%", "%"))
    found = check(cli.but(MAILSLICE_POSTAL_MODE="close"), code=1)
    table = grant.partition(" ON ")[2].partition(" TO ")[0].rpartition(".")[2].strip("`")
    assert f"{table}" in " ".join(wrong(found).values()).replace("`", "")
    words = [word for word in ("INSERT", "DELETE", "UPDATE", "SELECT") if word in grant]
    assert all(word in " ".join(wrong(found).values()) for word in words)


def test_a_grant_names_the_database_as_it_is(
    cli: Cli, postal: FreshPostal, guest: MariaDbLogin
) -> None:
    answer = cli.but(MAILSLICE_POSTAL_URL=guest.url("a%b"))("config", "check", "--json", code=1)
    assert "GRANT SELECT ON `a%b`.`queued_messages`" in " ".join(
        wrong(answer.one["postal"]).values()
    )


def test_a_database_that_is_gone_and_another_schema_are_named(
    cli: Cli, postal: FreshPostal
) -> None:
    postal.main.run("ALTER TABLE queued_messages DROP COLUMN batch_key")
    postal.main.run(f"DROP DATABASE `{postal.servers[2].database}`")
    found = wrong(check(cli, code=1))
    assert "queued_messages.batch_key" in found["schema"]
    assert postal.servers[2].database in found["server 2: schema"]


def test_the_own_database_and_the_artifacts_must_be_writable(
    cli: Cli, postal: FreshPostal, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    poor = cli.but(
        **postal.settings(postal.guest(own=False)), MAILSLICE_ARTIFACTS=str(tmp_path / "file/x")
    )
    found = wrong(check(poor, code=1))
    assert (
        f"GRANT ALTER, CREATE, DELETE, INSERT, SELECT, UPDATE ON `{postal.own}`.*"
        in (found["own tables"])
    )
    assert "MAILSLICE_ARTIFACTS" in found["artifacts"]


def test_own_tables_beside_postals_are_refused(cli: Cli, postal: FreshPostal) -> None:
    url = postal.settings(postal.guest())["MAILSLICE_POSTAL_URL"]
    answer = cli.but(MAILSLICE_OWN_URL=url)("config", "check", code=2)
    assert "MAILSLICE_OWN_URL" in answer.err


def test_a_wrong_password_ends_with_2_and_an_absent_server_with_4(
    cli: Cli, postal: FreshPostal, guest: MariaDbLogin
) -> None:
    settings = postal.settings(MariaDbLogin(guest.port, guest.host, guest.user, "wrong"))
    answer = cli.but(**settings)("config", "check", code=2)
    assert "MAILSLICE_POSTAL_URL" in answer.err
    cli.but(MAILSLICE_POSTAL_URL="mysql://a:b@127.0.0.1:1/postal")("config", "check", code=4)


def test_a_login_that_another_try_does_not_mend_is_a_setting(
    cli: Cli, postal: FreshPostal, guest: MariaDbLogin
) -> None:
    answer = cli.but(MAILSLICE_POSTAL_TLS_ENABLED="true")("config", "check", code=2)
    assert "MAILSLICE_POSTAL_TLS_" in answer.err  # this MariaDB has none
    postal.main.run(f"ALTER USER '{guest.user}'@'%' PASSWORD EXPIRE")
    for words in (("config", "check"), ("postal", "stuck")):
        assert "the password" in cli(*words, code=2).err


def test_message_databases_elsewhere_are_asked_there(
    make_postal: Callable[..., FreshPostal], second_mariadb: MariaDbLogin, tmp_path: Path
) -> None:
    postal = make_postal(message_login=second_mariadb)
    env = {**postal.settings(postal.guest()), "MAILSLICE_ARTIFACTS": str(tmp_path)}
    found = check(Cli(Fresh(env).env).inside().but(MAILSLICE_POSTAL_MODE="close"))
    assert wrong(found) == {}
    assert str(second_mariadb.port) in named(found, "message databases")["detail"]
